"""Lists of runs, newest first, a page at a time.

Laws:
1. A page begins behind a place, (moment, id) of the last run before it: nothing is lost or repeated at its edges, also
   where many runs share one moment.
2. One index is read (the repository's, else the status's, else the tenant's); the other conditions are looked at here, over
   a bounded number of runs. A page that found fewer than asked for by then says where to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from tenure.errors import Detail, TenureError
from tenure.kernel.machines import RUN
from tenure.kernel.model import CLOSED_RUN, Run, RunSpec
from tenure.orchestrator.cursors import cursor_of, place_of
from tenure.store.listing import Glance
from tenure.store.port import Store

FOREVER_US = (1 << 62) - 1
"""Later than any run was or will be made."""
SCANNED_MAX = 5_000
"""Runs that one page looks at for conditions no index has."""
_CHUNK = 500

Place = tuple[int, int]
NEWEST: Place = (FOREVER_US, 0)


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list."""

    id: str
    workflow: str
    profile: str
    status: str
    shown: str
    reason: str | None
    paused: bool
    parked: str | None
    steps_done: int
    steps_total: int
    labels: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None
    seconds: float | None
    workspace: str = "default"
    repo: str | None = None
    started_at: datetime | None = None
    steps_skipped: int = 0
    """Of those that are done: how many were skipped, because their condition was false."""


class RunPage(list[RunLine]):
    """Runs of a list, newest first, and where the next of them are."""

    next_cursor: str | None = None
    """Give it as `cursor` with the same conditions; None: there are no more."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a list; a run fulfils all of them."""

    status: str | None = None
    repo: str | None = None
    workflow: str | None = None
    labels: Mapping[str, str] = {}
    parked: bool = False
    since_us: int = 0
    """Made at this moment or later."""
    before_us: int = FOREVER_US
    """Made before this moment."""

    @property
    def by_index_alone(self) -> bool:
        """Whether the index that is read decides everything."""
        both = self.repo is not None and self.status is not None
        return not (both or self.workflow is not None or self.labels or self.parked)


def runs_cursor(tenant: str, wanted: Wanted, place: Place | None) -> str | None:
    """The cursor of a place in a list of runs."""
    return None if place is None else cursor_of(tenant, "runs", msgspec.to_builtins(wanted), list(place))


def runs_place(cursor: str | None, tenant: str, wanted: Wanted) -> Place:
    """Where a page of runs begins; without a cursor at the newest."""
    if cursor is None:
        return NEWEST
    found = place_of(cursor, tenant, "runs", msgspec.to_builtins(wanted))
    if len(found) != 2 or not all(isinstance(one, int) and 0 <= one < 1 << 63 for one in found):
        raise TenureError("CURSOR_INVALID")
    return found[0], found[1]


def steps_known(run: Run | Glance) -> int:
    """How many steps are known so far. Of a code-first run these are what its one body has done: nobody knows what its
    code will still do."""
    return max(run.steps_total, run.steps_done)


def check_status(status: str | None, field: str = "status") -> None:
    """A status that no run can have is refused: an empty list would look like an answer."""
    if status is not None and status not in RUN.states:
        raise TenureError(
            "INVALID_INPUT",
            f"{status!r} is no status of a run",
            (Detail(field, f"is one of {', '.join(RUN.states)}"),),
        )


async def specs_of(store: Store, runs: Iterable[Run]) -> dict[int, RunSpec]:
    """What some runs were asked to be, by their ids."""
    wanted = [(run.id,) for run in runs]
    found: list[RunSpec] = await store.read("load_specs", rows=wanted) if wanted else []
    return {spec.run_id: spec for spec in found}


async def page(
    store: Store, tenant: str, wanted: Wanted, place: Place, limit: int
) -> tuple[list[Run], Place | None]:
    """At most so many runs behind a place, and where the next page begins (None: there is none)."""
    found: list[Run] = []
    seen = 0
    place = min(place, (wanted.before_us, 0))
    size = limit + 1 if wanted.by_index_alone else max(_CHUNK, limit + 1)
    while True:
        runs = await _read(store, tenant, wanted, place, size)
        runs = [
            run for run in runs if run.created_at >= wanted.since_us
        ]  # fewer than asked for: the last page
        found += runs if wanted.by_index_alone else await _fitting(store, wanted, runs)
        if len(found) > limit:
            last = found[limit - 1]
            return found[:limit], (last.created_at, last.id)
        if len(runs) < size:
            return found, None
        place = (runs[-1].created_at, runs[-1].id)
        seen += len(runs)
        if seen >= SCANNED_MAX:
            return found, place


async def _read(store: Store, tenant: str, wanted: Wanted, place: Place, size: int) -> list[Run]:
    rest = (*place, size)
    rows: list[Run]
    if wanted.repo is not None:
        rows = await store.read("runs_page_by_repo", tenant, wanted.repo, *rest)
    elif wanted.status is not None:
        rows = await store.read("runs_page_by_status", tenant, wanted.status, *rest)
    else:
        rows = await store.read("runs_page", tenant, *rest)
    return rows


async def _fitting(store: Store, wanted: Wanted, runs: list[Run]) -> list[Run]:
    fits = [run for run in runs if wanted.status in (None, run.status)]
    fits = [run for run in fits if wanted.workflow in (None, run.workflow)]
    if wanted.parked:
        fits = [run for run in fits if run.parked is not None and run.status not in CLOSED_RUN]
    if wanted.labels:
        specs = await specs_of(store, fits)
        fits = [run for run in fits if run.id in specs and _has(specs[run.id], wanted.labels)]
    return fits


def _has(spec: RunSpec, labels: Mapping[str, str]) -> bool:
    """Whether a run has all of these labels."""
    given = msgspec.json.decode(spec.labels)
    return all(str(given.get(key)) == value for key, value in labels.items())
