"""Claims, and the messages of a lease's holder.
Laws:
1. A message counts only for the step's newest attempt, while its lease is live by the store's clock. Any other
   message is stale: it is recorded once, gets LEASE_STALE, and changes nothing.
2. The answer to the last message is stored: a repeat (same type and sequence number) gets the same answer, even after
   the lease has ended. Checkpoints are recognised by name and sequence number. Whatever stores an answer makes an
   event, so that a cached snapshot without the answer has an older version and is not used.
3. A claim charges an attempt. A release, a park and a suspension give the charge back. A new checkpoint resets it to
   zero, so that the limit counts attempts without progress.
4. What was begun and can be neither skipped nor repeated (`step.unsafe`) is never begun again: a step that would
   return to the queue ends with RUN_RESUME_FAILED instead.
5. After a cancel request only the end of the step is accepted. A late result is stored as evidence.
6. A plan step records nothing and waits for nothing: it completes with a plan, fails, or is given back.
"""

from __future__ import annotations

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.act_commands import IntendAct, ProposeAct, RepeatAct, SettleAct
from tenure.kernel.commands import (
    AckCancel,
    AckLease,
    BeginUpload,
    Claimant,
    ClaimStep,
    Complete,
    CostCommand,
    ExpireDeadLease,
    Fail,
    Heartbeat,
    LeaseCommand,
    OpenWait,
    Park,
    RecordCheckpoint,
    Release,
    ReportCost,
    RevokeLease,
    RunCommand,
    Suspend,
)
from tenure.kernel.costs import Cost
from tenure.kernel.decide.backoff import delay_us
from tenure.kernel.decide.budget import add_spending
from tenure.kernel.decide.ready_steps import make_ready
from tenure.kernel.decide.termination import (
    check_run_open,
    close_waits,
    end_over_budget,
    end_step,
    finish_decision,
)
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_rows import CLOSED_RUN, WAITS_AT_END, AttemptRow, StaleMessageRow, StepRow
from tenure.kernel.separation_of_duties import add_involved_people
from tenure.limits import HEARTBEATS_PER_LEASE_MIN, HOLDER_SILENT_SECONDS

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LeaseReply).decode
OK_REPLY = LeaseReply()
_OK_BYTES = _encode(OK_REPLY)
OVER_BUDGET_REPLY = LeaseReply("refused", outcome="BUDGET_EXCEEDED")


class AlreadyAnswered(Exception):
    def __init__(self, reply: LeaseReply) -> None:
        self.reply = reply


class StaleMessage(Exception):
    def __init__(self, row: StaleMessageRow, error: TenureError) -> None:
        self.row = row
        self.error = error


MESSAGE_TYPES: dict[type[RunCommand], str] = {
    AckLease: "ack",
    Heartbeat: "heartbeat",
    BeginUpload: "upload",
    ReportCost: "cost",
    RecordCheckpoint: "checkpoint",
    Complete: "complete",
    Fail: "fail",
    Release: "release",
    Park: "park",
    AckCancel: "ack_cancel",
    OpenWait: "open_wait",
    Suspend: "suspend",
    ProposeAct: "propose_act",
    IntendAct: "intend_act",
    RepeatAct: "repeat_act",
    SettleAct: "settle_act",
}
"""The name of each message in the database (`attempt.last_message`, `stale_message.message`)."""
_PLANNER_MESSAGES = frozenset(
    {AckLease, Heartbeat, BeginUpload, ReportCost, Complete, Fail, Release, Park, AckCancel}
)
"""What the holder of a plan step's lease may send (law 6)."""


