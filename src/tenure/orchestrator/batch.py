"""A batch of commands as one transaction: lock, then load, decide each in turn, save once.

Laws:
1. Commands on one run are decided in the order they came; runs do not look at each other.
2. The quick way (`decide_cached`) uses snapshots kept from earlier commits and a time that is an estimate.
   It is believed only where it accepts: the save checks version, head, lease and time, and everything that was
   refused, already done or not saved is decided again under the lock. (The head: a run may be deleted and made anew
   under its id, and come to the same version.)
3. A snapshot is taken out of the cache before it is used and put back only when its commit is known to
   have happened, or when nothing was decided on it (`Work.unused`).
4. An exception in a decision concerns its own command only.
5. What looks at or writes many rows is not done in the event loop's thread: a decision there is bounded (`Snapshot.rows_max`), and
   a transaction that finds itself long says so (`ASIDE`).
"""

from __future__ import annotations

import traceback
from asyncio import Future
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.kernel import feed
from tenure.kernel.actions import IntendAct
from tenure.kernel.commands import (
    AddSteps,
    Admit,
    Command,
    CreateRun,
    HolderDied,
    LeaseMessage,
    PlanReady,
    RecordCheckpoint,
    Tick,
)
from tenure.kernel.decide import decide
from tenure.kernel.draft import Chance, Decision
from tenure.kernel.model import CLOSED_RUN, Cap, Idempotency, Outbox, Row, Run
from tenure.kernel.snapshot import Key, Need, Snapshot, TooLong
from tenure.limits import ROWS_DECIDED_ON_LOOP_MAX, ROWS_WRITTEN_ON_LOOP_MAX
from tenure.logs import get_logger
from tenure.orchestrator.keyed import settle_keys
from tenure.orchestrator.loading import is_long_load, load
from tenure.store.port import (
    ASIDE,
    Ambiguous,
    Conflict,
    Query,
    Rejected,
    Request,
    Save,
    Saved,
    Transaction,
)

log = get_logger(__name__)


GONE = -1
"""In place of a sequence number: the proof of a deletion is that the run is not there."""


Recorder = Callable[[Run], Idempotency]
"""Makes the record of a creation's key, which is written in the commit that makes the run."""


WITH_PLANS = frozenset({CreateRun, AddSteps, PlanReady})
"""Commands that bring steps."""


class Item:
    """A command under way: what it is, who waits for it, and what is known of its fate."""

    __slots__ = (
        "caps",
        "command",
        "deadline",
        "delivery",
        "error",
        "evidence",
        "future",
        "long",
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
        record: Recorder | None = None,
    ) -> None:
        self.command = command
        self.run_id: int = command.run_id  # type: ignore[attr-defined]  # every concrete command has one
        self.future = future
        self.deadline = deadline
        self.caps = caps
        """The tenant's caps by scope, for a creation; None: to be read in the transaction."""
        self.delivery = delivery
        self.record = record
        self.long = type(command) in WITH_PLANS and len(command.plan or ()) > ROWS_DECIDED_ON_LOOP_MAX  # type: ignore[attr-defined]  # they have one
        """Whether it brings so many steps that deciding it would hold the event loop."""
        self.result: Any = None
        self.error: Exception | None = None
        self.evidence: tuple[tuple[int, int, bytes, Any], ...] = ()
        """(run, sequence, hash, result) of its event in each commit whose fate is unknown."""

    @property
    def gate_tenant(self) -> str | None:
        """Whose lock it needs first: admission looks beyond the run."""
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


class Outcome(msgspec.Struct):
    """What a batch came to."""

    done: list[Item] = []
    again: list[Item] = []
    snapshots: list[Snapshot] = []
    outbox: list[Outbox] = []
    ready: bool = False
    works: list[Work] = []
    """What was saved, for whoever watches."""
    told: bool = False
    """Whether the feed has something new."""


