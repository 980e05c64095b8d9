"""Loads the rows of runs and examines them.

Laws:
1. Nothing is locked. If a run's version changes while it is read, the run is read again.
2. Runs are read by id in pages, so that memory does not grow with the database.
3. An inline store never waits, so `run_inline` runs the same code without an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from hashlib import blake2b, sha256
from typing import Any, TypeVar

import msgspec

from tenure import ids
from tenure.artifacts import ArtifactStore, body_path
from tenure.doctor import INVARIANTS, DatabaseSummary, RunDump, Violation, check_database, check_run
from tenure.doctor.checked_run import RUN_QUERIES
from tenure.doctor.database_checks import LeaseCount, RatedStart, WriteCount
from tenure.doctor.feed_check import FeedCheck
from tenure.doctor.history import missing_payloads
from tenure.doctor.ledger_check import find_broken_ledgers
from tenure.doctor.tenant_checks import find_broken_chains, find_inline_secrets
from tenure.errors import TenureError
from tenure.kernel.act_rows import KEY_HOLDING_RECEIPT
from tenure.kernel.artifact_rules import log_chunk_path, part_path, upload_folder
from tenure.kernel.run_rows import RunRow, RunSpecRow
from tenure.store.port import QueryReader

T = TypeVar("T")

PAGE_RUNS = 500
LOAD_TRIES_MAX = 50
"""A run that changed during this many reads is left out."""
TRY_AGAIN_SECONDS = 0.02
VIOLATIONS_KEPT_MAX = 1_000
NO_CHECKPOINT = "whether the whole database was replaced, or restored from an old backup: use `tenure ledger check --checkpoint FILE`"
NO_ARTIFACTS = (
    "the contents of large payloads, logs and uploaded artifacts: only references and sizes are compared"
)


class DoctorReport(msgspec.Struct, kw_only=True):
    """The result of an examination."""

    runs: int = 0
    events: int = 0
    found: dict[str, int] = {}
    """Invariant -> the number of violations."""
    violations: list[Violation] = []
    """The first VIOLATIONS_KEPT_MAX violations."""
    unsteady: list[int] = []
    """Runs that changed every time they were read."""
    settled: bool = False
    erased: int = 0
    """How many payloads were erased, so that their digests could not be compared."""
    unreached: int = 0
    """How many parts of evidence, and folders of runs, could not be read from the artifact store."""
    only_rows: bool = False
    """Whether no artifact store was given, so that its files were not checked."""

    @property
    def unchecked(self) -> list[str]:
        """Descriptions of what was not checked."""
        optional = (
            (
                self.only_rows,
                "whether evidence is in the artifact store: none is configured; set TENURE_ARTIFACTS",
            ),
            (
                self.unreached,
                f"{self.unreached} parts of evidence or folders of files: the artifacts cannot be reached from here",
            ),
            (
                self.erased,
                f"{self.erased} payloads that were erased: nothing is left to compare with their digests",
            ),
            (self.unsteady, f"{len(self.unsteady)} runs that changed every time they were read"),
            (not self.settled, "what holds once everything due is done: use --settled"),
        )
        return [NO_CHECKPOINT, NO_ARTIFACTS, *(text for applies, text in optional if applies)]

    @property
    def clean(self) -> bool:
        """Whether every invariant that was checked holds."""
        return not self.found

    @property
    def checked(self) -> list[str]:
        """The numbers of the checked invariants."""
        left_out = ("elsewhere",) if self.settled else ("elsewhere", "eventual")
        return [number for number, one in INVARIANTS.items() if one.scope not in left_out]

    @property
    def elsewhere(self) -> dict[str, str]:
        """The numbers of the invariants that no rows can show, and what shows them."""
        return {number: one.shown_by for number, one in INVARIANTS.items() if one.scope == "elsewhere"}

    def add(self, violations: list[Violation]) -> None:
        for violation in violations:
            self.found[violation.number] = self.found.get(violation.number, 0) + 1
            if len(self.violations) < VIOLATIONS_KEPT_MAX:
                self.violations.append(violation)


class RunKeptChanging(Exception):
    """The run changed every time it was read."""


async def load_run_dump(store: QueryReader, run_id: int) -> RunDump | None:
    """All rows of a run as of one moment; None if there is no such run."""
    for _ in range(LOAD_TRIES_MAX):
        runs: list[RunRow] = await store.read("get_run", run_id)
        if not runs:
            return None
        specs: list[RunSpecRow] = await store.read("get_spec", run_id)
        rows = {field: await store.read(query, run_id) for field, query in RUN_QUERIES.items()}
        if await store.read("get_run", run_id) == runs:
            return RunDump(run=runs[0], spec=next(iter(specs), None), **rows)
        await asyncio.sleep(TRY_AGAIN_SECONDS)
    raise RunKeptChanging(run_id)


async def examine_database(
    store: QueryReader,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    settled: bool = False,
    rates_since: int | None = None,
    artifacts: ArtifactStore | None = None,
) -> DoctorReport:
    """Examine each run, and then all runs together.

    `on_progress` is called with the number of examined runs and the number of all runs. Runs that began before `rates_since` count against
    no rate, for a database whose caps have changed since. With `artifacts`, the bundles and files in that store are compared with their rows.
    """
    report = DoctorReport(settled=settled, only_rows=artifacts is None)
    now: int = (await store.read("now"))[0].now_us
    total = next(size.rows for size in await store.read("sizes") if size.table == "run")
    starts: list[RatedStart] = []
    keys = _Keys()
    feed = await FeedCheck.begin(store)
    after = -1
    while page := await store.read("run_ids_after", after, PAGE_RUNS):
        for entry in page:
            after = entry.run_id
            try:
                bundle = await load_run_dump(store, after)
            except RunKeptChanging:
                report.unsteady.append(after)
                continue
            if bundle is None:
                continue  # it was deleted meanwhile
            report.runs += 1
            report.events += len(bundle.events)
            report.add(check_run(bundle, settled=settled, now=now))
            report.erased += missing_payloads(bundle)
            if artifacts is not None:
                report.add(await _lost_evidence(artifacts, bundle, report))
                report.add(await _lost_files(artifacts, bundle, now, report))
            run = bundle.run
            if run.rated and run.admitted_at is not None and run.admitted_at >= (rates_since or 0):
                starts.append(RatedStart(run.admitted_at, run.id, run.tenant, run.workflow))
            keys.see(bundle)
            feed.see(bundle)
            if on_progress is not None:
                on_progress(report.runs, max(total, report.runs))
    report.add(check_database(await _summarize(store, starts, keys, feed)))
    return report


async def _lost_evidence(artifacts: ArtifactStore, bundle: RunDump, report: DoctorReport) -> list[Violation]:
    """I52 for the bundles in the artifact store. Those that cannot be read are counted."""
    found = []
    for row in bundle.evidence:
        problem = "its bundle is not the one that was sealed"
        try:
            if sha256(await artifacts.kept(row.reference.decode())).digest() == row.sha256:
                continue
        except TenureError as refused:
            if refused.code != "ARTIFACT_LOST":
                report.unreached += 1
                continue
            problem = "its bundle is not in the artifact store"
        found.append(Violation("I52", problem, row.run_id, f"evidence {row.no}"))
    return found


async def _lost_files(
    artifacts: ArtifactStore, bundle: RunDump, now: int, report: DoctorReport
) -> list[Violation]:
    """I56 for the files in the artifact store: each is there, and has the size that its row says."""
    run = ids.run_text(bundle.run.id)
    expected = {
        log_chunk_path(run, row.idx, row.n, row.seq, row.digest): (
            f"log chunk {row.seq} of {row.idx}/{row.n}",
            row.size,
        )
        for row in bundle.log_chunks
    }
    for row in bundle.artifacts:
        if row.expires_at is not None and row.expires_at <= now:
            continue
        place = f"artifact {row.name!r} of {row.idx}/{row.n}"
        if not row.upload:
            expected[body_path(run, row.digest)] = (place, row.size)
        folder = upload_folder("artifact", run, row.upload)
        for part in bundle.upload_parts:
            if part.upload == row.upload:
                expected[part_path(folder, part.no, part.digest)] = (f"part {part.no} of {place}", part.size)
    if not expected:
        return []
    try:
        sizes = await artifacts.list_sizes(f"{run}/")
    except TenureError:
        report.unreached += 1
        return []
    return [
        Violation(
            "I56",
            "its file is not in the artifact store"
            if path not in sizes
            else f"has {size} bytes; its file in the artifact store has {sizes[path]}",
            bundle.run.id,
            place,
        )
        for path, (place, size) in expected.items()
        if sizes.get(path) != size
    ]


async def _summarize(
    store: QueryReader, starts: list[RatedStart], keys: _Keys, feed: FeedCheck
) -> DatabaseSummary:
    amiss = await store.read("records_amiss")
    not_in_feed, feed_without_event = await feed.finish(store)
    return DatabaseSummary(
        caps=await store.read("all_caps"),
        usage=[LeaseCount(row.tenant, row.workflow, row.leases) for row in await store.read("live_usage")],
        starts=starts,
        same_key=keys.same_key,
        other_request=[(row.run_id, row.name) for row in amiss if row.other_request],
        other_answer=[(row.run_id, row.name) for row in amiss if row.other_answer],
        same_slot=keys.same_slot,
        same_act=await _still_held(store, keys.same_act),
        wrote=keys.wrote,
        key_holders_twice=[row.run_id for row in await store.read("key_holders_twice")],
        orphans=[row.run_id for row in await store.read("orphan_rows")],
        lost_specs=[row.run_id for row in await store.read("lost_specs")],
        not_in_feed=not_in_feed,
        feed_without_event=feed_without_event,
        broken_chains=await find_broken_chains(store),
        inline_secrets=await find_inline_secrets(store),
        broken_ledgers=[(tenant, flaw.place, flaw.text) for tenant, flaw in await find_broken_ledgers(store)],
    )


async def _still_held(store: QueryReader, found: list[tuple[int, int, str]]) -> list[tuple[int, str]]:
    """The pairs that still share a key. A receipt may have been reversed after its run was read, and the other run's key been taken since."""
    held = []
    for run_id, other, name in found:
        rows = [row for one in (run_id, other) for row in await store.read("receipts_of", one)]
        if sum(row.name == name and row.state in KEY_HOLDING_RECEIPT for row in rows) > 1:
            held.append((run_id, name))
    return held