def require_lease(d: Draft, c: LeaseCommand, *, active: bool = True) -> tuple[StepRow, AttemptRow]:
    """The step and attempt of a message, if it counts (laws 1 and 2)."""
    step = d.step(c.idx)
    attempt = d.snap.find_attempt(c.idx, c.n)
    if attempt is None:
        raise TenureError("LEASE_NOT_FOUND", f"step {c.idx} has no attempt {c.n}")
    # attempt.seq does not show a repeat, because heartbeats raise it, too.
    if attempt.last_message == f"{MESSAGE_TYPES[type(c)]} {c.seq}":
        raise AlreadyAnswered(_decode(attempt.answer))
    if c.n != step.attempt or attempt.ended_at is not None or attempt.expires_at <= d.now:
        ended = attempt.lease if attempt.ended_at is not None else "expired"
        raise StaleMessage(
            StaleMessageRow(c.run_id, c.idx, c.n, MESSAGE_TYPES[type(c)], c.seq, attempt.owner, d.now),
            TenureError("LEASE_STALE", f"the lease of attempt {c.n} is {ended}", lease=ended),
        )
    if c.seq <= attempt.seq:
        raise TenureError("MESSAGE_OUT_OF_ORDER", f"message {c.seq} came after {attempt.seq}")
    if active and attempt.lease != "active":
        raise TenureError("LEASE_NOT_ACTIVE", "acknowledge the lease first")
    if step.kind == "plan":
        check_planner_message(c)
    return step, attempt


def check_planner_message(c: RunCommand) -> None:
    """Refuse a message that a plan step does not accept (law 6)."""
    if type(c) not in _PLANNER_MESSAGES:
        raise TenureError(
            "RUN_INVALID_TRANSITION",
            f"a plan step does not accept '{MESSAGE_TYPES[type(c)]}': it completes with a plan, whose steps do the rest",
        )


def keep_answer(d: Draft, c: LeaseCommand, attempt: AttemptRow, reply: LeaseReply) -> LeaseReply:
    """Store the answer for a repeat."""
    attempt = d.edit(attempt)
    attempt.seq = c.seq
    attempt.last_message = f"{MESSAGE_TYPES[type(c)]} {c.seq}"
    attempt.answer = _OK_BYTES if reply is OK_REPLY else _encode(reply)
    return reply


# -------------------------------------------------------------------------------------------- claims


def claim(d: Draft, c: ClaimStep) -> Decision:
    if d.run.status in CLOSED_RUN:
        raise TenureError("RUN_TERMINAL_STATE", f"the run is {d.run.status} already")
    step = d.step(c.idx)
    if not step.claimable or step.state != "ready":
        raise TenureError(
            "RUN_INVALID_TRANSITION", f"step {step.name!r} is {step.state} and cannot be claimed"
        )
    return finish_decision(d, grant_lease(d, step, c.by), "claim")


def grant_lease(d: Draft, step: StepRow, by: Claimant) -> Lease:
    step = d.move(step, "claim_and_ack" if by.ack else "claim")
    run = d.edit_run()
    if step.kind != "plan":
        d.mark_started(run)
    step.attempt += 1
    step.charged += 1
    timeout_at = d.now + step.timeout_us if step.timeout_us is not None else None
    expires_at = d.now + step.lease_us
    if timeout_at is not None and timeout_at < expires_at:
        expires_at = timeout_at
    state, lease = ("running", "active") if by.ack else ("leased", "granted")
    d.add(
        AttemptRow(
            step.run_id,
            step.idx,
            step.attempt,
            step.tenant,
            step.workflow,
            by.worker,
            d.now,
            timeout_at,
            by.session,
            state,
            lease,
            expires_at,
            d.now,
        )
    )
    step.wake_at = expires_at
    return Lease(
        run.id,
        step.idx,
        step.attempt,
        run.tenant,
        run.workflow,
        run.code_version,
        run.profile,
        step.name,
        step.kind,
        step.tool,
        step.idempotency_key,
        expires_at,
        timeout_at,
        min(d.rules.timing.heartbeat_seconds, step.lease_us / 1e6 / HEARTBEATS_PER_LEASE_MIN),
        step.lease_us / 1e6,
        step.input_ref,
        step.recorded,
        trace=run.trace,
        granted_at=d.now,
    )


# ------------------------------------------------------------------------------------ runner messages


