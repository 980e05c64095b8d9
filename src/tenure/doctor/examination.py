"""Loads the rows of runs and examines them.

Laws:
1. Nothing is locked: a run whose version changed while it was read is read again.
2. Runs are read by id in pages, so that memory does not grow with the database.
3. With an inline store nothing is ever awaited, so `run_inline` runs the same code without an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from hashlib import blake2b, sha256
from typing import Any, TypeVar

import msgspec

from tenure.artifacts import ArtifactStore
from tenure.doctor import INVARIANTS, DatabaseSummary, RunDump, Violation, check_database, check_run
from tenure.doctor.admin_chain_check import find_broken_chains
from tenure.doctor.database_checks import LeaseCount, RatedStart, WriteCount
from tenure.doctor.feed_check import FeedCheck
from tenure.doctor.history import missing_payloads
from tenure.doctor.ledger_check import find_broken_ledgers
from tenure.doctor.secret_check import find_inline_secrets
from tenure.errors import TenureError
from tenure.kernel.act_rows import KEY_HOLDING_RECEIPT
from tenure.kernel.run_rows import RunRow, RunSpecRow
from tenure.store.port import QueryReader

T = TypeVar("T")

PAGE_RUNS = 500
LOAD_TRIES_MAX = 50
"""How often a run that keeps changing is read before it is left out."""
TRY_AGAIN_SECONDS = 0.02
VIOLATIONS_KEPT_MAX = 1_000
NO_CHECKPOINT = "whether the whole database was replaced, or restored from an old backup: use `tenure ledger check --checkpoint FILE`"
NO_ARTIFACTS = "the contents of large payloads and uploaded artifacts: only their references are compared"


class DoctorReport(msgspec.Struct, kw_only=True):
    """What an examination found."""

    runs: int = 0
    events: int = 0
    found: dict[str, int] = {}
    """Invariant -> how many violations."""
    violations: list[Violation] = []
    """Each of them, up to VIOLATIONS_KEPT_MAX."""
    unsteady: list[int] = []
    """Runs that changed every time they were read."""
    settled: bool = False
    erased: int = 0
    """How many payloads of the histories have been erased: nothing is left to compare."""
    unreached: int = 0
    """How many parts of evidence could not be read from here."""
    only_rows: bool = False
    """Whether no artifact store was given, so that its files were not checked."""

    @property
    def unchecked(self) -> list[str]:
        """What was not checked, in words."""
        found = [NO_CHECKPOINT, NO_ARTIFACTS]
        if self.only_rows:
            found.append(
                "whether evidence is in the artifact store: none is configured; set TENURE_ARTIFACTS"
            )
        if self.unreached:
            found.append(f"{self.unreached} parts of evidence: the artifacts cannot be reached from here")
        if self.erased:
            found.append(
                f"{self.erased} payloads that were erased: nothing is left to compare with their digests"
            )
        if self.unsteady:
            found.append(f"{len(self.unsteady)} runs that changed every time they were read")
        if not self.settled:
            found.append("what holds once everything due is done: use --settled")
        return found

    @property
    def clean(self) -> bool:
        """Whether every invariant that was checked holds."""
        return not self.found

    @property
    def checked(self) -> list[str]:
        """The numbers that were checked."""
        left_out = ("elsewhere",) if self.settled else ("elsewhere", "eventual")
        return [number for number, one in INVARIANTS.items() if one.scope not in left_out]

    @property
    def elsewhere(self) -> dict[str, str]:
        """The numbers that no rows can show, and what shows them."""
        return {number: one.shown_by for number, one in INVARIANTS.items() if one.scope == "elsewhere"}

    def add(self, violations: list[Violation]) -> None:
        for violation in violations:
            self.found[violation.number] = self.found.get(violation.number, 0) + 1
            if len(self.violations) < VIOLATIONS_KEPT_MAX:
                self.violations.append(violation)


class RunKeptChanging(Exception):
    """The run changed every time it was read."""


async def load_run_dump(store: QueryReader, run_id: int) -> RunDump | None:
    """All rows of a run as of one moment; None when there is no such run."""
    for _ in range(LOAD_TRIES_MAX):
        found = await store.read("get_run", run_id)
        if not found:
            return None
        run: RunRow = found[0]
        spec = await store.read("get_spec", run_id)
        artifacts = await store.read("artifact_rows_of", run_id)  # before the attempts: expiries only grow
        bundle = RunDump(
            run=run,
            artifacts=artifacts,
            spec=spec[0] if spec else None,
            steps=await store.read("steps_of", run_id),
            attempts=await store.read("attempts_of", run_id),  # after the steps: expiries only grow
            checkpoints=await store.read("checkpoints_of", run_id),
            waits=await store.read("waits_of", run_id),
            approvals=await store.read("approvals_of", run_id),
            inbox=await store.read("inbox_of", run_id),
            children=await store.read("children_of", run_id),
            payloads=await store.read("payloads_of", run_id),
            events=await store.read("events_of", run_id),
            outbox=await store.read("outbox_of", run_id),
            verdicts=await store.read("verdicts_of", run_id),
            receipts=await store.read("receipts_of", run_id),
            run_spends=await store.read("run_spends_of", run_id),
            cost_lines=await store.read("cost_lines_of", run_id),
            evidence=await store.read("evidence_of", run_id),
        )
        if await store.read("get_run", run_id) == [run]:
            return bundle
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
    """Examine every run, and then all of them together.

    `on_progress` is told (runs examined, runs there were). `rates_since`: runs that began before count
    against no rate, for a database whose caps were changed since. With `artifacts`, the bundles that lie there are compared
    with their records.
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
                continue  # deleted meanwhile
            report.runs += 1
            report.events += len(bundle.events)
            report.add(check_run(bundle, settled=settled, now=now))
            report.erased += missing_payloads(bundle)
            if artifacts is not None:
                report.add(await _lost_evidence(artifacts, bundle, report))
            run = bundle.run
            if run.rated and run.admitted_at is not None and run.admitted_at >= (rates_since or 0):
                starts.append(RatedStart(run.admitted_at, run.id, run.tenant, run.workflow))
            keys.see(bundle)
            feed.see(bundle)
            if on_progress is not None:
                on_progress(report.runs, max(total, report.runs))
    report.add(check_database(await _whole(store, starts, keys, feed)))
    return report