class Work:
    """The commands of one run in a batch, and what was decided about them."""

    __slots__ = (
        "base",
        "decided",
        "deleted",
        "head",
        "items",
        "light",
        "new",
        "rows",
        "snap",
        "told",
        "touched",
        "unused",
        "valid_until",
    )

    def __init__(self, snap: Snapshot, items: list[Item]) -> None:
        self.snap = snap
        self.items = items
        self.base = snap.run.version if snap.run is not None else 0
        self.head = snap.run.head if snap.run is not None else b""
        self.new = snap.run is None
        self.light = not self.new
        self.decided: list[tuple[Item, Decision, Run | None]] = []
        """Each with the run as it found it."""
        self.told: list[feed.Line] = []
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.touched = False
        self.valid_until: int | None = None
        self.deleted = False
        self.unused = False
        """Whether nothing was decided on the snapshot, and nothing is wrong with it: it only lacks something, or the lock."""

    def accept(self, item: Item, decision: Decision) -> None:
        """Take a decision's rows over; the next command of the run is decided on top of them."""
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
            if (line := feed.line_of(snap, before, decision)) is not None:
                self.told.append(line)
            if item.record is not None and decision.run is not None:
                record = decision.result.record = item.record(decision.run)
                self.rows[record.table, record.tenant, record.source, record.name] = record
        if decision.deleted:
            self.touched = self.deleted = True
            snap.run = None
        self.decided.append((item, decision, before))


def group(items: list[Item]) -> dict[int, list[Item]]:
    """Items by run, in the order they came."""
    by_run: dict[int, list[Item]] = {}
    for item in items:
        by_run.setdefault(item.run_id, []).append(item)
    return by_run


def _decide_one(work: Work, item: Item, now: int, chance: Chance) -> Decision:
    """A decision, or the refusal as one; Need passes through."""
    try:
        return decide(work.snap, item.command, now, chance)
    except (Need, TooLong):
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
        error = TenureError("INTERNAL_ERROR", f"deciding {type(item.command).__name__} failed: {broken!r}")
        return Decision(None, error=error)


# ------------------------------------------------------------------------------------- the quick way


TICKS = (Tick, HolderDied)


def decide_cached(work: Work, now: int, chance: Chance) -> bool:
    """Decide a run's commands on a cached snapshot, from where it was left; False when it has to be done under the lock.
    TooLong: it was left, to be gone on with in a thread."""
    work.unused = False
    # Under the lock whatever is known of the run: what was delivered is deleted in the commit, so it must be sure; what has a proof may
    # have happened already; and a heartbeat elsewhere may have moved the moment of a tick, without the run's version.
    for item in work.items:
        if item.delivery is not None or item.evidence or isinstance(item.command, TICKS):
            work.unused = True
            return False
    for item in work.items[len(work.decided) :]:
        command = item.command
        if isinstance(command, LeaseMessage):
            attempt = work.snap.attempts.get((command.idx, command.n))
            if attempt is None:
                return False
            if work.valid_until is None or attempt.expires_at < work.valid_until:
                work.valid_until = attempt.expires_at
        try:
            decision = decide(work.snap, command, now, chance)
        except TooLong:
            work.unused = not work.decided
            raise
        except Need:
            work.unused = not work.decided
            return False
        except Exception:
            return False
        if decision.event is None or decision.error is not None:
            return False
        work.accept(item, decision)
    return True


def _is_over(item: Item, decision: Decision) -> bool:
    """Whether a delivery has had its effect or never will: only then is what was owed forgotten. A child that
    cannot be created is still owed to its parent, which is told so by another command."""
    error = decision.error
    if error is None:
        return True
    return not (error.retryable or error.code == "INTERNAL_ERROR" or isinstance(item.command, CreateRun))


def save_of(works: list[Work], estimate_us: int | None) -> Save:
    """One save for everything that was decided."""
    tables: dict[str, list[Row]] = {}
    events: list[Row] = []
    outbox: list[Row] = []
    save = Save(estimate_us=estimate_us, rows=tables)
    for work in works:
        for item, made, _ in work.decided:
            if item.delivery and _is_over(item, made):
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
        if work.told:
            save.feed.append((run.id, work.told))
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