class _Keys:
    """The idempotency keys, slots and action keys seen so far, sixteen bytes each, and the writes of each run."""

    def __init__(self) -> None:
        self._holders: dict[bytes, int] = {}
        self.same_key: list[tuple[int, str]] = []
        self.same_slot: list[tuple[int, str]] = []
        self.same_act: list[tuple[int, int, str]] = []
        """(run, another run, the key that a receipt of each held when it was read)."""
        self.wrote: list[WriteCount] = []

    def _other_holder(self, run_id: int, *key: str | None) -> int | None:
        """Another run with the same key, if one was seen before."""
        short = blake2b(msgspec.json.encode(key), digest_size=16).digest()
        holder = self._holders.setdefault(short, run_id)
        return None if holder == run_id else holder

    def see(self, bundle: RunDump) -> None:
        run, spec = bundle.run, bundle.spec
        for receipt in bundle.receipts:  # I37
            if receipt.state in KEY_HOLDING_RECEIPT:
                other = self._other_holder(run.id, "act", run.tenant, receipt.name)
                if other is not None:
                    self.same_act.append((run.id, other, receipt.name))
        for run_spend in bundle.run_spends:  # I46
            if run_spend.writes:
                self.wrote.append(WriteCount(run.id, run.tenant, run.workflow, run_spend.writes))
        if spec is None or spec.idempotency_key is None:
            return
        if self._other_holder(run.id, "key", spec.tenant, spec.source, spec.idempotency_key) is not None:
            self.same_key.append((run.id, spec.idempotency_key))
        # I35: a run names its slot whatever its key is. A rerun repeats the name.
        if (
            spec.source == "scheduler"
            and spec.rerun_of is None
            and spec.resumed_from is None
            and self._other_holder(run.id, "slot", spec.tenant, spec.trigger_ref) is not None
        ):
            self.same_slot.append((run.id, spec.trigger_ref or ""))


def run_inline(task: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine over an inline store, without an event loop."""
    try:
        task.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    task.close()
    raise RuntimeError("the coroutine waited: run_inline needs an inline store")
