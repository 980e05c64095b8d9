"""How a run is, answered cheaply: the answer to `GET /runs/{id}/status`, in any profile's words and shape.

Law: what is answered is a function of the run's version and the profile; so is its ETag.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import ids
from tenure.kernel import profiles
from tenure.orchestrator import status_json
from tenure.orchestrator.listing import steps_known
from tenure.orchestrator.step_views import maybe, moment
from tenure.orchestrator.views import Views
from tenure.server.http.etags import seen, tag_of

if TYPE_CHECKING:
    from tenure.server.service import Service


CACHED = "private, no-cache"
"""Browsers may keep an answer, if they ask each time whether it still holds."""


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
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


class Looked(msgspec.Struct, frozen=True):
    """An answer: its tag, and its body unless that was seen already."""

    tag: str
    body: StatusView | status_json.StatusDocument | None

    @property
    def headers(self) -> dict[str, str]:
        """What goes with it."""
        return {"ETag": self.tag, "Cache-Control": CACHED}


async def look(
    service: Service, tenant: str, run_id: str, profile: str | None, if_none_match: str | None
) -> Looked:
    """The status of a run, or just its tag where the caller has seen it."""
    if profile is not None:
        profiles.get(profile)
    glance = await service.looks.at(ids.run_int(run_id), tenant)
    tag = tag_of(glance.version, profile)
    if seen(if_none_match, tag):
        return Looked(tag, None)
    views = Views(service.engine.store, tenant)
    body: Any
    if profile == status_json.PROFILE:
        body = await status_json.status_document(
            service.engine.store, glance, await views.word(glance, profile)
        )
    else:
        body = StatusView(
            id=run_id,
            status=glance.status,
            shown=await views.word(glance, profile),
            reason=glance.reason,
            events=glance.version,
            steps_total=steps_known(glance),
            steps_done=glance.steps_done,
            steps_skipped=glance.steps_skipped,
            paused=glance.paused,
            parked=glance.parked,
            cancel_requested=glance.cancel_at is not None,
            created_at=moment(glance.created_at),
            started_at=maybe(glance.started_at),
            finished_at=maybe(glance.finished_at),
            updated_at=moment(glance.event_at),
        )
    return Looked(tag, body)