def is_long_save(works: list[Work]) -> bool:
    """Whether writing what was decided would hold the event loop. (What lies beneath a run that is deleted is not counted.)"""
    rows = 0
    for work in works:
        rows += len(work.rows)
        if work.deleted:
            return True
    return rows > ROWS_WRITTEN_ON_LOOP_MAX


def saving(works: list[Work], estimate_us: int, *, aside: bool = False) -> Transaction[Saved]:
    """The transaction that saves what was decided on cached snapshots."""
    if aside:
        yield ASIDE
    saved: Saved = yield save_of(works, estimate_us)
    return saved


def conclude(works: list[Work], saved: Saved, outcome: Outcome) -> None:
    """Sort what was decided into done and to be decided again."""
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
        outcome.told = outcome.told or bool(work.told)
        keep(work.snap, outcome)


WAITING = frozenset({"waiting_approval", "waiting_external", "retry_wait"})


def keep(snap: Snapshot, outcome: Outcome) -> None:
    """Keep the snapshot of a run that goes on. One that waits may do so for days: it is loaded when somebody comes."""
    run = snap.run
    if run is not None and run.status not in CLOSED_RUN and run.status not in WAITING:
        snap.facts = snap.rows_max = None
        snap.trim()
        outcome.snapshots.append(snap)


def remember(works: list[Work]) -> None:
    """Note the proof by which a commit of unknown fate can be recognised later."""
    for work in works:
        for item, decision, _ in work.decided:
            event = decision.event
            if event is not None:
                item.evidence += ((event.run_id, event.seq, event.hash, decision.result),)
            elif decision.deleted:
                item.evidence += ((work.snap.run_id, GONE, b"", decision.result),)


def unsaved(works: list[Work], fault: Exception) -> list[Item]:
    """The items of a save that failed: under the lock each command learns its own fate."""
    if isinstance(fault, Ambiguous):
        remember(works)
    elif not isinstance(fault, Conflict | Rejected | TenureError):
        log.error("save_failed", error=repr(fault))
    return [item for work in works for item in work.items]


def refusal(fault: Exception) -> TenureError:
    """What somebody is told whose command alone makes the store fail."""
    if isinstance(fault, Rejected):
        return TenureError("INVALID_INPUT", f"the database refused it: {fault}")
    log.error("commit_failed", error=repr(fault), traceback=traceback.format_exc())
    return TenureError("INTERNAL_ERROR", f"the commit failed: {fault!r}")


def lost_race(item: Item, fault: Exception) -> bool:
    """Whether somebody else has taken an action's key between the look and the save: the next look finds who has it."""
    return isinstance(fault, Rejected) and isinstance(item.command, IntendAct)


# ------------------------------------------------------------------------------------ under the lock


def locked(
    items: list[Item], cached: dict[int, Snapshot], chance: Chance, works_out: list[Work]
) -> Transaction[Outcome]:
    """The whole way: lock the tenants and runs, load, decide, save. `works_out` is for `remember`."""
    outcome = Outcome()
    works_out.clear()
    yield from _read_caps(items)
    tenants = sorted({t for item in items if (t := item.gate_tenant) is not None})
    if tenants:
        yield Query("lock_tenants", [(t,) for t in tenants])
    by_run = group(items)
    runs: list[Run] = yield Query("lock_runs", [(run_id,) for run_id in sorted(by_run)])
    found = {run.id: run for run in runs}
    now: int = (yield Query("now"))[0].now_us
    yield from _settle_evidence(items, found, outcome)
    yield from settle_keys(items, found, now, outcome)
    works: list[Work] = works_out
    settled = {id(item) for item in (*outcome.done, *outcome.again)}
    for run_id, mine in by_run.items():
        left = [item for item in mine if id(item) not in settled]
        if left:
            works.append(Work(_snapshot(run_id, found.get(run_id), cached, left), left))
    if any(item.long for work in works for item in work.items):
        yield from _go_aside(works)
    yield from load([(work.snap, _surely_needed(work)) for work in works], now)
    yield from _decide_all(works, now, chance)
    if is_long_save(works):
        yield ASIDE
    saved: Saved = yield save_of(works, None)
    conclude(works, saved, outcome)
    return outcome