async def _lost_evidence(artifacts: ArtifactStore, bundle: RunDump, report: DoctorReport) -> list[Violation]:
    """I52, of what lies among the artifacts; what cannot be reached from here is counted."""
    found = []
    for row in bundle.evidence:
        problem = "its bundle is not what was sealed"
        try:
            if sha256(await artifacts.kept(row.reference.decode())).digest() == row.sha256:
                continue
        except TenureError as refused:
            if refused.code != "ARTIFACT_LOST":
                report.unreached += 1
                continue
            problem = "its bundle is not among the artifacts"
        found.append(Violation("I52", problem, row.run_id, f"evidence {row.no}"))
    return found


async def _whole(
    store: QueryReader, starts: list[RatedStart], keys: _Keys, feed: FeedCheck
) -> DatabaseSummary:
    caps = await store.read("all_caps")
    usage = await store.read("live_usage")
    amiss = await store.read("records_amiss")
    untold, unfounded = await feed.finish(store)
    return DatabaseSummary(
        caps=caps,
        usage=[LeaseCount(row.tenant, row.workflow, row.leases) for row in usage],
        starts=starts,
        same_key=keys.twice,
        other_request=[(row.run_id, row.name) for row in amiss if row.other_request],
        other_answer=[(row.run_id, row.name) for row in amiss if row.other_answer],
        same_slot=keys.same_slot,
        same_act=await _still_held(store, keys.same_act),
        wrote=keys.wrote,
        key_holders_twice=[row.run_id for row in await store.read("key_holders_twice")],
        orphans=[row.run_id for row in await store.read("orphan_rows")],
        lost_specs=[row.run_id for row in await store.read("lost_specs")],
        untold=untold,
        unfounded=unfounded,
        broken_chains=await find_broken_chains(store),
        bare_secrets=await find_inline_secrets(store),
        broken_ledgers=[(tenant, flaw.place, flaw.text) for tenant, flaw in await find_broken_ledgers(store)],
    )


async def _still_held(store: QueryReader, found: list[tuple[int, int, str]]) -> list[tuple[int, str]]:
    """Those that hold a key together now: one may have been taken back after it was read, and the other begun before that."""
    held = []
    for run_id, other, name in found:
        rows = [row for one in (run_id, other) for row in await store.read("receipts_of", one)]
        if sum(row.name == name and row.state in KEY_HOLDING_RECEIPT for row in rows) > 1:
            held.append((run_id, name))
    return held


class _Keys:
    """Idempotency keys, slots and keys of actions seen so far, sixteen bytes each; and who has written."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self.twice: list[tuple[int, str]] = []
        self.same_slot: list[tuple[int, str]] = []
        self._acts: dict[bytes, int] = {}
        self.same_act: list[tuple[int, int, str]] = []
        """(run, another one, the key that a receipt of each held when it was read)."""
        self.wrote: list[WriteCount] = []

    def see(self, bundle: RunDump) -> None:
        self._see_acts(bundle)
        spec = bundle.spec
        if spec is None or spec.idempotency_key is None:
            return
        key = msgspec.json.encode((spec.tenant, spec.source, spec.idempotency_key))
        short = blake2b(key, digest_size=16).digest()
        if short in self._seen:
            self.twice.append((bundle.run.id, spec.idempotency_key))
        self._seen.add(short)
        self._see_slot(bundle.run.id, spec)

    def _see_acts(self, bundle: RunDump) -> None:
        """I37 and I46, of runs that have done something to the world."""
        run = bundle.run
        for receipt in bundle.receipts:
            if receipt.state in KEY_HOLDING_RECEIPT:
                key = msgspec.json.encode((run.tenant, receipt.name))
                short = blake2b(key, digest_size=16).digest()
                other = self._acts.setdefault(short, run.id)
                if other != run.id:
                    self.same_act.append((run.id, other, receipt.name))
        for run_spend in bundle.run_spends:
            if run_spend.writes:
                self.wrote.append(WriteCount(run.id, run.tenant, run.workflow, run_spend.writes))

    def _see_slot(self, run_id: int, spec: RunSpecRow) -> None:
        """I35 by what the run says it was started for, whatever its key is. (A rerun repeats those words.)"""
        if spec.source != "scheduler" or spec.rerun_of is not None or spec.resumed_from is not None:
            return
        slot = msgspec.json.encode((spec.tenant, "slot", spec.trigger_ref, None))
        short = blake2b(slot, digest_size=16).digest()
        if short in self._seen:
            self.same_slot.append((run_id, spec.trigger_ref or ""))
        self._seen.add(short)


def run_inline(task: Coroutine[Any, Any, T]) -> T:
    """What a coroutine over an inline store returns, without an event loop."""
    try:
        task.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    task.close()
    raise RuntimeError("the store had to wait for something: only an inline store answers at once")
