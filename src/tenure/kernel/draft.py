"""A decision in the making: rows are copied before they are changed, and everything done is written down.

Laws:
1. The snapshot is read, never changed; a draft that is dropped leaves no trace.
2. States change by moves (`machines.MOVES`) and derived paths (`machines.RUN_PATHS`) only.
3. `decision` makes the one event of everything that changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from tenure.errors import Detail, TenureError
from tenure.kernel import history, profiles
from tenure.kernel.commands import Command
from tenure.kernel.history import difference
from tenure.kernel.machines import LIVE_LEASE, RUN_PATHS, Joint
from tenure.kernel.model import (
    CLOSED_RUN,
    Attempt,
    Event,
    Outbox,
    Payload,
    Row,
    Run,
    RunSpec,
    Stale,
    Step,
    Wait,
)
from tenure.kernel.profile import Profile
from tenure.kernel.rows import KEYS, LIGHT, copy_row
from tenure.kernel.snapshot import Need, Snapshot
from tenure.kernel.status import COUNTER, derive
from tenure.kernel.strides import PATH_EDGES, STRIDES
from tenure.limits import PAYLOAD_BYTES_MAX

R = TypeVar("R", bound=Row)

_LIGHT = frozenset(LIGHT)


class Chance(Protocol):
    """Chance as an argument."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...

    def salt(self) -> bytes:
        """Sixteen bytes nobody can guess."""
        ...


class Decision(msgspec.Struct, gc=False):
    """What a command means: the answer, and the rows as they shall be."""

    result: Any
    run: Run | None = None
    rows: dict[tuple[Any, ...], Row] = {}
    """Rows beneath the run, by (table, *key within the run)."""
    outbox: list[Outbox] = []
    event: Event | None = None
    error: TenureError | None = None
    """A refusal that is recorded all the same (a stale message)."""
    ready: bool = False
    """Whether work became claimable: somebody may want to be woken."""
    deleted: bool = False
    light: bool = False
    """Whether the run has changed in its light columns only."""


def check_size(body: bytes | None) -> None:
    """Refuse a payload that is too large to be kept inline."""
    if body is not None and len(body) > PAYLOAD_BYTES_MAX:
        raise TenureError(
            "PAYLOAD_TOO_LARGE",
            f"{len(body)} bytes; inline payloads have at most {PAYLOAD_BYTES_MAX}",
            (Detail("payload", f"{len(body) - PAYLOAD_BYTES_MAX} bytes too many"),),
        )


walked_moves: set[tuple[str, Joint]] | None = None
"""Tests put a set here to learn which moves were made."""
walked_paths: set[tuple[str, str]] | None = None


def _counts(before: Run, run: Run) -> dict[str, Any]:
    """`difference` of the columns that a checkpoint counts in."""
    delta: dict[str, Any] = {}
    if run.steps_done != before.steps_done:
        delta["steps_done"] = run.steps_done
    if run.checkpoints != before.checkpoints:
        delta["checkpoints"] = run.checkpoints
    if run.next_ref != before.next_ref:
        delta["next_ref"] = run.next_ref
    return delta