def ack(d: Draft, c: AckLease) -> Decision:
    step, attempt = require_lease(d, c, active=False)
    step = d.move(step, "ack")
    reply = keep_answer(
        d, c, attempt, LeaseReply(cancel=step.state == "canceling", expires_at=attempt.expires_at)
    )
    return finish_decision(d, reply, "ack")


def extended_expiry(step: StepRow, attempt: AttemptRow, now: int) -> int:
    """The expiry after a heartbeat: never earlier than before, never after the timeout or the cancel deadline."""
    expires_at = now + step.lease_us
    for end in (attempt.timeout_at, step.cancel_by):
        if end is not None and end < expires_at:
            expires_at = end
    return max(expires_at, attempt.expires_at)


def heartbeat(d: Draft, c: Heartbeat) -> Decision:
    """Extend the lease. The first heartbeat says that the work has begun. A late heartbeat is ignored."""
    try:
        step, attempt = require_lease(d, c)
    except TenureError as late:
        if late.code != "MESSAGE_OUT_OF_ORDER":
            raise
        return Decision(LeaseReply("ignored"))
    if step.state == "starting":
        step = d.move(step, "begin")
    elif c.begins:
        d.notes["begins"] = step.idx  # whatever keeps an answer makes an event (law 2)
    attempt = d.edit(attempt)
    attempt.expires_at = extended_expiry(step, attempt, d.now)
    attempt.beat_at = d.now
    attempt.progress = c.progress or attempt.progress
    attempt.seq = c.seq  # the kept answer stays that of the last message that is not a heartbeat
    reply = LeaseReply(cancel=step.state == "canceling", expires_at=attempt.expires_at)
    if c.begins:
        keep_answer(d, c, attempt, reply)
    return finish_decision(d, reply, "begin")


def begin_upload(d: Draft, c: BeginUpload) -> Decision:
    step, attempt = require_lease(d, c)
    if step.state == "canceling":
        d.notes["canceling"] = step.idx
        return finish_decision(d, keep_answer(d, c, attempt, LeaseReply(cancel=True)), "uploading")
    d.move(step, "upload")
    return finish_decision(d, keep_answer(d, c, attempt, OK_REPLY), "uploading")


def report_cost(d: Draft, c: ReportCost) -> Decision:
    step, attempt = require_lease(d, c)
    attempt = d.edit(attempt)
    attempt.cost = c.cost or attempt.cost
    if add_spending(d, c.spent) and step.state != "canceling":
        return end_over_budget(d, keep_answer(d, c, attempt, OVER_BUDGET_REPLY), "cost")
    reply = LeaseReply(cancel=True) if step.state == "canceling" else OK_REPLY
    return finish_decision(d, keep_answer(d, c, attempt, reply), "cost")


def complete(d: Draft, c: Complete, spent: tuple[Cost, ...]) -> Decision:
    """The step succeeded, unless a cancel was requested or the run exceeds its budget. `spent` includes the last
    checkpoint's costs."""
    step, _ = require_lease(d, c)
    if add_spending(d, spent) or step.state == "canceling":
        return refuse_result(d, c, step, c.output, "complete")
    children = _children_to_await(d, step) if d.run.children_open else []
    output_ref = d.payload(c.output)
    step = d.move(step, "complete_waiting" if children else "complete")
    attempt = d.attempt_of(step)
    attempt.reason = "done"
    attempt.cost = c.cost or attempt.cost
    step.charged = 0
    reply = keep_answer(d, c, attempt, LeaseReply("suspended") if children else OK_REPLY)
    if children:
        # The result counts when the last child has ended (`termination.settle_wait`).
        step.output_ref = output_ref
        step.waits_on = ",".join([WAITS_AT_END, *map(str, children)])
        step.wake_at = None
        close_waits(d, step.idx, proposals=False, keep=children)
    else:
        end_step(d, step, "done", output_ref=output_ref)
    return finish_decision(d, reply, "complete")


def _children_to_await(d: Draft, step: StepRow) -> list[int]:
    """The waits for children that must end before the step does."""
    return [w.wait_no for w in d.snap.open_children() if w.idx == step.idx and w.on_close == "wait"]