def _read_caps(items: list[Item]) -> Generator[Query | Save, Any, None]:
    """The caps of the tenants whose remembered ones were too old."""
    unknown = [item for item in items if item.caps is None and isinstance(item.command, CreateRun)]
    if not unknown:
        return
    found: dict[str, dict[str, Cap]] = {}
    for cap in (yield Query("caps", sorted({(item.command.tenant,) for item in unknown}))):  # type: ignore[attr-defined]  # creations
        found.setdefault(cap.tenant, {})[cap.scope] = cap
    for item in unknown:
        item.caps = found.get(item.command.tenant, {})  # type: ignore[attr-defined]  # creations


def _snapshot(run_id: int, run: Run | None, cached: dict[int, Snapshot], items: list[Item]) -> Snapshot:
    snap = cached.get(run_id)
    if run is None:
        snap = Snapshot.of_new_run(run_id)
    elif snap is None or snap.run is None or snap.run.head != run.head:
        snap = Snapshot(run_id, run)
    else:
        snap.run = run
        snap.forget_attempts()
        snap.outside.clear()  # of a try of this transaction that did not happen
    snap.caps = items[0].caps or {}
    snap.rows_max = ROWS_DECIDED_ON_LOOP_MAX
    return snap


def _go_aside(works: list[Work]) -> Generator[Request, Any, None]:
    """Leave the event loop's thread, where a decision may look at as much as there is."""
    yield ASIDE
    for work in works:
        work.snap.rows_max = None


def _surely_needed(work: Work) -> tuple[Key, ...]:
    """What these commands will ask for anyway, so that it comes in the first round."""
    snap = work.snap
    keys: set[Key] = set()
    if snap.run is not None:
        for item in work.items:
            command = item.command
            if isinstance(command, LeaseMessage | HolderDied):
                if command.idx not in snap.steps:
                    keys.add(("step", command.idx))
                keys.add(("attempt", command.idx, command.n))
                if isinstance(command, RecordCheckpoint) and ("all_checkpoints",) not in snap.known:
                    keys.add(("checkpoint", command.idx, command.name))
            elif isinstance(command, Tick) and command.entity == "step" and command.at not in snap.steps:
                keys.add(("step", command.at))
    return tuple(keys - snap.known)


def _decide_all(works: list[Work], now: int, chance: Chance) -> Generator[Request, Any, None]:
    """Decide run by run until nothing more has to be loaded."""
    left = [(work, 0) for work in works]
    while True:  # ends: what was loaded is never asked for again
        needs: list[tuple[Snapshot, tuple[Key, ...]]] = []
        waiting: list[tuple[Work, int]] = []
        for work, position in left:
            while position < len(work.items):
                item = work.items[position]
                try:
                    decision = _decide_one(work, item, now, chance)
                except TooLong:
                    yield from _go_aside(works)
                    continue
                except Need as need:
                    needs.append((work.snap, need.keys))
                    waiting.append((work, position))
                    break
                work.accept(item, decision)
                position += 1
        if not needs:
            return
        if any(is_long_load(snap, keys) for snap, keys in needs):
            yield from _go_aside(works)
        yield from load(needs, now)
        left = waiting


def _settle_evidence(
    items: list[Item], found: dict[int, Run], outcome: Outcome
) -> Generator[Query | Save, Any, None]:
    """Answer the commands whose earlier commit turns out to have happened."""
    proofs = {(run_id, seq) for item in items for run_id, seq, _, _ in item.evidence}
    if not proofs:
        return
    rows = yield Query("load_event_hashes", sorted(proof for proof in proofs if proof[1] != GONE))
    happened = {(row.run_id, row.seq, row.hash) for row in rows}
    happened |= {(run_id, GONE, b"") for run_id, seq in proofs if seq == GONE and run_id not in found}
    for item in items:
        for run_id, seq, proof, result in item.evidence:
            if (run_id, seq, proof) in happened:
                item.result = result
                outcome.done.append(item)
                break
