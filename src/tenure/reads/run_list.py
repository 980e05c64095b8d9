"""Lists of runs, newest first, a page at a time.

Laws:
1. A page begins after a position, the (time, id) of the last run of the page before: nothing is lost or repeated at its edges,
   even if many runs have the same time.
2. One index is read (by repository, else by status, else by tenant). The other conditions are checked here, over a bounded
   number of runs. A page that then has fewer runs than its limit still says where the next page begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.run_rows import CLOSED_RUN, RunRow, RunSpecRow
from tenure.reads.cursors import decode_cursor, encode_cursor
from tenure.reads.run_words import is_word_exact, read_run_word, statuses_of_word
from tenure.store.port import Store
from tenure.store.run_lists import RunGlance

FOREVER_US = (1 << 62) - 1
"""Later than any run's creation."""
SCANNED_MAX = 5_000
"""Runs that are checked for one page against conditions without an index."""
_CHUNK = 500

RunPosition = tuple[int, int]
NEWEST: RunPosition = (FOREVER_US, 0)


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a list. A run in the list meets all of them."""

    status: str | None = None
    """A status of the kernel; with a profile, a word of that profile."""
    profile: str | None = None
    repo: str | None = None
    workflow: str | None = None
    labels: Mapping[str, str] = {}
    parked: bool = False
    since_us: int = 0
    """Created at this time or later."""
    before_us: int = FOREVER_US
    """Created before this time."""

    @property
    def is_index_sufficient(self) -> bool:
        """Whether the index that is read covers all conditions."""
        both = self.repo is not None and self.status is not None
        if both or self.workflow is not None or self.labels or self.parked:
            return False
        return self.status is None or is_word_exact(self.status, self.profile)

    @property
    def statuses(self) -> tuple[str, ...]:
        """The kernel's statuses that runs in the list can have; () if the list has no condition on them."""
        return () if self.status is None else statuses_of_word(self.status, self.profile)


def encode_runs_cursor(tenant: str, wanted: RunFilter, place: RunPosition | None) -> str | None:
    return None if place is None else encode_cursor(tenant, "runs", msgspec.to_builtins(wanted), list(place))


def decode_runs_cursor(cursor: str | None, tenant: str, wanted: RunFilter) -> RunPosition:
    """The position of a cursor; without a cursor, the newest run."""
    if cursor is None:
        return NEWEST
    found = decode_cursor(cursor, tenant, "runs", msgspec.to_builtins(wanted))
    if len(found) != 2 or not all(isinstance(one, int) and 0 <= one < 1 << 63 for one in found):
        raise TenureError("CURSOR_INVALID")
    return found[0], found[1]


def known_steps_total(run: RunRow | RunGlance) -> int:
    """How many steps are known so far. For a code-first run these are the finished ones: nothing says what its code will do
    next."""
    return max(run.steps_total, run.steps_done)


def check_status(wanted: RunFilter, field: str = "status") -> None:
    """Refuse an unknown profile, and a status that no run can have in its words."""
    if wanted.profile is not None:
        profiles.get(wanted.profile)
    if wanted.status is not None:
        statuses_of_word(wanted.status, wanted.profile, field)


async def read_specs(store: Store, runs: Iterable[RunRow]) -> dict[int, RunSpecRow]:
    """The specs of runs, by their ids."""
    wanted = [(run.id,) for run in runs]
    found: list[RunSpecRow] = await store.read("load_specs", rows=wanted) if wanted else []
    return {spec.run_id: spec for spec in found}


async def read_run_page(
    store: Store, tenant: str, wanted: RunFilter, place: RunPosition, limit: int
) -> tuple[list[RunRow], RunPosition | None]:
    """At most `limit` runs after a position, and the position of the next page (None: there is none)."""
    found: list[RunRow] = []
    seen = 0
    place = min(place, (wanted.before_us, 0))
    size = limit + 1 if wanted.is_index_sufficient else max(_CHUNK, limit + 1)
    while True:
        runs = [  # fewer than `size`: the last page
            run
            for run in await _read_by_index(store, tenant, wanted, (*place, size))
            if run.created_at >= wanted.since_us
        ]
        found += runs if wanted.is_index_sufficient else await _select_matching(store, wanted, runs)
        if len(found) > limit:
            last = found[limit - 1]
            return found[:limit], (last.created_at, last.id)
        if len(runs) < size:
            return found, None
        place = (runs[-1].created_at, runs[-1].id)
        seen += len(runs)
        if seen >= SCANNED_MAX:
            return found, place


async def _read_by_index(
    store: Store, tenant: str, wanted: RunFilter, page: tuple[int, int, int]
) -> list[RunRow]:
    if wanted.repo is not None:
        return await store.read("runs_page_by_repo", tenant, wanted.repo, *page)
    if not wanted.statuses:
        return await store.read("runs_page", tenant, *page)
    found: list[RunRow] = []
    for status in (
        wanted.statuses
    ):  # each in the order of the list, and each up to a page: the first of all are the page
        found += await store.read("runs_page_by_status", tenant, status, *page)
    found.sort(key=lambda run: (run.created_at, run.id), reverse=True)
    return found[: page[-1]]


async def _select_matching(store: Store, wanted: RunFilter, runs: list[RunRow]) -> list[RunRow]:
    statuses = wanted.statuses
    matching = [
        run
        for run in runs
        if (not statuses or run.status in statuses)
        and wanted.workflow in (None, run.workflow)
        and not (wanted.parked and (run.parked is None or run.status in CLOSED_RUN))
    ]
    if wanted.status is not None and not is_word_exact(wanted.status, wanted.profile):
        assert wanted.profile is not None
        profile = profiles.get(wanted.profile)
        matching = [run for run in matching if await read_run_word(store, run, profile) == wanted.status]
    if not wanted.labels:
        return matching
    specs = await read_specs(store, matching)
    return [run for run in matching if run.id in specs and _has_labels(specs[run.id], wanted.labels)]


def _has_labels(spec: RunSpecRow, labels: Mapping[str, str]) -> bool:
    given = msgspec.json.decode(spec.labels)
    return all(str(given.get(key)) == value for key, value in labels.items())
