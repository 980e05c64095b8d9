"""Compares every answer of a process with the rows in the database.

Laws:
1. The effect of an accepted command is in the database when the command is answered, and is never lost.
2. A repeated message gets the same answer. A step is completed once.
3. A lease is granted once, with a higher fence than any before it, and never after an answered cancel.
4. A lease does not expire before the moment that its holder was last promised, unless that holder is dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tenure.doctor import RunDump
from tenure.errors import TenureError
from tenure.kernel.commands import (
    AckCancel,
    Command,
    Complete,
    CreateRun,
    DecideApproval,
    DeliverEvent,
    Fail,
    Heartbeat,
    LeaseCommand,
    OpenWait,
    RecordCheckpoint,
    Release,
    RequestCancel,
    RunCommand,
    StepSpec,
    Suspend,
)
from tenure.kernel.decide.creation import CreatedRun
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_rows import CLOSED_RUN, AttemptRow, CheckpointRow, StepRow
from tenure.simulate.network import RETRYABLE_CODES
from tenure.simulate.workload import STRANGER

if TYPE_CHECKING:
    from tenure.simulate.world import World

Key = tuple[int, int, int]
UNEXPECTED_CODES = frozenset(
    {"INTERNAL_ERROR", "INVALID_INPUT", "STORE_READ_ONLY", "STORE_NOT_MIGRATED", "PLAN_INVALID"}
)
"""No command of the simulation gives a reason for these errors."""
_ENDS = {Complete: "succeeded", Fail: "failed", Release: "released", AckCancel: "canceled"}


def _key(asked: LeaseCommand) -> tuple[str, int, int, int, int]:
    return type(asked).__name__, asked.run_id, asked.idx, asked.n, asked.seq


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        self._violate = world.violate
        self.answers = 0
        self._first: dict[tuple[str, int, int, int, int], Any] = {}
        """(message, run, step, attempt, sequence) -> its first answer: a LeaseReply or an error code."""
        self._granted: dict[tuple[int, int], int] = {}
        self._handed: set[Key] = set()
        self._promised: dict[Key, int] = {}
        self._canceled: set[int] = set()
        self._completed: dict[tuple[int, int], int] = {}
        self._keys: dict[tuple[str, str], int] = {}
        self._created: set[int] = set()
        self._deleted: set[int] = set()
        self._asked: dict[bytes, int] = {}
        """Request hash -> how often a process received the request."""
        self._votes: dict[tuple[int, int, int], set[str]] = {}
        self._wrote: dict[tuple[int, int, str], tuple[int, int, bytes | None]] = {}

    def arrived(self, verb: str, asked: Any) -> Any:
        """The answer that a request got before, when a process begins to carry it out. (Answers can overtake each other, so only an
        answer that was given before this moment must be given again.)"""
        if verb == "create":
            self._asked[asked.request_hash] = self._asked.get(asked.request_hash, 0) + 1
            return self._keys.get((asked.tenant, asked.idempotency_key or ""))
        return self._first.get(_key(asked)) if isinstance(asked, LeaseCommand) else None

    def deleted(self, run_id: int) -> None:
        """Forget the promises about a run that was deleted, and free its key. (If its creation is repeated, a new run gets
        the same id.)"""
        self._deleted.add(run_id)
        self._world.service.forget(run_id)
        self._created.discard(run_id)
        self._keys = {key: known for key, known in self._keys.items() if known != run_id}

    # --------------------------------------------------------------------------------------- answers

    def answered(self, verb: str, asked: Any, known: Any, result: Any, error: TenureError | None) -> None:
        """Check the answer of a process, whether or not it will arrive. `known` is the result of `arrived`."""
        self.answers += 1
        if error is not None and error.code in UNEXPECTED_CODES:
            self._violate(f"{type(asked).__name__} was refused with {error}")
        if isinstance(asked, RunCommand) and asked.tenant == STRANGER:
            if error is None or error.code not in (*RETRYABLE_CODES, "RUN_NOT_FOUND"):
                self._violate(f"I50: a stranger's {type(asked).__name__} was answered {error or result}")
        elif verb == "claim":
            for lease in result or ():
                self.lease_handed(lease)
        elif verb == "create":
            self._check_creation(asked, known, result, error)
        elif isinstance(asked, RunCommand) and asked.run_id in self._deleted:
            pass
        elif isinstance(asked, LeaseCommand):
            self._check_reply(asked, known, result, error)
        elif isinstance(asked, Command) and error is None:
            self._check_command(asked, result)

    def _check_creation(
        self, asked: CreateRun, known: int | None, result: CreatedRun | None, error: TenureError | None
    ) -> None:
        key = (asked.tenant, asked.idempotency_key or "")
        if result is None:
            if known is not None and error is not None and error.code not in RETRYABLE_CODES:
                self._violate(f"I31: the key {key[1]} made a run before and is refused now: {error}")
            return
        if result.run_id in self._deleted:
            return
        if not self._world.inspect("get_run", result.run_id):
            self._violate("a creation was answered, and its run does not exist")
        self._created.add(result.run_id)
        if asked.idempotency_key is not None:
            if self._keys.get(key, result.run_id) != result.run_id:
                self._violate(f"I31: the key {key[1]} made two runs")
            self._keys[key] = result.run_id
        if result.lease is not None:
            self.lease_handed(result.lease)

    def _check_reply(
        self,
        asked: LeaseCommand,
        known: LeaseReply | str | None,
        reply: LeaseReply | None,
        error: TenureError | None,
    ) -> None:
        key = _key(asked)
        if error is not None:
            if error.code in RETRYABLE_CODES:
                return
            if (
                isinstance(known, LeaseReply)
                and not isinstance(asked, Heartbeat)
                and not self._overtaken(asked)
            ):
                self._violate(f"I27: {key} was answered {known} and is now refused: {error}")
            self._first.setdefault(key, error.code)
            return
        assert reply is not None, "an answer is a reply or a refusal"
        if isinstance(asked, Heartbeat):
            if reply.expires_at is not None:
                self._promise((asked.run_id, asked.idx, asked.n), reply.expires_at)
            return
        if known == "LEASE_STALE":
            self._violate(f"I24: {key} was stale and is accepted now")
        first = self._first.get(key)
        if isinstance(first, LeaseReply):
            if isinstance(asked, RecordCheckpoint):
                # It is recognized by its row, which has no answer, so `cancel` is as it is now.
                first = msgspec.structs.replace(first, cancel=reply.cancel)
            if first != reply:
                self._violate(f"I27: {key} was answered {first} and now {reply}")
            return
        self._first[key] = reply
        self._check_effect(asked, reply)

    def _promise(self, lease: Key, expires_at: int) -> None:
        self._promised[lease] = max(self._promised.get(lease, 0), expires_at)

    def _overtaken(self, asked: LeaseCommand) -> bool:
        """Whether a later message was accepted. Then the answer to this one need not be kept."""
        if isinstance(asked, RecordCheckpoint):
            row = self._checkpoint(asked)
            return row is not None and (row.n, row.seq) > (asked.n, asked.seq)
        attempt = self._attempt(asked.run_id, asked.idx, asked.n)
        return (
            attempt is not None
            and bool(attempt.last_message)
            and int(attempt.last_message.split()[1]) > asked.seq
        )

    def _checkpoint(self, asked: RecordCheckpoint) -> CheckpointRow | None:
        rows: list[CheckpointRow] = self._world.inspect("checkpoints_of", asked.run_id)
        return next((row for row in rows if row.idx == asked.idx and row.name == asked.name), None)

    def _check_effect(self, asked: LeaseCommand, reply: LeaseReply) -> None:
        """Check that the effect of an accepted message is in the database."""
        run_id, idx = asked.run_id, asked.idx
        attempt = self._attempt(run_id, idx, asked.n)
        if attempt is None:
            self._violate("an accepted message has no attempt")
            return
        ended = _ENDS.get(type(asked))
        if ended is not None:
            if reply.cancel or reply.late:
                ended = "canceled"
            elif reply.state == "suspended":
                # A completion that waits for its children: the work is done, but the step may still be canceled.
                ended = "succeeded" if isinstance(asked, Complete) else "suspended"
            elif isinstance(asked, Release) and attempt.state == "stale":
                ended = "stale"  # it had begun something that cannot be repeated, so the step was given up
            elif reply.outcome == "PLAN_INVALID":
                ended = "failed"
            if attempt.state != ended:
                self._violate(f"{type(asked).__name__} was accepted and the attempt is {attempt.state}")
            if ended == "succeeded" and reply.state != "suspended":
                before = self._completed.setdefault((run_id, idx), asked.n)
                if before != asked.n:
                    self._violate(f"I17: step {idx} was completed by attempts {before} and {asked.n}")
                if isinstance(asked, Complete) and asked.plan is not None:
                    self._check_plan(run_id, asked.plan)
        elif isinstance(asked, RecordCheckpoint):
            self._check_checkpoint(asked)
        elif isinstance(asked, OpenWait):
            if not any(
                w.no == reply.no and w.label == asked.label for w in self._world.inspect("waits_of", run_id)
            ):
                self._violate(f"wait {asked.label} was opened and does not exist")
        elif isinstance(asked, Suspend) and reply.state == "suspended" and attempt.state != "suspended":
            self._violate(f"a suspended attempt is {attempt.state}")

    def _check_plan(self, run_id: int, plan: tuple[StepSpec, ...]) -> None:
        """Check that an accepted plan is the plan of its run."""
        names = [row.name for row in self._world.inspect("steps_of", run_id) if row.kind != "plan"]
        run = self._world.inspect("get_run", run_id)[0]
        if not run.planned or names[: len(plan)] != [step.name for step in plan]:
            self._violate(f"a plan of {len(plan)} steps was accepted, and the run has the steps {names}")

    def _check_checkpoint(self, asked: RecordCheckpoint) -> None:
        place = (asked.run_id, asked.idx, asked.name)
        before = self._wrote.get(place, (0, 0, None))
        if before[:2] <= (asked.n, asked.seq):
            self._wrote[place] = (asked.n, asked.seq, asked.output)
        found = self._checkpoint(asked)
        if found is None or (found.n, found.seq) < (asked.n, asked.seq):
            self._violate(f"checkpoint {asked.name} was accepted and does not exist")

    def _attempt(self, run_id: int, idx: int, n: int) -> AttemptRow | None:
        attempts: list[AttemptRow] = self._world.inspect("attempts_of", run_id)
        return next((a for a in attempts if a.idx == idx and a.n == n), None)

    def _check_command(self, asked: Command, result: Any) -> None:
        if isinstance(asked, RequestCancel):
            run = self._world.inspect("get_run", asked.run_id)[0]
            if run.cancel_at is None:
                self._violate("a cancel was accepted, and its run has no cancel request")
            self._canceled.add(asked.run_id)
        elif isinstance(asked, DeliverEvent):
            rows = [r for r in self._world.inspect("inbox_of", asked.run_id) if r.event_id == asked.event_id]
            if len(rows) != 1:
                self._violate(f"event {asked.event_id} was accepted and has {len(rows)} rows")
        elif isinstance(asked, DecideApproval) and result["status"] != "requested":
            approvals = self._world.inspect("approvals_of", asked.run_id)
            if not any(a.no == asked.no and a.status == result["status"] for a in approvals):
                self._violate(f"an approval was answered {result['status']} and is not")

    def voted(self, asked: DecideApproval) -> None:
        """Remember a person's approval, whether or not it arrives."""
        if asked.approve and asked.revision is not None:
            self._votes.setdefault((asked.run_id, asked.no, asked.revision), set()).add(asked.approver)

    # ---------------------------------------------------------------------------------------- leases

    def lease_written(self, attempt: AttemptRow) -> None:
        """Check a live lease that a commit wrote."""
        if attempt.run_id in self._deleted:
            return
        key = (attempt.run_id, attempt.idx)
        before = self._granted.get(key, 0)
        if attempt.n <= before:
            if attempt.n < before:
                self._violate(f"I23: a lease with fence {attempt.n} after {before}")
            return
        self._granted[key] = attempt.n
        if attempt.run_id in self._canceled:
            self._violate("I47: a lease was given after an answered cancel")

    def lease_handed(self, lease: Lease) -> None:
        """Check a lease that was answered to a worker."""
        if lease.run_id in self._deleted:
            return
        key = (lease.run_id, lease.idx, lease.n)
        if key in self._handed:
            self._violate(f"I22: the lease {lease.idx}/{lease.n} was handed out twice")
        self._handed.add(key)
        self._promise(key, lease.expires_at)
        if self._attempt(*key) is None:
            self._violate("a lease was handed out that does not exist")
        if self._world.workload.conditions:
            self._check_input(lease)

    def _check_input(self, lease: Lease) -> None:
        """Check that a lease is not for a skipped step, and that its input was made for this attempt."""
        step = next(row for row in self._world.inspect("steps_of", lease.run_id) if row.idx == lease.idx)
        if step.resolution == "skip" or step.condition in ("false", "fails"):
            self._violate(f"I61: step {step.name} was handed out, and its condition is {step.condition}")
        elif step.condition == "each" and lease.input != b"for try %d" % lease.n:
            self._violate(f"I61: try {lease.n} of {step.name} was handed out with {lease.input!r}")

    # ------------------------------------------------------------------------------------------ rows

    def follow(self, bundle: RunDump) -> None:
        """Check that a changed run keeps what was promised."""
        run_id = bundle.run.id
        if run_id in self._deleted:
            return
        for attempt in bundle.attempts:
            if attempt.lease == "expired" and attempt.ended_at is not None:
                promised = self._promised.get((run_id, attempt.idx, attempt.n), 0)
                if attempt.ended_at < promised and attempt.session not in self._world.dead_sessions:
                    self._violate(
                        f"I26: lease {attempt.idx}/{attempt.n} expired {promised - attempt.ended_at} us before"
                        " the moment its holder was promised"
                    )
        for approval in bundle.approvals:
            if approval.status == "approved":
                votes = self._votes.get((run_id, approval.no, approval.revision), set())
                voters = votes - {approval.requester}
                if len(voters) < approval.people:
                    self._violate(
                        f"I43: approved by {sorted(voters)}, and {approval.people} people were needed"
                    )
        self._check_waits(bundle)
        self._check_reused(bundle)
        steps = {step.idx: step for step in bundle.steps}
        for (owner, idx), n in self._completed.items():
            if owner == run_id:
                self._check_completed(steps.get(idx), n)
        found = {(row.idx, row.name): row for row in bundle.checkpoints}
        for (owner, idx, name), (n, seq, _) in self._wrote.items():
            if owner == run_id:
                row = found.get((idx, name))
                if row is None or (row.n, row.seq) < (n, seq):
                    self._violate(f"checkpoint {name} of attempt {n} was accepted and is lost")

    def _check_reused(self, bundle: RunDump) -> None:
        """Check that a step has the result of a step that ran and succeeded under a key that it may use."""
        for step in bundle.steps:
            if step.reused_run is None or step.reused_run in self._deleted:
                continue
            rows: list[StepRow] = self._world.inspect("steps_of", step.reused_run)
            found = next((row for row in rows if row.name == step.reused_step), None)
            if (
                found is None
                or found.state != "succeeded"
                or not found.attempt
                or found.tenant != step.tenant
            ):
                self._violate(f"step {step.name} has the result of a step that has none: {step.reused_step}")
            elif found.reuse_key != step.reuse_key and '"also":["shared"]' not in (step.reuse or ""):
                self._violate(f"step {step.name} has a result with another key")

    def _check_waits(self, bundle: RunDump) -> None:
        """Check that no wait misses a buffered event, and that no deadline passed while a person was asked."""
        waiting = {
            wait.name
            for wait in bundle.waits
            # A wait that expires may have expired without a sweep yet. Then it takes no events.
            if wait.state == "open" and wait.kind == "event" and wait.expires_at is None
        }
        for row in bundle.inbox:
            if row.wait_no is None and row.name in waiting:
                self._violate(f"event {row.event_id} ({row.name}) is buffered while a wait for it is open")
        if bundle.run.status == "timed_out" and bundle.spec is not None and not bundle.spec.wall_clock:
            ending = bundle.events[bundle.run.version - 1 :] if bundle.run.reported_at is None else []
            if any(b'"waiting_approval","timed_out"' in event.body for event in ending):
                self._violate("rule 19: the run timed out while it waited for a person")

    def _check_completed(self, step: StepRow | None, n: int) -> None:
        if step is None or step.state != "succeeded" or step.attempt != n:
            state = "gone" if step is None else f"{step.state} in attempt {step.attempt}"
            self._violate(f"a completion by attempt {n} was accepted and the step is {state}")

    def check_end(self) -> None:
        """Check that every created run has ended, and that no request made more runs than there were requests."""
        made: dict[bytes, int] = {}
        for run_id in self._world.checks.run_ids:
            for spec in self._world.inspect("get_spec", run_id):
                if spec.source == "api" and spec.rerun_of is None and spec.resumed_from is None:
                    made[spec.request_hash] = made.get(spec.request_hash, 0) + 1
        for request, count in made.items():
            if count > self._asked.get(request, 0):
                self._violate(
                    f"request {request.decode()} was received {self._asked.get(request)} times and made {count} runs"
                )
        for run_id in sorted(self._created):
            runs = self._world.inspect("get_run", run_id)
            if not runs or runs[0].status not in CLOSED_RUN:
                self._violate(f"run {run_id & 0xFFFF:04x} was created and has not ended")
