"""The answer to `GET /runs/{id}/status`, in the words and shape of any profile.

Laws:
1. The answer and its ETag are functions of the run's version and the profile, so the tag changes whenever the answer could.
2. An agent run is shown as status.json unless another profile is asked for. If the server publishes, that is the document that was published.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.outbound.document_store import DocumentStore
from tenure.reads import status_document
from tenure.reads.run_list import known_steps_total
from tenure.reads.runs import RunReader
from tenure.shapes.documents import StatusDocument
from tenure.shapes.published import status_path

if TYPE_CHECKING:
    from tenure.server.context import ServerContext


CACHE_CONTROL = "private, no-cache"
"""Browsers may cache an answer if they revalidate it each time."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is."""

    id: str
    status: str
    shown: str
    """The status in the profile's words."""
    reason: str | None
    """Why it ended as it did: a code, or `done`."""
    events: int
    """The length of its history: it grows with every change."""
    steps_total: int
    """How many are known so far."""
    steps_done: int
    steps_skipped: int
    """Of those: how many were skipped, because their condition was false."""
    paused: bool
    parked: str | None
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime


class StatusResponse(msgspec.Struct, frozen=True):
    """An answer with its tag. Its body is None if the caller has seen it."""

    tag: str
    body: RunStatus | StatusDocument | None

    @property
    def headers(self) -> dict[str, str]:
        return {"ETag": self.tag, "Cache-Control": CACHE_CONTROL}


def _make_etag(version: int, profile: str | None) -> str:
    return f'"{version}.{profile}"' if profile else f'"{version}"'


def matches_etag(header: str | None, tag: str) -> bool:
    """Whether an If-None-Match header names this tag."""
    if header is None:
        return False
    given = [one.strip().removeprefix("W/") for one in header.split(",")]
    return tag in given or given == ["*"]


async def read_status(
    server: ServerContext, tenant: str, run_id: str, profile: str | None, if_none_match: str | None
) -> StatusResponse:
    """The status of a run, or only its tag if `if_none_match` names the tag."""
    if profile is not None:
        profiles.get(profile)
    glance = await server.status_batcher.at(ids.run_int(run_id), tenant)
    if profile is None and glance.profile == status_document.PROFILE:
        profile = status_document.PROFILE
        if server.engine.publisher is not None:
            return await _read_published(server.engine.publisher.documents, tenant, run_id, if_none_match)
    tag = _make_etag(glance.version, profile)
    if matches_etag(if_none_match, tag):
        return StatusResponse(tag, None)
    views = RunReader(server.engine.store, tenant)
    body: Any
    if profile == status_document.PROFILE:
        body = await status_document.read_status_document(
            server.engine.store, glance, await views.word(glance, profile)
        )
    else:
        body = RunStatus(
            id=run_id,
            status=glance.status,
            shown=await views.word(glance, profile),
            reason=glance.reason,
            events=glance.version,
            steps_total=known_steps_total(glance),
            steps_done=glance.steps_done,
            steps_skipped=glance.steps_skipped,
            paused=glance.paused,
            parked=glance.parked,
            cancel_requested=glance.cancel_at is not None,
            created_at=to_datetime(glance.created_at),
            started_at=to_optional_datetime(glance.started_at),
            finished_at=to_optional_datetime(glance.finished_at),
            updated_at=to_datetime(glance.event_at),
        )
    return StatusResponse(tag, body)


async def _read_published(
    documents: DocumentStore, tenant: str, run_id: str, if_none_match: str | None
) -> StatusResponse:
    """The published status of an agent run, or NOT_PUBLISHED."""
    found = await documents.read(status_path(tenant, run_id))
    if found is None:
        raise TenureError("NOT_PUBLISHED", f"run {run_id} has not been published", retry_after=1)
    tag = f'"{sha256(found.body).hexdigest()[:32]}"'
    if matches_etag(if_none_match, tag):
        return StatusResponse(tag, None)
    return StatusResponse(tag, msgspec.json.decode(found.body, type=StatusDocument))
