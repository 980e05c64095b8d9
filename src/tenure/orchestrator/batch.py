"""A batch of commands as one transaction: lock, load, decide each command in turn, save once.

Laws:
1. Commands on one run are decided in the order of their arrival. A decision sees one run only.
2. `decide_cached` uses snapshots of earlier commits and an estimated time. Only what it accepts counts: the save
   checks version, head, lease and time. Commands that were refused, were already done or could not be saved are
   decided again under the lock. (The head is checked because a run can be deleted and created again under its id,
   and reach the same version.)
3. A snapshot leaves the cache before it is used. It returns when its commit is known to have happened, or when
   nothing was decided on it (`RunWork.undecided`).
4. An exception in a decision affects its own command only.
5. If a batch has several creations with one idempotency key, the first is decided and the others are tried again after its
   commit. Then they all get its answer.
6. Work on many rows leaves the event loop's thread: a decision there is bounded (`Snapshot.rows_max`), and a long
   transaction yields `LEAVE_EVENT_LOOP`.
"""

from __future__ import annotations

import traceback
from asyncio import Future
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.kernel import feed
from tenure.kernel.act_commands import IntendAct
from tenure.kernel.commands import (
    AddSteps,
    Admit,
    Command,
    Complete,
    CreateRun,
    ExpireDeadLease,
    LeaseCommand,
    RecordCheckpoint,
    Tick,
)
from tenure.kernel.decide import decide
from tenure.kernel.decide.idempotency import answer_recorded_key, answer_same_key
from tenure.kernel.draft import Chance, Decision
from tenure.kernel.run_rows import CLOSED_RUN, Cap, IdempotencyRow, OutboxRow, Row, RunRow, RunSpecRow
from tenure.kernel.snapshot import DecisionTooLong, Key, NotLoaded, Snapshot
from tenure.limits import ROWS_DECIDED_ON_LOOP_MAX, ROWS_WRITTEN_ON_LOOP_MAX
from tenure.logs import get_logger
from tenure.orchestrator.loader import is_long_load, load_needs
from tenure.store.idempotency import expire_records
from tenure.store.port import (
    LEAVE_EVENT_LOOP,
    AmbiguousCommit,
    DataRejected,
    Query,
    Save,
    Saved,
    StoreRequest,
    Transaction,
    WriteConflict,
)

log = get_logger(__name__)

RUN_GONE = -1
"""In place of a sequence number: a deletion is proven by the absence of its run."""
KeyRecorder = Callable[[RunRow], IdempotencyRow]
"""Makes the record of an idempotency key. The commit that creates the run writes it."""
KeyName = tuple[str, str, str]
"""An idempotency key: (tenant, source, name)."""
UNCACHED_STATUSES = CLOSED_RUN | {"waiting_approval", "waiting_external", "retry_wait"}
"""A waiting run may wait for days, so its snapshot is not kept."""
PLAN_COMMANDS = frozenset({CreateRun, AddSteps, Complete})


class PendingCommand:
    """A submitted command, the future of its answer, and what is known of its commits."""

    __slots__ = (
        "caps",
        "command",
        "deadline",
        "delivery",
        "error",
        "future",
        "long",
        "proofs",
        "record",
        "result",
        "run_id",
    )

    def __init__(
        self,
        command: Command,
        future: Future[Any] | None,
        deadline: float,
        caps: dict[str, Cap] | None,
        delivery: tuple[int, int, int] | None = None,
        record: KeyRecorder | None = None,
    ) -> None:
        self.command = command
        self.run_id: int = command.run_id  # type: ignore[attr-defined]  # every concrete command has one
        self.future = future
        self.deadline = deadline
        self.caps = caps
        """For a creation: the tenant's caps by scope. None: the transaction reads them."""
        self.delivery = delivery
        self.record = record
        self.long = type(command) in PLAN_COMMANDS and len(command.plan or ()) > ROWS_DECIDED_ON_LOOP_MAX  # type: ignore[attr-defined]  # they have one
        """Whether its plan is so long that its decision would hold the event loop."""
        self.result: Any = None
        self.error: Exception | None = None
        self.proofs: tuple[tuple[int, int, bytes, Any], ...] = ()
        """(run, sequence, hash, result) of its event in each commit of unknown fate."""

    @property
    def gate_tenant(self) -> str | None:
        """The tenant whose lock the command needs first, because admission depends on other runs, too."""
        command = self.command
        if isinstance(command, Admit):
            return command.gate_tenant
        if isinstance(command, CreateRun) and (
            command.concurrency_key is not None
            or self.caps is None
            or any(cap.max_runs_per_min is not None for cap in self.caps.values())
        ):
            return command.tenant
        return None