def suspend_step(d: Draft, step: StepRow, waits: list[int], *, approval: bool) -> LeaseReply:
    """End the lease until one of the waits settles. The charge is given back."""
    step = d.move(step, "suspend_approval" if approval else "suspend_external")
    step.waits_on = ",".join(map(str, waits))
    step.charged = max(0, step.charged - 1)
    step.wake_at = None
    d.edit(d.attempt_of(step)).reason = "suspended"
    return LeaseReply("suspended")


def end_step_and_lease(
    d: Draft,
    c: LeaseCommand,
    step: StepRow,
    move: str,
    reply: LeaseReply,
    kind: str,
    *,
    reason: str = "RUN_CANCELED",
    code: str = "STEP_CANCELED",
    cost: str | None = None,
) -> Decision:
    """End a step with its attempt: the attempt gets `reason`, the step `code`. By default both are canceled."""
    step = d.move(step, move)
    attempt = d.attempt_of(step)
    attempt.cost = cost or attempt.cost
    attempt.reason = reason
    keep_answer(d, c, attempt, reply)
    end_step(d, step, code)
    return finish_decision(d, reply, kind)


def refuse_result(d: Draft, c: CostCommand, step: StepRow, output: bytes | None, kind: str) -> Decision:
    """Store a result that does not count as evidence. After a cancel request the step ends canceled; otherwise the
    run exceeds its budget, and ends."""
    evidence = d.payload(output)
    if evidence is not None:
        d.notes["late_result"] = evidence
    if step.state == "canceling":
        reply = LeaseReply(cancel=True, late=True)
        return end_step_and_lease(d, c, step, "late_result", reply, kind, cost=c.cost)
    attempt = d.edit(d.attempt_of(step))
    attempt.cost = c.cost or attempt.cost
    return end_over_budget(d, keep_answer(d, c, attempt, OVER_BUDGET_REPLY), kind)


def fail(d: Draft, c: Fail) -> Decision:
    """The step failed. It is retried after a backoff if the failure is retryable and attempts are left."""
    step, _ = require_lease(d, c)
    if add_spending(d, c.spent) or step.state == "canceling":
        return refuse_result(d, c, step, c.message or None, "fail")
    error_ref = d.payload(c.message or None)
    retryable = c.retryable
    if retryable is None:
        retryable = step.kind != "body" and d.rules.retryable(c.code)
    again = retryable and step.charged < step.max_attempts and not step.unsafe
    code = "RUN_RESUME_FAILED" if retryable and step.unsafe else c.code
    step = d.move(step, "fail_retry" if again else "fail")
    attempt = d.attempt_of(step)
    attempt.reason = c.code
    attempt.cost = c.cost or attempt.cost
    reply = keep_answer(d, c, attempt, OK_REPLY)
    retry_or_end_step(d, step, code, error_ref, again=again)
    return finish_decision(d, reply, "fail")


def retry_or_end_step(d: Draft, step: StepRow, code: str, error_ref: int | None, *, again: bool) -> None:
    step.last_error = code
    step.error_ref = error_ref
    if not again:
        end_step(d, step, code, error_ref=error_ref)
        return
    deadline = d.run.deadline_at
    # While a person is asked, the deadline stands still and does not limit the backoff.
    cap = None if deadline is None or d.run.steps_approval else deadline - d.now
    delay = delay_us(d, step, cap)
    if delay <= 0:
        make_ready(d, d.move(step, "due"))
    else:
        step.eligible_at = step.wake_at = d.now + delay


def release(d: Draft, c: Release) -> Decision:
    return _give_back(d, c, "release")


def park(d: Draft, c: Park) -> Decision:
    """Give the step back because the code does not match the history. No worker can claim it until a person unpauses
    the run."""
    return _give_back(d, c, "park", c.why)


