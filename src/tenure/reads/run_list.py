"""Lists of runs, newest first, a page at a time.

Laws:
1. A page begins behind a place, (moment, id) of the last run before it: nothing is lost or repeated at its edges, also
   where many runs share one moment.
2. One index is read (the repository's, else the status's, else the tenant's); the other conditions are looked at here, over
   a bounded number of runs. A page that found fewer than asked for by then says where to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tenure.errors import Detail, TenureError
from tenure.kernel.machines import RUN
from tenure.kernel.run_rows import CLOSED_RUN, RunRow, RunSpecRow
from tenure.reads.cursors import decode_cursor, encode_cursor
from tenure.store.port import Store
from tenure.store.run_lists import RunGlance

FOREVER_US = (1 << 62) - 1
"""Later than any run was or will be made."""
SCANNED_MAX = 5_000
"""Runs that one page looks at for conditions no index has."""
_CHUNK = 500

RunPosition = tuple[int, int]
NEWEST: RunPosition = (FOREVER_US, 0)


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
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
    def is_index_sufficient(self) -> bool:
        """Whether the index that is read decides everything."""
        both = self.repo is not None and self.status is not None
        return not (both or self.workflow is not None or self.labels or self.parked)


def encode_runs_cursor(tenant: str, wanted: RunFilter, place: RunPosition | None) -> str | None:
    """The cursor of a place in a list of runs."""
    return None if place is None else encode_cursor(tenant, "runs", msgspec.to_builtins(wanted), list(place))


def decode_runs_cursor(cursor: str | None, tenant: str, wanted: RunFilter) -> RunPosition:
    """Where a page of runs begins; without a cursor at the newest."""
    if cursor is None:
        return NEWEST
    found = decode_cursor(cursor, tenant, "runs", msgspec.to_builtins(wanted))
    if len(found) != 2 or not all(isinstance(one, int) and 0 <= one < 1 << 63 for one in found):
        raise TenureError("CURSOR_INVALID")
    return found[0], found[1]


def known_steps_total(run: RunRow | RunGlance) -> int:
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


async def read_specs(store: Store, runs: Iterable[RunRow]) -> dict[int, RunSpecRow]:
    """What some runs were asked to be, by their ids."""
    wanted = [(run.id,) for run in runs]
    found: list[RunSpecRow] = await store.read("load_specs", rows=wanted) if wanted else []
    return {spec.run_id: spec for spec in found}


async def read_run_page(
    store: Store, tenant: str, wanted: RunFilter, place: RunPosition, limit: int
) -> tuple[list[RunRow], RunPosition | None]:
    """At most so many runs behind a place, and where the next page begins (None: there is none)."""
    found: list[RunRow] = []
    seen = 0
    place = min(place, (wanted.before_us, 0))
    size = limit + 1 if wanted.is_index_sufficient else max(_CHUNK, limit + 1)
    while True:
        runs = await _read(store, tenant, wanted, place, size)
        runs = [
            run for run in runs if run.created_at >= wanted.since_us
        ]  # fewer than asked for: the last page
        found += runs if wanted.is_index_sufficient else await _fitting(store, wanted, runs)
        if len(found) > limit:
            last = found[limit - 1]
            return found[:limit], (last.created_at, last.id)
        if len(runs) < size:
            return found, None
        place = (runs[-1].created_at, runs[-1].id)
        seen += len(runs)
        if seen >= SCANNED_MAX:
            return found, place


async def _read(store: Store, tenant: str, wanted: RunFilter, place: RunPosition, size: int) -> list[RunRow]:
    rest = (*place, size)
    rows: list[RunRow]
    if wanted.repo is not None:
        rows = await store.read("runs_page_by_repo", tenant, wanted.repo, *rest)
    elif wanted.status is not None:
        rows = await store.read("runs_page_by_status", tenant, wanted.status, *rest)
    else:
        rows = await store.read("runs_page", tenant, *rest)
    return rows


async def _fitting(store: Store, wanted: RunFilter, runs: list[RunRow]) -> list[RunRow]:
    fits = [run for run in runs if wanted.status in (None, run.status)]
    fits = [run for run in fits if wanted.workflow in (None, run.workflow)]
    if wanted.parked:
        fits = [run for run in fits if run.parked is not None and run.status not in CLOSED_RUN]
    if wanted.labels:
        specs = await read_specs(store, fits)
        fits = [run for run in fits if run.id in specs and _has(specs[run.id], wanted.labels)]
    return fits


def _has(spec: RunSpecRow, labels: Mapping[str, str]) -> bool:
    """Whether a run has all of these labels."""
    given = msgspec.json.decode(spec.labels)
    return all(str(given.get(key)) == value for key, value in labels.items())