class BatchOutcome(msgspec.Struct):
    done: list[PendingCommand] = []
    again: list[PendingCommand] = []
    snapshots: list[Snapshot] = []
    outbox: list[OutboxRow] = []
    ready: bool = False
    works: list[RunWork] = []
    """What was saved, for the watchers."""
    wrote_feed: bool = False


class RunWork:
    """The commands of one run in a batch, and what was decided about them."""

    __slots__ = (
        "base",
        "decided",
        "deleted",
        "feed_lines",
        "head",
        "items",
        "light",
        "new",
        "rows",
        "snap",
        "touched",
        "undecided",
        "valid_until",
    )

    def __init__(self, snap: Snapshot, items: list[PendingCommand]) -> None:
        self.snap = snap
        self.items = items
        self.base = snap.run.version if snap.run is not None else 0
        self.head = snap.run.head if snap.run is not None else b""
        self.new = snap.run is None
        self.light = not self.new
        self.decided: list[tuple[PendingCommand, Decision, RunRow | None]] = []
        """Each command with its decision and the run before it."""
        self.feed_lines: list[feed.FeedLine] = []
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.touched = False
        self.valid_until: int | None = None
        self.deleted = False
        self.undecided = False
        """Whether nothing was decided on the snapshot: rows are missing, or the command needs the lock."""

    def accept(self, item: PendingCommand, decision: Decision) -> None:
        """Apply a decision to the snapshot: the run's next command is decided on the result."""
        snap = self.snap
        before = snap.run
        if decision.run is not None:
            snap.run = decision.run
            self.touched = True
        if not decision.light:
            self.light = False
        if decision.rows:
            self.touched = True
            self.rows.update(decision.rows)
            for key, row in decision.rows.items():
                snap.put(key, row)
        if decision.event is not None:
            if (line := feed.build_feed_line(snap, before, decision)) is not None:
                self.feed_lines.append(line)
            if item.record is not None and decision.run is not None:
                record = decision.result.record = item.record(decision.run)
                self.rows[record.table, record.tenant, record.source, record.name] = record
        if decision.deleted:
            self.touched = self.deleted = True
            snap.run = None
        self.decided.append((item, decision, before))


def group_by_run(items: list[PendingCommand]) -> dict[int, list[PendingCommand]]:
    by_run: dict[int, list[PendingCommand]] = {}
    for item in items:
        by_run.setdefault(item.run_id, []).append(item)
    return by_run


def _decide_one(work: RunWork, item: PendingCommand, now: int, chance: Chance) -> Decision:
    """Decide a command; a refusal is a decision too. `NotLoaded` and `DecisionTooLong` pass through."""
    try:
        return decide(work.snap, item.command, now, chance)
    except (NotLoaded, DecisionTooLong):
        raise
    except TenureError as refused:
        return Decision(None, error=refused)
    except Exception as broken:
        log.error(
            "decision_failed",
            command=type(item.command).__name__,
            run_id=item.run_id,
            traceback=traceback.format_exc(),
        )
        return Decision(
            None,
            error=TenureError("INTERNAL_ERROR", f"deciding {type(item.command).__name__} failed: {broken!r}"),
        )


# ------------------------------------------------------------------------------ on cached snapshots


TIME_COMMANDS = (Tick, ExpireDeadLease)


def decide_cached(work: RunWork, now: int, chance: Chance) -> bool:
    """Decide a run's commands on a cached snapshot, from the first undecided one on. False: they need the lock.
    After `DecisionTooLong` the caller continues in a thread."""
    work.undecided = False
    # These always need the lock: a delivery deletes its outbox row in the commit, a command with proofs may have happened already,
    # and another process's heartbeat moves the moment of a tick without a new version of the run.
    for item in work.items:
        if item.delivery is not None or item.proofs or isinstance(item.command, TIME_COMMANDS):
            work.undecided = True
            return False
    for item in work.items[len(work.decided) :]:
        command = item.command
        if isinstance(command, LeaseCommand):
            attempt = work.snap.attempts.get((command.idx, command.n))
            if attempt is None:
                return False
            if work.valid_until is None or attempt.expires_at < work.valid_until:
                work.valid_until = attempt.expires_at
        try:
            decision = decide(work.snap, command, now, chance)
        except DecisionTooLong:
            work.undecided = not work.decided
            raise
        except NotLoaded:
            work.undecided = not work.decided
            return False
        except Exception:
            return False
        if decision.event is None or decision.error is not None:
            return False
        work.accept(item, decision)
    return True


