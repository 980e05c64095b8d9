"""A draft of a decision: rows are copied before they change, and every change is recorded.
Laws:
1. The snapshot is read and never changed. A draft that is dropped leaves no trace.
2. States change only by moves (`machines.MOVES`) and derived paths (`machines.RUN_PATHS`).
3. `decision` makes one event of all changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from tenure.errors import Detail, TenureError
from tenure.kernel import history, profiles
from tenure.kernel.commands import Command
from tenure.kernel.history import changed_columns
from tenure.kernel.machines import COMPILED_MOVES, COMPILED_PATHS, LIVE_LEASE, RUN_PATHS, JointState
from tenure.kernel.profile import Profile
from tenure.kernel.retry import Rng
from tenure.kernel.row import R
from tenure.kernel.run_rows import (
    CLOSED_RUN,
    LIGHT_COLUMNS,
    ROW_KEYS,
    AttemptRow,
    EventRow,
    OutboxRow,
    PayloadRow,
    Row,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
    copy_row,
)
from tenure.kernel.snapshot import NotLoaded, Snapshot
from tenure.kernel.status import STATE_COUNTERS, derive_status
from tenure.limits import PAYLOAD_BYTES_MAX

_LIGHT = frozenset(LIGHT_COLUMNS)


class Chance(Rng, Protocol):
    """Randomness as an argument."""

    def salt(self) -> bytes:
        """Sixteen random bytes."""
        ...


class Decision(msgspec.Struct, gc=False):
    """The result of a command: the answer, and the new rows."""

    result: Any
    run: RunRow | None = None
    rows: dict[tuple[Any, ...], Row] = {}
    """Rows of the run, by (table, *key within the run)."""
    outbox: list[OutboxRow] = []
    event: EventRow | None = None
    error: TenureError | None = None
    """A refusal that is recorded (a stale message)."""
    ready: bool = False
    """Whether a step became claimable, so that workers should be woken."""
    deleted: bool = False
    light: bool = False
    """Whether only light columns of the run changed."""


def check_payload_size(body: bytes | None) -> None:
    if body is not None and len(body) > PAYLOAD_BYTES_MAX:
        raise TenureError(
            "PAYLOAD_TOO_LARGE",
            f"{len(body)} bytes; inline payloads have at most {PAYLOAD_BYTES_MAX}",
            (Detail("payload", f"{len(body) - PAYLOAD_BYTES_MAX} bytes too many"),),
        )


walked_moves: set[tuple[str, JointState]] | None = None
"""Tests put a set here to record which moves were made."""
walked_paths: set[tuple[str, str]] | None = None


def _counts(before: RunRow, run: RunRow) -> dict[str, Any]:
    """`changed_columns` of a run that a checkpoint has changed."""
    delta: dict[str, Any] = {}
    if run.steps_done != before.steps_done:
        delta["steps_done"] = run.steps_done
    if run.checkpoints != before.checkpoints:
        delta["checkpoints"] = run.checkpoints
    if run.next_ref != before.next_ref:
        delta["next_ref"] = run.next_ref
    return delta


class Draft:
    __slots__ = (
        "_run",
        "_waits_of",
        "chance",
        "changed",
        "command",
        "early",
        "edges",
        "new_payloads",
        "notes",
        "now",
        "outbox",
        "profile",
        "ready",
        "skipping",
        "snap",
        "timed_out",
        "unresolved",
    )

    def __init__(self, snap: Snapshot, command: Command, now: int, chance: Chance) -> None:
        self.snap = snap
        self.command = command
        run = snap.run
        self.now = now if run is None or now > run.event_at else run.event_at
        self.chance = chance
        self.changed: dict[tuple[Any, ...], Row] = {}
        self.edges: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}
        self.new_payloads: dict[str, str] = {}
        self.outbox: list[OutboxRow] = []
        self.early: list[int] = []
        """Waits opened in this decision, for events that may have come early."""
        self.ready = False
        self.skipping: list[int] = []
        """Open steps whose condition is false."""
        self.unresolved: list[int] = []
        """Open steps that need an input."""
        self._run: RunRow | None = None
        self.timed_out = False
        self._waits_of: dict[int, list[WaitRow]] | None = None
        self.profile: Profile | None = None if run is None else profiles.for_run(run.profile)

    # ------------------------------------------------------------------------------------------ rows

    @property
    def run(self) -> RunRow:
        """The run, for reading. Use `edit_run` to change it."""
        run = self._run or self.snap.run
        assert run is not None
        return run

    def edit_run(self) -> RunRow:
        if self._run is None:
            assert self.snap.run is not None
            self._run = copy_row(self.snap.run)
        return self._run

    def start_run(self, run: RunRow) -> None:
        self._run = run
        self.profile = profiles.get(run.profile)

    @property
    def rules(self) -> Profile:
        assert self.profile is not None
        return self.profile

    def step(self, idx: int) -> StepRow:
        changed = self.changed.get(("step", idx))
        if changed is not None:
            return changed  # type: ignore[return-value]  # the key says which type it is
        found = self.snap.find_step(idx)
        if found is None:
            raise TenureError("STEP_NOT_FOUND", f"the run has no step {idx}")
        return found

    def edit(self, row: R) -> R:
        """A copy of the row, to be changed; the same copy on each call."""
        key = ROW_KEYS[type(row)](row)
        found = self.changed.get(key)
        if found is None:
            found = self.changed[key] = copy_row(row)
        return found  # type: ignore[return-value]  # the key says which type it is

    def current_row(self, row: R) -> R:
        key = ROW_KEYS[type(row)](row)
        return self.changed.get(key, row)  # type: ignore[return-value]  # the key says which type it is

    def add(self, row: R) -> R:
        self.changed[ROW_KEYS[type(row)](row)] = row
        return row

    def attempt_of(self, step: StepRow) -> AttemptRow:
        """The newest leased attempt of a step."""
        changed = self.changed.get(("attempt", step.idx, step.attempt))
        if changed is not None:
            return changed  # type: ignore[return-value]  # the key says which type it is
        found = self.snap.find_attempt(step.idx, step.attempt)
        assert found is not None, "a step names an attempt that does not exist"
        return found

    def open_steps(self) -> list[StepRow]:
        steps = [self.current_row(s) for s in self.snap.open_steps()]
        known = {s.idx for s in steps}
        steps += [s for s in self.changed.values() if isinstance(s, StepRow) and s.idx not in known]
        return [s for s in steps if s.finished_at is None]

    def need(self, table: str, keys: Iterable[int]) -> None:
        """Ask for all of these rows at once: deciding again for each missing row would be quadratic."""
        there = self.snap.place[table]
        self._want([(table, key) for key in keys if key not in there])

    def need_attempts(self, steps: Iterable[StepRow]) -> None:
        """Likewise, for the newest leased attempts of these steps, as far as moves use them."""
        there = self.snap.attempts
        self._want(
            [
                ("attempt", step.idx, step.attempt)
                for step in steps
                if step.attempt
                and step.state not in ("pending", "ready")
                and (step.idx, step.attempt) not in there
            ]
        )

    def need_named_steps(self, names: Iterable[str]) -> None:
        there = {step.name for step in self.snap.steps.values()}
        self._want([("named", name) for name in names if name not in there])

    def _want(self, keys: list[tuple[Any, ...]]) -> None:
        known, changed = self.snap.known, self.changed
        missing = [key for key in keys if key not in known and key not in changed]
        if missing:
            raise NotLoaded(*missing)

    def open_waits_of(self, idx: int) -> list[WaitRow]:
        """The open waits of one step, oldest first. The open waits are searched once per command."""
        if self._waits_of is None:
            self._waits_of = {}
            for wait in self.snap.open_waits():
                self._waits_of.setdefault(wait.idx, []).append(wait)
            for row in self.changed.values():
                if isinstance(row, WaitRow) and row.no not in self.snap.waits:
                    self._waits_of.setdefault(row.idx, []).append(row)
        waits = [self.current_row(wait) for wait in self._waits_of.get(idx, ())]
        return [wait for wait in waits if wait.state == "open"]

    def add_wait(self, wait: WaitRow) -> WaitRow:
        if self._waits_of is not None:
            self._waits_of.setdefault(wait.idx, []).append(wait)
        return self.add(wait)

    def payload(self, body: bytes | None) -> int | None:
        """Store a payload. The history gets its salted digest."""
        if body is None:
            return None
        check_payload_size(body)
        run = self.edit_run()
        ref = run.next_ref
        run.next_ref = ref + 1
        salt = self.chance.salt()
        self.changed["payload", ref] = PayloadRow(run.id, ref, salt, body)
        self.new_payloads[str(ref)] = history.digest(salt, body)
        return ref

    def kept(self, body: bytes) -> tuple[int, bytes]:
        """Likewise for a short payload that the caller stores in its own row: returns its number and salt."""
        run = self.edit_run()
        ref = run.next_ref
        run.next_ref = ref + 1
        salt = self.chance.salt()
        self.new_payloads[str(ref)] = history.digest(salt, body)
        return ref, salt

    def next_no(self) -> int:
        run = self.edit_run()
        no = run.next_no
        run.next_no = no + 1
        return no

    def owe(self, topic: str, target_id: int | None, body: Any = None) -> None:
        """Add an outbox row: a command to another run."""
        run = self.run
        encoded = b"" if body is None else msgspec.msgpack.encode(body)
        self.outbox.append(
            OutboxRow(run.id, run.version + 1, len(self.outbox), topic, target_id, encoded, self.now)
        )

    # ----------------------------------------------------------------------------------------- moves

    def can_move(self, step: StepRow, name: str) -> bool:
        return (name, *self._joint_state(step)) in COMPILED_MOVES

    def _joint_state(self, step: StepRow) -> tuple[str, str, str]:
        """The states of a step, its attempt and its lease."""
        state = step.state
        if state == "ready":
            return "ready", "queued", "-"
        if step.attempt == 0 or state == "pending":
            return state, "-", "-"
        attempt = self.attempt_of(step)
        return state, attempt.state, attempt.lease

    def move(self, step: StepRow, name: str) -> StepRow:
        """Make a move. Raises RUN_INVALID_TRANSITION. Returns the changed step."""
        place = self._joint_state(step)
        stride = COMPILED_MOVES.get((name, *place))
        if stride is None:
            raise TenureError(
                "RUN_INVALID_TRANSITION", f"step {step.name!r} is {place[0]} and does not accept '{name}'"
            )
        if walked_moves is not None:
            walked_moves.add((name, stride.joint))
        run = self.edit_run()
        new = self.edit(step)
        n = step.attempt
        if name in ("claim", "claim_and_ack"):
            n += 1  # the attempt's row is added by the claim itself
        elif place[2] in LIVE_LEASE:
            attempt = self.edit(self.attempt_of(step))
            attempt.state, attempt.lease = stride.attempt, stride.lease
            if stride.ended:
                attempt.ended_at = self.now
        new.state = stride.step
        if step.kind != "plan":  # only steps of the plan count
            self._count(run, place[0], -1)
            self._count(run, stride.step, 1)
        entry = {"step": step.idx, "move": name, "edges": stride.edges}
        if n:
            entry["attempt"] = n
        self.edges.append(entry)
        if new.claimable and stride.step != "ready":
            new.claimable = False
        return new

    @staticmethod
    def _count(run: RunRow, state: str, change: int) -> None:
        counter = STATE_COUNTERS.get(state)
        if counter is not None:
            setattr(run, counter, getattr(run, counter) + change)

    # ---------------------------------------------------------------------------------------- finish

    def show(self, status: str) -> None:
        """Show this status, by the path that the run machine has for it."""
        run = self.edit_run()
        old = run.status
        if old == status:
            return
        path = RUN_PATHS[old, status]
        if walked_paths is not None:
            walked_paths.add((old, status))
        self.edges.append({"run": 1, "edges": COMPILED_PATHS[old, status]})
        run.status = status
        if old == "waiting_approval" and run.human_since is not None:
            if run.deadline_at is not None:
                run.deadline_at += self.now - run.human_since
            run.human_since = None
        if status == "waiting_approval" and run.deadline_at is not None and not self.spec().wall_clock:
            run.human_since = self.now
        if status == "running" or (len(path) > 1 and path[0].next == "running"):
            self.mark_started(run)

    def spec(self) -> RunSpecRow:
        changed = self.changed.get(("run_spec",))
        return changed if isinstance(changed, RunSpecRow) else self.snap.find_spec()

    def mark_started(self, run: RunRow) -> None:
        """Start the run and its deadline, at its first claim or wait."""
        if run.started_at is None:
            run.started_at = self.now
            if run.timeout_us is not None and run.deadline_at is None:
                run.deadline_at = self.now + run.timeout_us

    def settle_status(self) -> None:
        run = self.run
        if not run.planned or run.status in CLOSED_RUN:
            return
        if run.started_at is None and (run.steps_live or run.steps_approval or run.steps_external):
            self.mark_started(self.edit_run())
            run = self.run
        status = derive_status(run, past_deadline=self.timed_out)
        if status != run.status:
            self.show(status)

    def decision(self, result: Any, kind: str, *, counted: bool = False) -> Decision:
        """The finished decision, with its event if history changed. `counted` says that only what a checkpoint
        counts can have changed in the run, so that nothing else is compared."""
        before = self.snap.run
        if before is not None and before.sealed_at is not None and kind != "sealed":
            self.edit_run().sealed_at = None  # the seal does not cover this event
        changes: dict[str, dict[str, Any]] = {}
        for key, row in self.changed.items():
            table = key[0]
            if table == "payload":
                continue
            delta = changed_columns(self._before(key), row)
            if delta:
                name = str(key[1]) if len(key) == 2 else "/".join(map(str, key[1:]))
                if table in changes:
                    changes[table][name] = delta
                else:
                    changes[table] = {name: delta}
        run = self._run
        light = False
        if run is not None:
            if counted and before is not None:
                delta, light = _counts(before, run), True
            else:
                delta = changed_columns(before, run)
                light = before is not None and delta.keys() <= _LIGHT and before.wake_at == run.wake_at
            if delta:
                changes["run"] = {"": delta}
        event = None
        if changes or self.edges or self.new_payloads or self.notes:
            run = self.edit_run()
            body: dict[str, Any] = {}
            if self.edges:
                body["edges"] = self.edges
            if changes:
                body["set"] = changes
            if self.new_payloads:
                body["payloads"] = self.new_payloads
            if self.notes:
                body["context"] = self.notes
            encoded = history.encode_body(body)
            context = self.command.context
            actor, initiator, cause = context.actor, context.initiator, context.cause
            seq = run.version + 1
            hashed = history.event_hash(
                run.head, run.tenant, run.id, seq, kind, self.now, actor, initiator, cause, encoded
            )
            event = EventRow(run.id, seq, kind, self.now, actor, initiator, cause, encoded, hashed)
            run.version = seq
            run.head = hashed
            run.event_at = self.now
        return Decision(result, run, self.changed, self.outbox, event, None, self.ready, False, light)

    def _before(self, key: tuple[Any, ...]) -> Row | None:
        snap = self.snap
        table = key[0]
        if table == "run_spec":
            return snap.spec
        if table == "run_spend":
            return snap.run_spend
        rest = key[1:]
        return snap.place[table].get(rest if len(rest) > 1 else rest[0])
