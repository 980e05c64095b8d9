"""What was promised outside of the database: every answer a process gave, held against what the rows say.

Laws:
1. An accepted command's effect is there when it is answered, and is never lost.
2. The same message again is answered alike; a step is completed once.
3. A lease is given once, with a higher fence than any before it, and never after an answered cancel.
4. A lease is not taken for expired before the moment its holder was last promised, unless that holder is dead.
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
    Suspend,
)
from tenure.kernel.decide.creation import CreatedRun
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_rows import CLOSED_RUN, AttemptRow, CheckpointRow, StepRow
from tenure.simulate.workload import STRANGER

if TYPE_CHECKING:
    from tenure.simulate.world import World

Key = tuple[int, int, int]
UNEXPECTED_CODES = frozenset(
    {"INTERNAL_ERROR", "INVALID_INPUT", "STORE_READ_ONLY", "STORE_NOT_MIGRATED", "PLAN_INVALID"}
)
"""Refusals that nothing here gives a reason for."""
TEMPORARY_CODES = frozenset({"STORE_UNAVAILABLE", "STORE_BUSY", "COMMAND_DEADLINE", "QUEUE_FULL"})
_ENDS = {Complete: "succeeded", Fail: "failed", Release: "released", AckCancel: "canceled"}


def _key(asked: LeaseCommand) -> tuple[str, int, int, int, int]:
    return type(asked).__name__, asked.run_id, asked.idx, asked.n, asked.seq


class Oracle:
    """See the laws above."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.answers = 0
        self._first: dict[tuple[str, int, int, int, int], Any] = {}
        """(message, run, step, attempt, sequence) -> its first answer: a Reply, or the refusal's code."""
        self._granted: dict[tuple[int, int], int] = {}
        self._handed: set[Key] = set()
        self._promised: dict[Key, int] = {}
        self._canceled: set[int] = set()
        self._completed: dict[tuple[int, int], int] = {}
        self._keys: dict[tuple[str, str], int] = {}
        self._created: set[int] = set()
        self._deleted: set[int] = set()
        self._asked: dict[bytes, int] = {}
        """Request -> how often a process was asked for it."""
        self._votes: dict[tuple[int, int, int], set[str]] = {}
        self._wrote: dict[tuple[int, int, str], tuple[int, int, bytes | None]] = {}

    def arrived(self, verb: str, asked: Any) -> Any:
        """A process begins to carry out a request: what had it been answered before? (Answers can overtake each
        other on their way; only what was known by now must be known again.)"""
        if verb == "create":
            self._asked[asked.request_hash] = self._asked.get(asked.request_hash, 0) + 1
            return self._keys.get((asked.tenant, asked.idempotency_key or ""))
        return self._first.get(_key(asked)) if isinstance(asked, LeaseCommand) else None

    def deleted(self, run_id: int) -> None:
        """A run was deleted: nothing is promised about it any more, and its key is free. (Should its creation be
        repeated now, there is a run with its id again, which knows nothing of the first.)"""
        self._deleted.add(run_id)
        self._world.service.forget(run_id)
        self._created.discard(run_id)
        self._keys = {key: known for key, known in self._keys.items() if known != run_id}

    def _wrong(self, what: str) -> None:
        self._world.violate(what)

    # --------------------------------------------------------------------------------------- answers

    def answered(self, verb: str, asked: Any, known: Any, result: Any, error: TenureError | None) -> None:
        """A process has answered; whether the answer arrives is another matter. `known` is from `arrived`."""
        self.answers += 1
        if error is not None and error.code in UNEXPECTED_CODES:
            self._wrong(f"{type(asked).__name__} was refused with {error}")
        if isinstance(asked, RunCommand) and asked.tenant == STRANGER:
            if error is None or error.code not in (*TEMPORARY_CODES, "RUN_NOT_FOUND"):
                self._wrong(f"I50: a stranger's {type(asked).__name__} was answered {error or result}")
        elif verb == "claim":
            for lease in result or ():
                self.lease_handed(lease)
        elif verb == "create":
            self._create(asked, known, result, error)
        elif isinstance(asked, RunCommand) and asked.run_id in self._deleted:
            pass
        elif isinstance(asked, LeaseCommand):
            self._message(asked, known, result, error)
        elif isinstance(asked, Command) and error is None:
            self._command(asked, result)

    def _create(
        self, asked: CreateRun, known: int | None, result: CreatedRun | None, error: TenureError | None
    ) -> None:
        key = (asked.tenant, asked.idempotency_key or "")
        if result is None:
            if known is not None and error is not None and error.code not in TEMPORARY_CODES:
                self._wrong(f"I31: the key {key[1]} made a run before and is refused now: {error}")
            return
        if result.run_id in self._deleted:
            return
        if not self._world.inspect("get_run", result.run_id):
            self._wrong("a run was answered that is not there")
        self._created.add(result.run_id)
        if asked.idempotency_key is not None:
            if self._keys.get(key, result.run_id) != result.run_id:
                self._wrong(f"I31: the key {key[1]} made two runs")
            self._keys[key] = result.run_id
        if result.lease is not None:
            self.lease_handed(result.lease)

    def _message(
        self,
        asked: LeaseCommand,
        known: LeaseReply | str | None,
        reply: LeaseReply | None,
        error: TenureError | None,
    ) -> None:
        key = _key(asked)
        if error is not None:
            if error.code in TEMPORARY_CODES:
                return
            if (
                isinstance(known, LeaseReply)
                and not isinstance(asked, Heartbeat)
                and not self._overtaken(asked)
            ):
                self._wrong(f"I27: {key} was answered {known} and is now refused: {error}")
            self._first.setdefault(key, error.code)
            return
        assert reply is not None, "an answer is a reply or a refusal"
        if isinstance(asked, Heartbeat):
            lease = (asked.run_id, asked.idx, asked.n)
            if reply.expires_at is not None:
                self._promised[lease] = max(self._promised.get(lease, 0), reply.expires_at)
            return
        if known == "LEASE_STALE":
            self._wrong(f"I24: {key} was stale and is accepted now")
        first = self._first.get(key)
        if isinstance(first, LeaseReply):
            if isinstance(asked, RecordCheckpoint):
                # It is known again by its row, which has no answer: whether to stop is told as it is now.
                first = msgspec.structs.replace(first, cancel=reply.cancel)
            if first != reply:
                self._wrong(f"I27: {key} was answered {first} and now {reply}")
            return
        self._first[key] = reply
        self._effect(asked, reply)

    def _overtaken(self, asked: LeaseCommand) -> bool:
        """Whether a later message was accepted, so that this one's answer need not be known any more."""
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

    def _effect(self, asked: LeaseCommand, reply: LeaseReply) -> None:
        """The effect of an accepted message is there."""
        run_id, idx = asked.run_id, asked.idx
        attempt = self._attempt(run_id, idx, asked.n)
        if attempt is None:
            self._wrong("an accepted message has no attempt")
            return
        ended = _ENDS.get(type(asked))
        if ended is not None:
            if reply.cancel or reply.late:
                ended = "canceled"
            elif reply.state == "suspended":
                # A completion that has to wait for its children: its work is done, its step may still be canceled.
                ended = "succeeded" if isinstance(asked, Complete) else "suspended"
            elif isinstance(asked, Release) and attempt.state == "stale":
                ended = "stale"  # what it had begun cannot be begun again: the step was given up
            if attempt.state != ended:
                self._wrong(f"{type(asked).__name__} was accepted and the attempt is {attempt.state}")
            if ended == "succeeded" and reply.state != "suspended":
                before = self._completed.setdefault((run_id, idx), asked.n)
                if before != asked.n:
                    self._wrong(f"I17: step {idx} was completed by attempts {before} and {asked.n}")
        elif isinstance(asked, RecordCheckpoint):
            self._wrote_checkpoint(asked)
        elif isinstance(asked, OpenWait):
            if not any(
                w.no == reply.no and w.label == asked.label for w in self._world.inspect("waits_of", run_id)
            ):
                self._wrong(f"wait {asked.label} was opened and is not there")
        elif isinstance(asked, Suspend) and reply.state == "suspended" and attempt.state != "suspended":
            self._wrong(f"a suspended attempt is {attempt.state}")

    def _wrote_checkpoint(self, asked: RecordCheckpoint) -> None:
        place = (asked.run_id, asked.idx, asked.name)
        before = self._wrote.get(place, (0, 0, None))
        if before[:2] <= (asked.n, asked.seq):
            self._wrote[place] = (asked.n, asked.seq, asked.output)
        found = self._checkpoint(asked)
        if found is None or (found.n, found.seq) < (asked.n, asked.seq):
            self._wrong(f"checkpoint {asked.name} was accepted and is not there")

    def _attempt(self, run_id: int, idx: int, n: int) -> AttemptRow | None:
        attempts: list[AttemptRow] = self._world.inspect("attempts_of", run_id)
        return next((a for a in attempts if a.idx == idx and a.n == n), None)

    def _command(self, asked: Command, result: Any) -> None:
        if isinstance(asked, RequestCancel):
            run = self._world.inspect("get_run", asked.run_id)[0]
            if run.cancel_at is None:
                self._wrong("a cancel was accepted and nobody knows of it")
            self._canceled.add(asked.run_id)
        elif isinstance(asked, DeliverEvent):
            rows = [r for r in self._world.inspect("inbox_of", asked.run_id) if r.event_id == asked.event_id]
            if len(rows) != 1:
                self._wrong(f"event {asked.event_id} was accepted and is there {len(rows)} times")
        elif isinstance(asked, DecideApproval) and result["status"] != "requested":
            rows = [a for a in self._world.inspect("approvals_of", asked.run_id) if a.no == asked.no]
            if not rows or rows[0].status != result["status"]:
                self._wrong(f"an approval was answered {result['status']} and is not")

    def voted(self, asked: DecideApproval) -> None:
        """A person has said yes, whether it arrives or not."""
        if asked.approve and asked.revision is not None:
            self._votes.setdefault((asked.run_id, asked.no, asked.revision), set()).add(asked.approver)

    # ---------------------------------------------------------------------------------------- leases

    def lease_written(self, attempt: AttemptRow) -> None:
        """A commit holds a live lease, new or not."""
        if attempt.run_id in self._deleted:
            return
        key = (attempt.run_id, attempt.idx)
        before = self._granted.get(key, 0)
        if attempt.n <= before:
            if attempt.n < before:
                self._wrong(f"I23: a lease with fence {attempt.n} after {before}")
            return
        self._granted[key] = attempt.n
        if attempt.run_id in self._canceled:
            self._wrong("I47: a lease was given after an answered cancel")

    def lease_handed(self, lease: Lease) -> None:
        """A worker is given a lease."""
        if lease.run_id in self._deleted:
            return
        key = (lease.run_id, lease.idx, lease.n)
        if key in self._handed:
            self._wrong(f"I22: the lease {lease.idx}/{lease.n} was handed out twice")
        self._handed.add(key)
        self._promised[key] = max(self._promised.get(key, 0), lease.expires_at)
        if self._attempt(*key) is None:
            self._wrong("a lease was handed out that is not there")
        if self._world.workload.conditions:
            self._check_input(lease)

    def _check_input(self, lease: Lease) -> None:
        """Nobody is handed a step that is skipped, or the input of another try."""
        step = next(row for row in self._world.inspect("steps_of", lease.run_id) if row.idx == lease.idx)
        if step.resolution == "skip" or step.condition in ("false", "fails"):
            self._wrong(f"I61: step {step.name} was handed out, and its condition is {step.condition}")
        elif step.condition == "each" and lease.input != b"for try %d" % lease.n:
            self._wrong(f"I61: try {lease.n} of {step.name} was handed out with {lease.input!r}")

    # ------------------------------------------------------------------------------------------ rows

    def follow(self, bundle: RunDump) -> None:
        """A run has changed: does it keep what was promised?"""
        run_id = bundle.run.id
        if run_id in self._deleted:
            return
        for attempt in bundle.attempts:
            if attempt.lease == "expired" and attempt.ended_at is not None:
                promised = self._promised.get((run_id, attempt.idx, attempt.n), 0)
                if attempt.ended_at < promised and attempt.session not in self._world.dead_sessions:
                    self._wrong(
                        f"I26: lease {attempt.idx}/{attempt.n} expired {promised - attempt.ended_at} us before"
                        " the moment its holder was promised"
                    )
        for approval in bundle.approvals:
            if approval.status == "approved":
                voters = self._votes.get((run_id, approval.no, approval.revision), set()) - {
                    approval.requester
                }
                if len(voters) < approval.people:
                    self._wrong(
                        f"I43: approved by {sorted(voters)}, and {approval.people} people were needed"
                    )
        self._waits(bundle)
        steps = {step.idx: step for step in bundle.steps}
        for (owner, idx), n in self._completed.items():
            if owner == run_id:
                self._still_completed(steps.get(idx), n)
        found = {(row.idx, row.name): row for row in bundle.checkpoints}
        for (owner, idx, name), (n, seq, _) in self._wrote.items():
            if owner == run_id:
                row = found.get((idx, name))
                if row is None or (row.n, row.seq) < (n, seq):
                    self._wrong(f"checkpoint {name} of attempt {n} was accepted and is lost")

    def _waits(self, bundle: RunDump) -> None:
        """Nobody waits for what is there, and no machine's clock ran while a person was waited for."""
        waiting = {
            wait.name
            for wait in bundle.waits
            # One with an end may be over and not swept yet: it takes nothing any more.
            if wait.state == "open" and wait.kind == "event" and wait.expires_at is None
        }
        for row in bundle.inbox:
            if row.wait_no is None and row.name in waiting:
                self._wrong(f"event {row.event_id} ({row.name}) is buffered while somebody waits for it")
        if bundle.run.status == "timed_out" and bundle.spec is not None and not bundle.spec.wall_clock:
            ending = bundle.events[bundle.run.version - 1 :] if bundle.run.reported_at is None else []
            if any(b'"waiting_approval","timed_out"' in event.body for event in ending):
                self._wrong("decision 19: the run timed out while it waited for a person")

    def _still_completed(self, step: StepRow | None, n: int) -> None:
        if step is None or step.state != "succeeded" or step.attempt != n:
            state = "gone" if step is None else f"{step.state} in attempt {step.attempt}"
            self._wrong(f"a completion by attempt {n} was accepted and the step is {state}")

    def at_the_end(self) -> None:
        """Every run that was answered is there and has ended, and no request made more runs than it was asked."""
        made: dict[bytes, int] = {}
        for run_id in self._world.checks.run_ids:
            for spec in self._world.inspect("get_spec", run_id):
                if spec.source == "api" and spec.rerun_of is None and spec.resumed_from is None:
                    made[spec.request_hash] = made.get(spec.request_hash, 0) + 1
        for request, count in made.items():
            if count > self._asked.get(request, 0):
                self._wrong(
                    f"request {request.decode()} was asked {self._asked.get(request)} times and made {count} runs"
                )
        for run_id in sorted(self._created):
            runs = self._world.inspect("get_run", run_id)
            if not runs or runs[0].status not in CLOSED_RUN:
                self._wrong(f"run {run_id & 0xFFFF:04x} was created and has not ended")