def _is_delivered(item: PendingCommand, decision: Decision) -> bool:
    """Whether the outbox row can be deleted: its command took effect, or never will. The row of a child that cannot
    be created stays, because another command has to tell its parent."""
    error = decision.error
    return error is None or not (
        error.retryable or error.code == "INTERNAL_ERROR" or isinstance(item.command, CreateRun)
    )


def build_save(works: list[RunWork], estimate_us: int | None) -> Save:
    tables: dict[str, list[Row]] = {}
    events: list[Row] = []
    outbox: list[Row] = []
    save = Save(estimate_us=estimate_us, rows=tables)
    for work in works:
        for item, made, _ in work.decided:
            if item.delivery and _is_delivered(item, made):
                save.delivered.append(item.delivery)
        if work.deleted:
            save.delete_runs.append(work.snap.run_id)
            save.expect.append((work.snap.run_id, work.base, None))
            save.heads[work.snap.run_id] = work.head
            continue
        run = work.snap.run
        if not work.touched or run is None:
            continue
        if work.new:
            save.new_runs.append(run)
        else:
            save.expect.append((run.id, work.base, work.valid_until))
            save.heads[run.id] = work.head
            save.runs.append(run)
            if work.light:
                save.light.add(run.id)
        for _, made, _ in work.decided:
            if made.event is not None:
                events.append(made.event)
                outbox += made.outbox
        if work.feed_lines:
            save.feed.append((run.id, work.feed_lines))
        for key, row in work.rows.items():
            table = key[0]
            if table == "run_spec" and work.new:
                save.new_specs.append(row)  # type: ignore[arg-type]  # the key says which type it is
            elif table in tables:
                tables[table].append(row)
            else:
                tables[table] = [row]
    if events:
        tables["event"] = events
    if outbox:
        tables["outbox"] = outbox
    return save


def is_long_save(works: list[RunWork]) -> bool:
    """Whether the save would hold the event loop. A deletion counts as long: the rows of the run are not counted."""
    rows = 0
    for work in works:
        rows += len(work.rows)
        if work.deleted:
            return True
    return rows > ROWS_WRITTEN_ON_LOOP_MAX


def save_cached(works: list[RunWork], estimate_us: int, *, long: bool = False) -> Transaction[Saved]:
    """The transaction that saves what was decided on cached snapshots."""
    if long:
        yield LEAVE_EVENT_LOOP
    saved: Saved = yield build_save(works, estimate_us)
    return saved


def sort_outcomes(works: list[RunWork], saved: Saved, outcome: BatchOutcome) -> None:
    """Sort the decided commands: saved ones are done, the others are decided again. Keeps the snapshots of active runs."""
    for work in works:
        if work.touched and work.snap.run_id not in saved.ids:
            outcome.again += [item for item, _, _ in work.decided]
            continue
        for item, decision, _ in work.decided:
            item.result = decision.result
            item.error = decision.error
            outcome.done.append(item)
            outcome.ready = outcome.ready or decision.ready
            outcome.outbox += decision.outbox
        outcome.works.append(work)
        outcome.wrote_feed = outcome.wrote_feed or bool(work.feed_lines)
        snap = work.snap
        if snap.run is not None and snap.run.status not in UNCACHED_STATUSES:
            snap.facts = snap.rows_max = None
            snap.trim()
            outcome.snapshots.append(snap)


def remember_proofs(works: list[RunWork]) -> None:
    """Keep the event hashes by which a commit of unknown fate is recognised later."""
    for work in works:
        for item, decision, _ in work.decided:
            event = decision.event
            if event is not None:
                item.proofs += ((event.run_id, event.seq, event.hash, decision.result),)
            elif decision.deleted:
                item.proofs += ((work.snap.run_id, RUN_GONE, b"", decision.result),)


def unsaved_commands(works: list[RunWork], fault: Exception) -> list[PendingCommand]:
    """The commands of a failed save. Each is decided again under the lock."""
    if isinstance(fault, AmbiguousCommit):
        remember_proofs(works)
    elif not isinstance(fault, WriteConflict | DataRejected | TenureError):
        log.error("save_failed", error=repr(fault))
    return [item for work in works for item in work.items]


def store_failure_error(fault: Exception) -> TenureError:
    """The error for a command that makes the store fail by itself."""
    if isinstance(fault, DataRejected):
        return TenureError("INVALID_INPUT", f"the database rejected a value: {fault}")
    log.error("commit_failed", error=repr(fault), traceback=traceback.format_exc())
    return TenureError("INTERNAL_ERROR", f"the commit failed: {fault!r}")


