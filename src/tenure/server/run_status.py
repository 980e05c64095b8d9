"""How a run is, answered cheaply: the answer to `GET /runs/{id}/status`, in any profile's words and shape.

Law: what is answered is a function of the run's version and the profile; so is its ETag.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.kernel import profiles
from tenure.reads import status_document
from tenure.reads.run_list import known_steps_total
from tenure.reads.runs import RunReader
from tenure.server.http.etags import make_etag, matches_etag
from tenure.shapes.documents import StatusDocument

if TYPE_CHECKING:
    from tenure.server.context import ServerContext


CACHE_CONTROL = "private, no-cache"
"""Browsers may keep an answer, if they ask each time whether it still holds."""


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
    """An answer: its tag, and its body unless that was seen already."""

    tag: str
    body: RunStatus | StatusDocument | None

    @property
    def headers(self) -> dict[str, str]:
        """What goes with it."""
        return {"ETag": self.tag, "Cache-Control": CACHE_CONTROL}


async def read_status(
    service: ServerContext, tenant: str, run_id: str, profile: str | None, if_none_match: str | None
) -> StatusResponse:
    """The status of a run, or just its tag where the caller has seen it."""
    if profile is not None:
        profiles.get(profile)
    glance = await service.status_batcher.at(ids.run_int(run_id), tenant)
    tag = make_etag(glance.version, profile)
    if matches_etag(if_none_match, tag):
        return StatusResponse(tag, None)
    views = RunReader(service.engine.store, tenant)
    body: Any
    if profile == status_document.PROFILE:
        body = await status_document.read_status_document(
            service.engine.store, glance, await views.word(glance, profile)
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
