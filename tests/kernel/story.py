"""`Story`: one run driven through `decide` in memory, with a clock that only the test moves.

    story = Story(profile="delta-ci", plan=["build", "test"])
    story.claim("build", worker="w1")
    story.at(31).complete("build", output=b"ok")
    assert story.step("test").state == "ready"

Laws:
1. The snapshot is complete: no decision raises `NotLoaded`.
2. Nothing is random: salts are counted, and `story.jitter` is the random number (0.0: nominal delays).
3. A message is numbered automatically and comes from the step's newest attempt, unless the test passes `n` or
   `seq` (`again=True` repeats the last number).
4. The run is examined after every decision (`check_run`), so a violation fails the test immediately.
5. Commands return the kernel's answer. Methods that move time return the
   story: `story.at("10:00:31").sweep().claim("build")`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from tenure.clock import us
from tenure.doctor import RunDump, Violation, check_run
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.decide import decide
from tenure.kernel.decide.creation import CreatedRun
from tenure.kernel.draft import Decision
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_rows import (
    CLOSED_RUN,
    ApprovalRow,
    AttemptRow,
    Cap,
    CheckpointRow,
    ChildRow,
    EventRow,
    OutboxRow,
    PayloadRow,
    RunRow,
    RunSpecRow,
    StaleMessageRow,
    StepRow,
    WaitRow,
)
from tenure.kernel.separation_of_duties import LinkedPeople
from tenure.kernel.snapshot import AdmissionFacts, Key, Snapshot

BEGIN = datetime(2026, 1, 5, 10, 0, 0, tzinfo=UTC)
BEGIN_US = us(BEGIN.timestamp())
RUN_ID = int(BEGIN.timestamp()) << 31 | 7

Plan = list["str | c.StepSpec"] | tuple["str | c.StepSpec", ...]


TIMER = c.Context("system:sweeper", "timeout", "timer:test")


class _Everything(set[Key]):
    """A set that contains every key, so that nothing counts as not loaded."""

    def __contains__(self, key: object) -> bool:
        return True


class CompleteSnapshot(Snapshot):
    """A snapshot that has everything loaded."""

    __slots__ = ()

    def __init__(self, run_id: int) -> None:
        super().__init__(run_id)
        self.known = _Everything()
        self.facts = AdmissionFacts()

    def ties(self, tenant: str) -> LinkedPeople:
        del tenant
        return LinkedPeople()


class Dice:
    """A random generator without randomness: it counts its salts, and the story sets its numbers."""

    def __init__(self) -> None:
        self.number = 0.0
        self._salts = 0

    def random(self) -> float:
        return self.number

    def salt(self) -> bytes:
        self._salts += 1
        return self._salts.to_bytes(16, "big")


PLANNER = c.build_plan_step("planner", queue="planners", retries=1)
"""The plan of a run that is planned later."""


def plan_of(plan: Plan) -> tuple[c.StepSpec, ...]:
    """Steps as commands expect them: a bare name is a step of work."""
    return tuple(c.StepSpec(name=step) if isinstance(step, str) else step for step in plan)


class Story:
    """See the laws above. Without a plan the run has a plan step. Other keyword arguments go to CreateRun."""

    def __init__(
        self,
        *,
        profile: str = "agent-runs",
        plan: Plan | None = (c.BODY_STEP,),
        run_id: int = RUN_ID,
        tenant: str = "acme",
        workflow: str = "flow",
        by: str = "u_alice",
        caps: tuple[Cap, ...] = (),
        facts: AdmissionFacts | None = None,
        checked: bool = True,
        **create: Any,
    ) -> None:
        self.run_id = run_id
        self.now = BEGIN_US
        self.checked = checked
        self.dice = Dice()
        self.decisions: list[Decision] = []
        self.payloads: dict[int, PayloadRow] = {}
        self.events: list[EventRow] = []
        self.outbox: list[OutboxRow] = []
        self.stale: dict[tuple[int, int, str], StaleMessageRow] = {}
        self.deleted = False
        self.snap = CompleteSnapshot(run_id)
        self.snap.payloads = self.payloads
        self.snap.caps = {cap.scope: cap for cap in caps}
        if facts is not None:
            self.snap.facts = facts
        self._seqs: dict[tuple[int, int], int] = {}
        self._causes = 0
        create.setdefault("context", c.Context(by, "user", "request-1"))
        self.created: CreatedRun = self.do(
            c.CreateRun(
                run_id=run_id,
                tenant=tenant,
                workflow=workflow,
                profile=profile,
                plan=(PLANNER,) if plan is None else plan_of(plan),
                **create,
            )
        )

    # ------------------------------------------------------------------------------------------ time

    def at(self, moment: float | str) -> Story:
        """Move to a time: seconds since the story began, or a time of its day ("10:00:31")."""
        if isinstance(moment, str):
            day = datetime.strptime(f"{BEGIN:%Y-%m-%d} {moment}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            self.now = us(day.timestamp())
        else:
            self.now = BEGIN_US + us(moment)
        return self

    def after(self, seconds: float) -> Story:
        """Let time pass."""
        self.now += us(seconds)
        return self

    @property
    def clock(self) -> float:
        """Seconds since the story began."""
        return (self.now - BEGIN_US) / 1e6

    @staticmethod
    def moment(seconds: float) -> int:
        """A time of the story in microseconds."""
        return BEGIN_US + us(seconds)

    def sweep(self) -> Story:
        """Tick every due timer, as the sweeper does, including those that become due by it."""
        for _ in range(1000):
            due = self._due()
            if not due:
                return self
            for entity, at in due:
                self.tick(entity, at)
            if self._due() == due:
                raise AssertionError(f"ticks that change nothing: {due}")
        raise AssertionError("the sweep does not end")

    def _due(self) -> list[tuple[str, int]]:
        run = self.run
        due = [("run", 0)] if run.wake_at is not None and run.wake_at <= self.now else []
        due += [("step", s.idx) for s in self.steps if s.wake_at is not None and s.wake_at <= self.now]
        due += [
            ("wait", w.no)
            for w in self.snap.waits.values()
            if w.wake_at is not None and w.wake_at <= self.now
        ]
        return due

    def tick(self, entity: str, at: int = 0) -> Any:
        """Tick the timer of the run, of a step (by index) or of a wait (by number)."""
        if entity == "run" and self.run.planned and self.run.admitted_at is None:
            return self.admit()
        kind: Literal["run", "step", "wait"] = entity  # type: ignore[assignment]  # checked by the kernel
        return self.do(c.Tick(run_id=self.run_id, entity=kind, at=at, context=TIMER))

    # -------------------------------------------------------------------------------------- decisions

    def do(self, command: c.Command) -> Any:
        """Decide a command and apply its changes; the answer, or the TenureError of a refusal."""
        decision = decide(self.snap, command, self.now, self.dice)
        self.decisions.append(decision)
        if decision.run is not None:
            self.snap.run = decision.run
        for key, row in decision.rows.items():
            if isinstance(row, PayloadRow):
                self.payloads[row.ref] = row
            elif isinstance(row, StaleMessageRow):
                self.stale.setdefault((row.idx, row.n, row.message), row)
            else:
                self.snap.put(key, row)
        if decision.event is not None:
            self.events.append(decision.event)
            self.outbox += decision.outbox
        self.deleted = self.deleted or decision.deleted
        if self.checked and (decision.run is not None or decision.rows):
            self.check()
        if decision.error is not None:
            raise decision.error
        return decision.result

    @contextlib.contextmanager
    def refuses(self, code: str) -> Iterator[None]:
        """Expect that the block is refused with this code and changes no row (except a stale-message record)."""
        before = self.bundle().copied()
        with pytest.raises(TenureError) as refusal:
            yield
        assert refusal.value.code == code, f"refused with {refusal.value}, not {code}"
        assert self.bundle() == before, "a refusal changed something"

    def check(self, *, settled: bool = False) -> None:
        """Fail if any invariant is violated."""
        found = self.violations(settled=settled)
        assert not found, "\n".join(map(str, found))

    def violations(self, *, settled: bool = False) -> list[Violation]:
        """The doctor's findings about the run."""
        return check_run(self.bundle(), settled=settled, now=self.now)

    def bundle(self) -> RunDump:
        """All rows of the run. They are the story's own rows, so copy them before you damage them."""
        snap = self.snap
        kept = dict(self.payloads)
        for row in snap.checkpoints.values():
            if row.salt is not None and row.output is not None and row.output_ref is not None:
                kept[row.output_ref] = PayloadRow(row.run_id, row.output_ref, row.salt, row.output)
        return RunDump(
            run=self.run,
            spec=snap.spec,
            steps=[snap.steps[key] for key in sorted(snap.steps)],
            attempts=[snap.attempts[key] for key in sorted(snap.attempts)],
            checkpoints=[snap.checkpoints[key] for key in sorted(snap.checkpoints)],
            waits=[snap.waits[key] for key in sorted(snap.waits)],
            approvals=[snap.approvals[key] for key in sorted(snap.approvals)],
            inbox=[snap.inbox[key] for key in sorted(snap.inbox)],
            children=[snap.children[key] for key in sorted(snap.children)],
            payloads=[kept[key] for key in sorted(kept)],
            events=list(self.events),
            outbox=list(self.outbox),
            verdicts=[snap.verdicts[key] for key in sorted(snap.verdicts)],
            receipts=[snap.receipts[key] for key in sorted(snap.receipts)],
            run_spends=[] if snap.run_spend is None else [snap.run_spend],
            cost_lines=[snap.cost_lines[key] for key in sorted(snap.cost_lines)],
        )

    def fork(self) -> Story:
        """An independent copy of the story, to compare two orders of events."""
        other = copy.copy(self)
        other.dice = copy.copy(self.dice)
        other.snap = CompleteSnapshot(self.run_id)
        for name in ("run", "spec", "facts", "caps"):
            setattr(other.snap, name, copy.copy(getattr(self.snap, name)))
        for table, rows in self.snap.place.items():
            other.snap.place[table].update(rows)
        for name in ("decisions", "payloads", "events", "outbox", "stale", "_seqs"):
            setattr(other, name, copy.copy(getattr(self, name)))
        other.snap.payloads = other.payloads
        return other

    # -------------------------------------------------------------------------------------- questions

    @property
    def run(self) -> RunRow:
        assert self.snap.run is not None
        return self.snap.run

    @property
    def spec(self) -> RunSpecRow:
        return self.snap.find_spec()

    @property
    def status(self) -> str:
        return self.run.status

    @property
    def finished(self) -> bool:
        return self.status in CLOSED_RUN

    @property
    def steps(self) -> list[StepRow]:
        return [self.snap.steps[idx] for idx in sorted(self.snap.steps)]

    @property
    def states(self) -> dict[str, str]:
        """The state of each step, by name."""
        return {step.name: step.state for step in self.steps if step.kind != "plan"}

    def step(self, name: str) -> StepRow:
        found = self.snap.find_named_step(name)
        assert found is not None, f"there is no step {name!r}"
        return found

    def attempt(self, name: str, n: int | None = None) -> AttemptRow:
        """A step's newest attempt, or its n-th."""
        step = self.step(name)
        return self.snap.attempts[step.idx, step.attempt if n is None else n]

    def attempts(self, name: str) -> list[AttemptRow]:
        idx = self.step(name).idx
        return [row for key, row in sorted(self.snap.attempts.items()) if key[0] == idx]

    def wait(self, which: int | str) -> WaitRow:
        """A wait by its number or its label."""
        if isinstance(which, int):
            return self.snap.waits[which]
        return next(w for w in self.snap.waits.values() if w.label == which)

    def approval(self, which: int | str) -> ApprovalRow:
        """An approval by its number or its wait's label."""
        return self.snap.approvals[self.wait(which).no]

    def recorded(self, step: str, name: str) -> CheckpointRow:
        """A checkpoint of a step."""
        return self.snap.checkpoints[self.step(step).idx, name]

    def child(self, child_id: int) -> ChildRow:
        """A child by its id."""
        return self.snap.children[child_id]

    @property
    def kinds(self) -> list[str]:
        """The kinds of all events, in order."""
        return [event.kind for event in self.events]

    @property
    def moves(self) -> list[tuple[str, str]]:
        """The (step, move) pairs, in order."""
        from tenure.kernel.history import decode_body

        names = {step.idx: step.name for step in self.steps}
        return [
            (names[entry["step"]], entry["move"])
            for event in self.events
            for entry in decode_body(event).get("edges", ())
            if "step" in entry
        ]

    def owed(self, topic: str) -> list[OutboxRow]:
        """The run's outbox rows with this topic."""
        return [row for row in self.outbox if row.topic == topic]

    def body(self, ref: int | None) -> bytes | None:
        """The payload of a reference."""
        return None if ref is None else self.payloads[ref].body

    # ------------------------------------------------------------------------------ plans and admission

    def _by(self, who: str, initiator: c.Initiator = "user") -> c.Context:
        self._causes += 1
        return c.Context(who, initiator, f"cause-{self._causes}")

    def plan_ready(self, *plan: str | c.StepSpec) -> Any:
        """Lease the plan step, unless it is leased, and complete it with a plan."""
        return self._hold_planner().complete(c.PLAN_STEP_NAME, plan=plan_of(plan))

    def plan_failed(self, code: str = "PLAN_FAILED", message: bytes = b"") -> Any:
        """Likewise, but let it fail for good."""
        return self._hold_planner().fail(c.PLAN_STEP_NAME, code, message=message, retryable=False)

    def _hold_planner(self) -> Story:
        if self.step(c.PLAN_STEP_NAME).state == "ready":
            self.claim(c.PLAN_STEP_NAME, "w_planner")
        return self

    def add_steps(self, *plan: str | c.StepSpec) -> Any:
        """Add steps to the plan."""
        return self.do(c.AddSteps(run_id=self.run_id, plan=plan_of(plan), context=self._by("u_alice")))

    def admit(self) -> Any:
        """Decide again whether the run may start. `story.snap.facts` has the facts for admission."""
        return self.do(c.Admit(run_id=self.run_id, gate_tenant=self.run.tenant, context=TIMER))

    # ----------------------------------------------------------------------------------------- leases

    def claim(
        self, name: str = "main", worker: str = "w_1", *, ack: bool = True, session: int | None = None
    ) -> Lease:
        """Lease a step."""
        command = c.ClaimStep(
            run_id=self.run_id,
            idx=self.step(name).idx,
            by=c.Claimant(worker, ack, session),
            context=self._by(worker, "system"),
        )
        lease: Lease = self.do(command)
        return lease

    def holder_dies(self, name: str = "main", *, session: int, n: int | None = None) -> bool:
        """Report that the holder's process is proven dead; whether its lease ended."""
        row = self.step(name)
        context = c.Context("system:process-watch", "system", "process is gone: pid 1")
        command = c.ExpireDeadLease(
            run_id=self.run_id, idx=row.idx, n=n or row.attempt, session=session, context=context
        )
        ended: bool = self.do(command)
        return ended

    def say(
        self,
        kind: type[c.LeaseCommand],
        step: str,
        *,
        n: int | None = None,
        seq: int | None = None,
        again: bool = False,
        **fields: Any,
    ) -> Any:
        """Send any message of a lease's holder; see law 3."""
        row = self.step(step)
        n = row.attempt if n is None else n
        last = self._seqs.get((row.idx, n), 0)
        if seq is None:
            seq = last if again else last + 1
        self._seqs[row.idx, n] = max(last, seq)
        attempt = self.snap.attempts.get((row.idx, n))
        owner = attempt.owner if attempt is not None else "w_nobody"
        context = c.Context(owner, "system", f"{row.idx}/{n}/{seq}")
        return self.do(kind(run_id=self.run_id, idx=row.idx, n=n, seq=seq, context=context, **fields))

    def ack(self, step: str = "main", **how: Any) -> LeaseReply:
        """Acknowledge the lease."""
        return self.say(c.AckLease, step, **how)  # type: ignore[no-any-return]  # messages are answered with a Reply

    def beat(self, step: str = "main", progress: str = "", **how: Any) -> LeaseReply:
        return self.say(c.Heartbeat, step, progress=progress, **how)  # type: ignore[no-any-return]  # likewise

    def upload(self, step: str = "main", **how: Any) -> LeaseReply:
        """Report that the work is done and its artifacts are being uploaded."""
        return self.say(c.BeginUpload, step, **how)  # type: ignore[no-any-return]  # likewise

    def checkpoint(self, step: str, name: str, **how: Any) -> LeaseReply:
        """Record a checkpoint (`state`, `output`, `resumable`, `idempotent`, ... as in RecordCheckpoint)."""
        return self.say(c.RecordCheckpoint, step, name=name, **how)  # type: ignore[no-any-return]  # likewise

    def complete(self, step: str = "main", output: bytes | None = None, **how: Any) -> LeaseReply:
        return self.say(c.Complete, step, output=output, **how)  # type: ignore[no-any-return]  # likewise

    def fail(self, step: str = "main", code: str = "STEP_FAILED", **how: Any) -> LeaseReply:
        """Fail the step (`retryable`, `message` as in Fail)."""
        return self.say(c.Fail, step, code=code, **how)  # type: ignore[no-any-return]  # likewise

    def release(self, step: str = "main", **how: Any) -> LeaseReply:
        """Give the step back without working on it."""
        return self.say(c.Release, step, **how)  # type: ignore[no-any-return]  # likewise

    def resolve(self, step: str, body: bytes | None = b"{}", *, n: int | None = None, **how: Any) -> Any:
        """Resolve the step's template for its next try."""
        row = self.step(step)
        made = c.Resolution(idx=row.idx, n=row.attempt + 1 if n is None else n, input=body, **how)
        return self.do(c.ResolveSteps(run_id=self.run_id, steps=(made,), context=self._by("system:outbox")))

    def park(self, step: str = "main", why: str = "step two differs", **how: Any) -> LeaseReply:
        """Give the step back because the code does not match."""
        return self.say(c.Park, step, why=why, **how)  # type: ignore[no-any-return]  # likewise

    def cancel_ack(self, step: str = "main", **how: Any) -> LeaseReply:
        """Acknowledge a cancel."""
        return self.say(c.AckCancel, step, **how)  # type: ignore[no-any-return]  # likewise

    def revoke(self, step: str = "main", n: int | None = None) -> Any:
        """Revoke a lease."""
        row = self.step(step)
        return self.do(
            c.RevokeLease(
                run_id=self.run_id,
                idx=row.idx,
                n=row.attempt if n is None else n,
                context=self._by("u_operator"),
            )
        )

    # ------------------------------------------------------------------------------------------ waits

    def open_wait(self, step: str, label: str, **what: Any) -> LeaseReply:
        """Open a wait: `approval=`, `event=`, `until=` (seconds of the story) or `child=`."""
        if what.get("until") is not None:
            what["until"] = self.moment(what["until"])
        return self.say(c.OpenWait, step, label=label, **what)  # type: ignore[no-any-return]  # likewise

    def suspend(self, step: str, *waits: int | str, **how: Any) -> LeaseReply:
        """Release the lease until one of these waits (by number or label) settles."""
        numbers = tuple(self.wait(w).no if isinstance(w, str) else w for w in waits)
        return self.say(c.Suspend, step, waits=numbers, **how)  # type: ignore[no-any-return]  # likewise

    def approve(self, which: int | str, by: str = "u_bob", **how: Any) -> Any:
        """Approve an approval (`revision`, `digest`, `reason`)."""
        return self._decide(which, by, approve=True, **how)

    def reject(self, which: int | str, by: str = "u_bob", **how: Any) -> Any:
        return self._decide(which, by, approve=False, **how)

    def _decide(self, which: int | str, by: str, *, approve: bool, **how: Any) -> Any:
        no = which if isinstance(which, int) else self.wait(which).no
        return self.do(
            c.DecideApproval(
                run_id=self.run_id,
                no=no,
                approver=by,
                approve=approve,
                context=self._by(by, "approval"),
                **how,
            )
        )

    def revise(self, which: int | str, digest: str, **how: Any) -> Any:
        """Change the digest of an open approval."""
        no = which if isinstance(which, int) else self.wait(which).no
        return self.do(
            c.ReviseApproval(run_id=self.run_id, no=no, digest=digest, context=self._by("u_alice"), **how)
        )

    def deliver(self, name: str, event_id: str = "", payload: bytes | None = None, source: str = "") -> Any:
        """Deliver an event to the run."""
        context = self._by("webhook", "webhook")
        return self.do(
            c.DeliverEvent(
                run_id=self.run_id,
                name=name,
                event_id=event_id or f"{name}-{context.cause}",
                source=source,
                payload=payload,
                context=context,
            )
        )

    def child_finished(self, child_id: int, outcome: str = "succeeded") -> Any:
        """Report the end of a child."""
        return self.do(
            c.FinishChild(
                run_id=self.run_id, child_id=child_id, outcome=outcome, context=self._by("system", "system")
            )
        )

    def end_wait(self) -> Any:
        """End the wait by hand."""
        return self.do(c.EndWait(run_id=self.run_id, context=self._by("u_operator")))

    # ------------------------------------------------------------------------------- cancel and facts

    def cancel(self, reason: str = "RUN_CANCELED") -> Any:
        return self.do(c.RequestCancel(run_id=self.run_id, reason=reason, context=self._by("u_alice")))

    def cancel_step(self, name: str) -> Any:
        return self.do(c.CancelStep(run_id=self.run_id, name=name, context=self._by("u_alice")))

    def pause(self) -> Any:
        return self.do(c.Pause(run_id=self.run_id, context=self._by("u_operator")))

    def unpause(self) -> Any:
        return self.do(c.Unpause(run_id=self.run_id, context=self._by("u_operator")))

    def report(self) -> Any:
        """Mark the run as reported, as the status reporter does."""
        return self.do(c.MarkReported(run_id=self.run_id, context=self._by("w_reporter", "system")))

    def state_reported(self, who: str = "u_operator") -> Any:
        """Attest as a person that the run was reported."""
        return self.do(c.AttestReported(run_id=self.run_id, context=self._by(who)))

    def seal(self) -> Any:
        return self.do(c.SealRun(run_id=self.run_id, context=self._by("w_sealer", "system")))

    def label(self, labels: str | None = None, metadata: str | None = None) -> Any:
        """Change labels or metadata (JSON objects)."""
        return self.do(
            c.UpdateMetadata(
                run_id=self.run_id, labels=labels, metadata=metadata, context=self._by("u_alice")
            )
        )

    def delete(self) -> Any:
        """Delete the run, as retention does."""
        return self.do(c.DeleteRun(run_id=self.run_id, context=self._by("system", "system")))