def _give_back(d: Draft, c: LeaseCommand, kind: str, parked: str | None = None) -> Decision:
    step, _ = require_lease(d, c, active=False)
    if step.state == "canceling":
        return end_step_and_lease(d, c, step, "release_canceling", LeaseReply(cancel=True), kind)
    if step.unsafe:
        return end_step_and_lease(
            d, c, step, "revoke_final", OK_REPLY, kind, reason=kind, code="RUN_RESUME_FAILED"
        )
    if parked is not None:
        d.edit_run().parked = parked
        for other in d.open_steps() if d.run.steps_ready else ():
            if other.claimable:
                d.edit(other).claimable = False
    step = d.move(step, "release")
    step.charged = max(0, step.charged - 1)
    attempt = d.attempt_of(step)
    attempt.reason = kind
    reply = keep_answer(d, c, attempt, OK_REPLY)
    make_ready(d, step)
    return finish_decision(d, reply, kind)


def ack_cancel(d: Draft, c: AckCancel) -> Decision:
    step, _ = require_lease(d, c)
    if step.state != "canceling":
        raise TenureError("RUN_INVALID_TRANSITION", "no cancellation of this step was requested")
    return end_step_and_lease(d, c, step, "cancel_ack", OK_REPLY, "cancel_ack")


# --------------------------------------------------------------------------------------- lost leases


def revoke(d: Draft, c: RevokeLease) -> Decision:
    step = d.step(c.idx)
    check_run_open(d)
    if d.snap.find_attempt(c.idx, c.n) is None:
        raise TenureError("LEASE_NOT_FOUND", f"step {c.idx} has no attempt {c.n}")
    if c.n != step.attempt or d.attempt_of(step).ended_at is not None:
        raise TenureError("LEASE_STALE", f"the lease of attempt {c.n} has ended already")
    add_involved_people(d, c.context, c.involved)
    if step.state == "canceling":
        end_lost_cancel(d, d.move(step, "force_cancel"))
    else:
        lose_lease(d, step, "revoke")
    return finish_decision(d, {"state": d.step(c.idx).state}, "revoke")


def expire_dead_lease(d: Draft, c: ExpireDeadLease) -> Decision:
    """End a lease whose holder is proven dead, as if it had expired. It is charged like any lost lease. A holder that sent
    a heartbeat a moment ago is not dead, in spite of the proof: two hosts made from one image may look like one."""
    if d.run.status in CLOSED_RUN:
        return Decision(False)
    step = d.step(c.idx)
    if c.n != step.attempt:
        return Decision(False)
    attempt = d.attempt_of(step)
    if attempt.ended_at is not None or attempt.session != c.session:
        return Decision(False)
    if attempt.beat_at + us(HOLDER_SILENT_SECONDS) > d.now:
        return Decision(False)
    d.notes["dead"] = {"step": c.idx, "attempt": c.n}
    if step.state == "canceling":
        end_lost_cancel(d, d.move(step, "expire_canceling"))
    else:
        d.notes["orphaned"] = {"step": step.idx, "last_heartbeat": attempt.beat_at}
        lose_lease(d, step, "expire")
    return finish_decision(d, True, "lease_expired")


def end_lost_cancel(d: Draft, step: StepRow) -> None:
    """Cancel a canceling step whose holder is gone."""
    d.edit(d.attempt_of(step)).reason = "RUN_CANCELED"
    end_step(d, step, "STEP_CANCELED")


def lose_lease(d: Draft, step: StepRow, move: str) -> None:
    """Recover a step whose lease expired (`expire`) or was revoked (`revoke`), as its profile says."""
    reason = None
    if step.unsafe:
        reason = "RUN_RESUME_FAILED"
    elif d.rules.recovery == "resume_or_fail" and not step.recorded and step.kind != "plan":
        reason = "RUN_ORPHANED"
    elif step.charged >= step.max_attempts:
        reason = "STEP_LOST"
    step = d.move(step, move if reason is None else f"{move}_final")
    d.edit(d.attempt_of(step)).reason = "STEP_LOST"
    step.last_error = "STEP_LOST"
    if reason is None:
        make_ready(d, step)
    else:
        end_step(d, step, reason)