def is_lost_race(item: PendingCommand, fault: Exception) -> bool:
    """Whether another run took the act's key between the decision and the save. The next decision sees the holder."""
    return isinstance(fault, DataRejected) and isinstance(item.command, IntendAct)


# ------------------------------------------------------------------------------------ under the lock


def commit_locked(
    items: list[PendingCommand], cached: dict[int, Snapshot], chance: Chance, works_out: list[RunWork]
) -> Transaction[BatchOutcome]:
    """Lock the tenants and runs, load, decide, save. `works_out` is for `remember_proofs`."""
    outcome = BatchOutcome()
    works_out.clear()
    yield from _read_caps(items)
    tenants = sorted({t for item in items if (t := item.gate_tenant) is not None})
    if tenants:
        yield Query("lock_tenants", [(t,) for t in tenants])
    by_run = group_by_run(items)
    runs: list[RunRow] = yield Query("lock_runs", [(run_id,) for run_id in sorted(by_run)])
    found = {run.id: run for run in runs}
    now: int = (yield Query("now"))[0].now_us
    yield from _answer_proven(items, found, outcome)
    yield from _answer_used_keys(items, found, now, outcome)
    works = works_out
    settled = {id(item) for item in (*outcome.done, *outcome.again)}
    for run_id, items_of_run in by_run.items():
        if left := [item for item in items_of_run if id(item) not in settled]:
            works.append(RunWork(_snapshot(run_id, found.get(run_id), cached, left), left))
    if any(item.long for work in works for item in work.items):
        yield from _leave_event_loop(works)
    yield from load_needs([(work.snap, _expected_needs(work)) for work in works], now)
    yield from _decide_all(works, now, chance)
    if is_long_save(works):
        yield LEAVE_EVENT_LOOP
    saved: Saved = yield build_save(works, None)
    sort_outcomes(works, saved, outcome)
    return outcome


def _read_caps(items: list[PendingCommand]) -> Generator[Query | Save, Any, None]:
    """Read the caps of tenants that the cap cache did not know."""
    unknown = [item for item in items if item.caps is None and isinstance(item.command, CreateRun)]
    if not unknown:
        return
    found: dict[str, dict[str, Cap]] = {}
    for cap in (yield Query("caps", sorted({(item.command.tenant,) for item in unknown}))):  # type: ignore[attr-defined]  # creations
        found.setdefault(cap.tenant, {})[cap.scope] = cap
    for item in unknown:
        item.caps = found.get(item.command.tenant, {})  # type: ignore[attr-defined]  # creations


def _snapshot(
    run_id: int, run: RunRow | None, cached: dict[int, Snapshot], items: list[PendingCommand]
) -> Snapshot:
    snap = cached.get(run_id)
    if run is None:
        snap = Snapshot.of_new_run(run_id)
    elif snap is None or snap.run is None or snap.run.head != run.head:
        snap = Snapshot(run_id, run)
    else:
        snap.run = run
        snap.forget_attempts()
        snap.outside.clear()  # it may be left from an earlier try of this transaction
    snap.caps = items[0].caps or {}
    snap.rows_max = ROWS_DECIDED_ON_LOOP_MAX
    return snap


def _leave_event_loop(works: list[RunWork]) -> Generator[StoreRequest, Any, None]:
    """Continue in a store's thread, where a decision may read any number of rows."""
    yield LEAVE_EVENT_LOOP
    for work in works:
        work.snap.rows_max = None


def _expected_needs(work: RunWork) -> tuple[Key, ...]:
    """The rows that these commands certainly need, to be loaded in the first round."""
    snap = work.snap
    keys: set[Key] = set()
    if snap.run is not None:
        for item in work.items:
            command = item.command
            if isinstance(command, LeaseCommand | ExpireDeadLease):
                if command.idx not in snap.steps:
                    keys.add(("step", command.idx))
                keys.add(("attempt", command.idx, command.n))
                if isinstance(command, RecordCheckpoint) and ("all_checkpoints",) not in snap.known:
                    keys.add(("checkpoint", command.idx, command.name))
            elif isinstance(command, Tick) and command.entity == "step" and command.at not in snap.steps:
                keys.add(("step", command.at))
    return tuple(keys - snap.known)