class Draft:
    """See the laws above."""

    __slots__ = (
        "_run",
        "_timed_out",
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
        self.outbox: list[Outbox] = []
        self.early: list[int] = []
        """Waits just opened for events that may have come early."""
        self.ready = False
        self.skipping: list[int] = []
        """Steps whose turn has come and whose condition is false."""
        self.unresolved: list[int] = []
        """Steps whose turn has come and whose input has yet to be made."""
        self._run: Run | None = None
        self._timed_out = False
        self._waits_of: dict[int, list[Wait]] | None = None
        self.profile: Profile | None = None if run is None else profiles.of_run(run.profile)

    # ------------------------------------------------------------------------------------------ rows

    @property
    def run(self) -> Run:
        """The run as it is by now; for reading."""
        run = self._run or self.snap.run
        assert run is not None
        return run

    def edit_run(self) -> Run:
        """The run, to be changed."""
        if self._run is None:
            assert self.snap.run is not None
            self._run = copy_row(self.snap.run)
        return self._run

    def start_run(self, run: Run) -> None:
        """Begin with a run that does not exist yet."""
        self._run = run
        self.profile = profiles.get(run.profile)

    @property
    def rules(self) -> Profile:
        """The run's profile."""
        assert self.profile is not None
        return self.profile

    def step(self, idx: int) -> Step:
        """A step as it is by now; an unknown one is STEP_NOT_FOUND."""
        changed = self.changed.get(("step", idx))
        if changed is not None:
            return changed  # type: ignore[return-value]  # the key says which type it is
        found = self.snap.find_step(idx)
        if found is None:
            raise TenureError("STEP_NOT_FOUND", f"the run has no step {idx}")
        return found

    def edit(self, row: R) -> R:
        """A copy of the row, to be changed; the same copy when asked again."""
        key = KEYS[type(row)](row)
        found = self.changed.get(key)
        if found is None:
            found = self.changed[key] = copy_row(row)
        return found  # type: ignore[return-value]  # the key says which type it is

    def now_of(self, row: R) -> R:
        """The row as it is by now."""
        key = KEYS[type(row)](row)
        return self.changed.get(key, row)  # type: ignore[return-value]  # the key says which type it is

    def add(self, row: R) -> R:
        """A new row."""
        self.changed[KEYS[type(row)](row)] = row
        return row

    def attempt_of(self, step: Step) -> Attempt:
        """The newest leased attempt of a step."""
        changed = self.changed.get(("attempt", step.idx, step.attempt))
        if changed is not None:
            return changed  # type: ignore[return-value]  # the key says which type it is
        found = self.snap.find_attempt(step.idx, step.attempt)
        assert found is not None, "a step names an attempt that does not exist"
        return found

    def open_steps(self) -> list[Step]:
        """Every step that is not closed by now."""
        steps = [self.now_of(s) for s in self.snap.open_steps()]
        known = {s.idx for s in steps}
        steps += [s for s in self.changed.values() if isinstance(s, Step) and s.idx not in known]
        return [s for s in steps if s.finished_at is None]

    def want_steps(self, idxs: Iterable[int]) -> None:
        """Ask for all of these at once where they are not there: a decision made anew for each is quadratic."""
        self._want([("step", idx) for idx in idxs if idx not in self.snap.steps])

    def want_attempts(self, steps: Iterable[Step]) -> None:
        """Likewise for the newest leased attempts of these steps, as far as moves look at them."""
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

    def want_waits(self, nos: Iterable[int]) -> None:
        """Likewise for these waits."""
        self._want([("wait", no) for no in nos if no not in self.snap.waits])

    def want_named_steps(self, names: Iterable[str]) -> None:
        """Likewise for the steps of these names."""
        there = {step.name for step in self.snap.steps.values()}
        self._want([("named", name) for name in names if name not in there])

    def want_approvals(self, nos: Iterable[int]) -> None:
        """Likewise for the questions behind these waits."""
        self._want([("approval", no) for no in nos if no not in self.snap.approvals])

    def _want(self, keys: list[tuple[Any, ...]]) -> None:
        known, changed = self.snap.known, self.changed
        missing = [key for key in keys if key not in known and key not in changed]
        if missing:
            raise Need(*missing)

    def open_waits_of(self, idx: int) -> list[Wait]:
        """What one step waits for by now, oldest first. Everything open is looked through once per command."""
        if self._waits_of is None:
            self._waits_of = {}
            for wait in self.snap.open_waits():
                self._waits_of.setdefault(wait.idx, []).append(wait)
            for row in self.changed.values():
                if isinstance(row, Wait) and row.no not in self.snap.waits:
                    self._waits_of.setdefault(row.idx, []).append(row)
        waits = [self.now_of(wait) for wait in self._waits_of.get(idx, ())]
        return [wait for wait in waits if wait.state == "open"]

    def add_wait(self, wait: Wait) -> Wait:
        """A new wait."""
        if self._waits_of is not None:
            self._waits_of.setdefault(wait.idx, []).append(wait)
        return self.add(wait)

    def payload(self, body: bytes | None) -> int | None:
        """Put a payload aside; the history gets its salted digest."""
        if body is None:
            return None
        check_size(body)
        run = self.edit_run()
        ref = run.next_ref
        run.next_ref = ref + 1
        salt = self.chance.salt()
        self.changed["payload", ref] = Payload(run.id, ref, salt, body)
        self.new_payloads[str(ref)] = history.digest(salt, body)
        return ref

    def kept(self, body: bytes) -> tuple[int, bytes]:
        """Likewise of a short payload that the caller keeps in a row of its own: its number and its salt."""
        run = self.edit_run()
        ref = run.next_ref
        run.next_ref = ref + 1
        salt = self.chance.salt()
        self.new_payloads[str(ref)] = history.digest(salt, body)
        return ref, salt

    def next_no(self) -> int:
        """The next number for a wait or a delivered event."""
        run = self.edit_run()
        no = run.next_no
        run.next_no = no + 1
        return no

    def owe(self, topic: str, target_id: int | None, body: Any = None) -> None:
        """Write down what another run has to be told."""
        encoded = b"" if body is None else msgspec.msgpack.encode(body)
        part = len(self.outbox)
        seq = self.run.version + 1
        self.outbox.append(Outbox(self.run.id, seq, part, topic, target_id, encoded, self.now))

    # ----------------------------------------------------------------------------------------- moves

    def can_move(self, step: Step, name: str) -> bool:
        """Whether there is a move of this name from where the step stands."""
        return (name, *self._place(step)) in STRIDES

    def _place(self, step: Step) -> tuple[str, str, str]:
        """Where a step stands, with its attempt and lease."""
        state = step.state
        if state == "ready":
            return "ready", "queued", "-"
        if step.attempt == 0 or state == "pending":
            return state, "-", "-"
        attempt = self.attempt_of(step)
        return state, attempt.state, attempt.lease

    def move(self, step: Step, name: str) -> Step:
        """Make a move; one that does not exist from here is RUN_INVALID_TRANSITION. Answers the changed step."""
        place = self._place(step)
        stride = STRIDES.get((name, *place))
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
        self._count(run, place[0], -1)
        new.state = stride.step
        self._count(run, stride.step, 1)
        entry = {"step": step.idx, "move": name, "edges": stride.edges}
        if n:
            entry["attempt"] = n
        self.edges.append(entry)
        if new.claimable and stride.step != "ready":
            new.claimable = False
        return new

    @staticmethod
    def _count(run: Run, state: str, change: int) -> None:
        counter = COUNTER.get(state)
        if counter is not None:
            setattr(run, counter, getattr(run, counter) + change)

    # ---------------------------------------------------------------------------------------- finish

    def show(self, status: str) -> None:
        """Let the run show this status, by the path the run machine has for it."""
        run = self.edit_run()
        old = run.status
        if old == status:
            return
        path = RUN_PATHS[old, status]
        if walked_paths is not None:
            walked_paths.add((old, status))
        self.edges.append({"run": 1, "edges": PATH_EDGES[old, status]})
        run.status = status
        if old == "waiting_approval" and run.human_since is not None:
            if run.deadline_at is not None:
                run.deadline_at += self.now - run.human_since
            run.human_since = None
        if status == "waiting_approval" and run.deadline_at is not None and not self.spec().wall_clock:
            run.human_since = self.now
        if status == "running" or (len(path) > 1 and path[0].next == "running"):
            self.mark_started(run)

    def spec(self) -> RunSpec:
        """What the run was asked to be."""
        changed = self.changed.get(("run_spec",))
        return changed if isinstance(changed, RunSpec) else self.snap.the_spec()

    def mark_started(self, run: Run) -> None:
        """The first claim or wait starts the run, and its clock."""
        if run.started_at is None:
            run.started_at = self.now
            if run.timeout_us is not None and run.deadline_at is None:
                run.deadline_at = self.now + run.timeout_us

    def time_out(self) -> None:
        """The run's deadline has passed; its steps have been closed."""
        self._timed_out = True

    def settle_status(self) -> None:
        """Derive the run's status and show it."""
        run = self.run
        if not run.planned or run.status in CLOSED_RUN:
            return
        if run.started_at is None and (run.steps_live or run.steps_approval or run.steps_external):
            self.mark_started(self.edit_run())
            run = self.run
        status = derive(run, past_deadline=self._timed_out)
        if status != run.status:
            self.show(status)

    def stale(self, row: Stale, error: TenureError) -> Decision:
        """A message from an ended lease: recorded once, and nothing else happens."""
        return Decision(None, rows={("stale", row.idx, row.n, row.said): row}, error=error)

    def decision(self, result: Any, kind: str, *, counted: bool = False) -> Decision:
        """The finished decision, with its event if anything that is history changed. `counted` says that of the run
        nothing but what a checkpoint counts can have changed, so that the rest need not be compared."""
        before = self.snap.run
        if before is not None and before.sealed_at is not None and kind != "sealed":
            self.edit_run().sealed_at = None  # what comes later is sealed later
        changes: dict[str, dict[str, Any]] = {}
        for key, row in self.changed.items():
            table = key[0]
            if table == "payload":
                continue
            delta = difference(self._before(key), row)
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
                delta = difference(before, run)
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
            actor, initiator, cause = (
                (context := self.command.context).actor,
                context.initiator,
                context.cause,
            )
            seq = run.version + 1
            hashed = history.event_hash(
                run.head, run.tenant, run.id, seq, kind, self.now, actor, initiator, cause, encoded
            )
            event = Event(run.id, seq, kind, self.now, actor, initiator, cause, encoded, hashed)
            run.version = seq
            run.head = hashed
            run.event_at = self.now
        return Decision(result, run, self.changed, self.outbox, event, None, self.ready, False, light)

    def _before(self, key: tuple[Any, ...]) -> Row | None:
        """The row as the snapshot has it."""
        snap = self.snap
        table = key[0]
        if table == "run_spec":
            return snap.spec
        if table == "purse":
            return snap.purse
        rest = key[1:]
        return snap.place[table].get(rest if len(rest) > 1 else rest[0])