def _decide_all(works: list[RunWork], now: int, chance: Chance) -> Generator[StoreRequest, Any, None]:
    """Decide run by run, loading rows until no decision misses any."""
    left = [(work, 0) for work in works]
    while True:  # it ends: loaded rows are never asked for again
        needs: list[tuple[Snapshot, tuple[Key, ...]]] = []
        waiting: list[tuple[RunWork, int]] = []
        for work, position in left:
            while position < len(work.items):
                item = work.items[position]
                try:
                    decision = _decide_one(work, item, now, chance)
                except DecisionTooLong:
                    yield from _leave_event_loop(works)
                    continue
                except NotLoaded as need:
                    needs.append((work.snap, need.keys))
                    waiting.append((work, position))
                    break
                work.accept(item, decision)
                position += 1
        if not needs:
            return
        if any(is_long_load(snap, keys) for snap, keys in needs):
            yield from _leave_event_loop(works)
        yield from load_needs(needs, now)
        left = waiting


def _answer_proven(
    items: list[PendingCommand], found: dict[int, RunRow], outcome: BatchOutcome
) -> Generator[Query | Save, Any, None]:
    """Answer the commands whose earlier commit turns out to have happened."""
    proofs = {(run_id, seq) for item in items for run_id, seq, _, _ in item.proofs}
    if not proofs:
        return
    events = sorted(proof for proof in proofs if proof[1] != RUN_GONE)
    happened = {(row.run_id, row.seq, row.hash) for row in (yield Query("load_event_hashes", events))}
    happened |= {(run_id, RUN_GONE, b"") for run_id, seq in proofs if seq == RUN_GONE and run_id not in found}
    for item in items:
        for run_id, seq, proof, result in item.proofs:
            if (run_id, seq, proof) in happened:
                item.result = result
                outcome.done.append(item)
                break


# ---------------------------------------------------------------------------------- idempotency keys


def _answer_used_keys(
    items: list[PendingCommand], found: dict[int, RunRow], now: int, outcome: BatchOutcome
) -> Generator[Query | Save, Any, None]:
    """Answer the creations whose idempotency key was used before (law 5)."""
    creating: dict[KeyName, list[PendingCommand]] = {}
    answered = {id(item) for item in outcome.done}
    for item in items:
        command = item.command
        if (
            isinstance(command, CreateRun)
            and command.idempotency_key is not None
            and id(item) not in answered
        ):
            key = (command.tenant, command.source, command.idempotency_key)
            creating.setdefault(key, []).append(item)
    if not creating:
        return
    # One commit writes run and record, and it may happen between two of these queries. Runs are read first, so that a run is
    # never found without its record; then again for new records, so that a record is never found without its run.
    made = yield from _find_specs(list(creating))
    records = yield from _load_records(creating, now)
    made |= yield from _find_specs([key for key in records if key not in made])
    for key, asking in creating.items():
        spec, record = made.get(key), records.get(key)
        if spec is None and record is None:
            outcome.again += asking[1:]
            continue
        run = None if spec is None else found.get(spec.run_id)
        if run is None and spec is not None:
            run = next(iter((yield Query("get_run", (), (spec.run_id,)))), None)
        for item in asking:
            _answer_key(item, spec, run, record, now)
        outcome.done += asking


def _find_specs(keys: list[KeyName]) -> Generator[Query | Save, Any, dict[KeyName, RunSpecRow]]:
    """The specs of the runs that were created with these keys."""
    specs: list[RunSpecRow] = (yield Query("find_keys", keys)) if keys else []
    return {(spec.tenant, spec.source, spec.idempotency_key or ""): spec for spec in specs}


def _answer_key(
    item: PendingCommand, spec: RunSpecRow | None, run: RunRow | None, record: IdempotencyRow | None, now: int
) -> None:
    command = item.command
    assert isinstance(command, CreateRun)
    try:
        if item.record is None and spec is not None:
            item.result = answer_same_key(command, spec, run, now)
        else:
            item.result = answer_recorded_key(command, spec, run, record)
    except TenureError as refused:
        item.error = refused


def _load_records(
    creating: dict[KeyName, list[PendingCommand]], now: int
) -> Generator[Query | Save, Any, dict[KeyName, IdempotencyRow]]:
    """The records of the keys for which a creation writes one. Expired records are deleted."""
    keys = [key for key, asking in creating.items() if any(item.record is not None for item in asking)]
    if not keys:
        return {}
    expire_records((yield Query("drop_past_keys", keys, (now,))))
    rows: list[IdempotencyRow] = yield Query("key_records", keys)
    return {(row.tenant, row.source, row.name): row for row in rows}
