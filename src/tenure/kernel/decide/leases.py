"""Claims, and the messages of whoever holds a lease.

Laws:
1. A message counts only from the step's newest attempt, while its lease is live by the store's clock.
   Anything else is stale: recorded once, told LEASE_STALE, and nothing changes.
2. The last message's answer is kept: the same (type, sequence) again is answered alike, also after the
   lease has ended. Checkpoints are recognised by their own name and sequence. Whatever keeps an answer
   makes an event: a cached snapshot without that answer has an older version, and is not believed.
3. An attempt is charged when it is claimed. A release, a park and a suspension give the charge back; a
   new checkpoint sets it to zero, so the limit counts tries without progress.
4. What was begun and can be neither skipped nor repeated (`step.unsafe`) is never begun again: whichever way the
   step would go back to the queue, it ends RUN_RESUME_FAILED instead.
5. After a cancel request nothing but its end is accepted; a late result is kept as evidence.
"""

from __future__ import annotations

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.behind import stand_behind
from tenure.kernel.commands import (
    AckLease,
    CancelAck,
    ClaimBy,
    ClaimStep,
    Complete,
    Fail,
    Heartbeat,
    HolderDied,
    LeaseMessage,
    Park,
    Release,
    ReportCost,
    RevokeLease,
    Uploading,
)
from tenure.kernel.costs import Cost
from tenure.kernel.decide.backoff import delay_us
from tenure.kernel.decide.closing import close_waits, end_over_budget, end_step, finish
from tenure.kernel.decide.opening import make_ready
from tenure.kernel.decide.spending import spend
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.model import AT_END, CLOSED_RUN, Attempt, Stale, Step
from tenure.limits import HEARTBEATS_PER_LEASE_MIN, HOLDER_SILENT_SECONDS


class Lease(msgspec.Struct, gc=False):
    """What a claimer gets."""

    run_id: int
    idx: int
    n: int
    tenant: str
    workflow: str
    code_version: str
    profile: str
    name: str
    kind: str
    tool: str
    idempotency_key: str
    expires_at: int
    timeout_at: int | None
    heartbeat_seconds: float
    lease_seconds: float
    """How long it holds after a heartbeat, where no timeout ends it before."""
    input_ref: int | None
    recorded: bool
    """Whether the step has checkpoints, to replay from."""
    input: bytes | None = None
    trace: str | None = None
    """The traceparent that the run was asked for with."""
    granted_at: int = 0
    """When it was granted, by the store's clock; over HTTP, when that was answered."""
    asked_at: float = 0.0
    """When its claimer asked for it, by the claimer's own `clock.boot_seconds`: the lease counts from there."""


class Reply(msgspec.Struct, gc=False, omit_defaults=True):
    """The answer to a message."""

    state: str = "ok"
    """ok, go_on (a wait has settled already), suspended (a Complete: until its children have ended; nobody has to
    come back to it), refused (by a governed wait, or because the run has spent more than it may), ignored."""
    cancel: bool = False
    """Stop: cancellation has been requested."""
    expires_at: int | None = None
    no: int | None = None
    """The number of the wait."""
    outcome: str | None = None
    result_ref: int | None = None
    settled: tuple[int, ...] = ()
    late: bool = False
    """The result came after a cancel request: it was kept, and did not count."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Reply).decode
OK = Reply()
"""Nothing more to say."""
_OK_BYTES = _encode(OK)
OVER_BUDGET = Reply("refused", outcome="BUDGET_EXCEEDED")


class Answered(Exception):
    """The message was answered before; here is that answer."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply


class StaleMessage(Exception):
    """The message is from a lease that has ended."""

    def __init__(self, row: Stale, error: TenureError) -> None:
        self.row = row
        self.error = error


def said(c: LeaseMessage) -> str:
    """The type of a message."""
    return type(c).__name__


def hold(d: Draft, c: LeaseMessage, *, active: bool = True) -> tuple[Step, Attempt]:
    """The step and attempt a message speaks for, if it may speak. See laws 1 and 2."""
    step = d.step(c.idx)
    attempt = d.snap.find_attempt(c.idx, c.n)
    if attempt is None:
        raise TenureError("LEASE_NOT_FOUND", f"step {c.idx} has no attempt {c.n}")
    if attempt.said == f"{said(c)} {c.seq}":  # not by attempt.seq: heartbeats raise that too
        raise Answered(_decode(attempt.answer))
    if c.n != step.attempt or attempt.ended_at is not None or attempt.expires_at <= d.now:
        ended = attempt.lease if attempt.ended_at is not None else "expired"
        raise StaleMessage(
            Stale(c.run_id, c.idx, c.n, said(c), c.seq, attempt.owner, d.now),
            TenureError("LEASE_STALE", f"the lease of attempt {c.n} is {ended}", lease=ended),
        )
    if c.seq <= attempt.seq:
        raise TenureError("MESSAGE_OUT_OF_ORDER", f"message {c.seq} came after {attempt.seq}")
    if active and attempt.lease != "active":
        raise TenureError("LEASE_NOT_ACTIVE", "acknowledge the lease first")
    return step, attempt


def answer(d: Draft, c: LeaseMessage, attempt: Attempt, reply: Reply) -> Reply:
    """Keep the answer beside the lease, for a repeat."""
    attempt = d.edit(attempt)
    attempt.seq = c.seq
    attempt.said = f"{said(c)} {c.seq}"
    attempt.answer = _OK_BYTES if reply is OK else _encode(reply)
    return reply


# -------------------------------------------------------------------------------------------- claims


def claim(d: Draft, c: ClaimStep) -> Decision:
    """One claimer takes one ready step; whoever comes later finds it taken."""
    if d.run.status in CLOSED_RUN:
        raise TenureError("RUN_TERMINAL_STATE", f"the run is {d.run.status} already")
    step = d.step(c.idx)
    if not step.claimable or step.state != "ready":
        raise TenureError(
            "RUN_INVALID_TRANSITION", f"step {step.name!r} is {step.state} and cannot be claimed"
        )
    lease = grant(d, step, c.by)
    return finish(d, lease, "claim")


def grant(d: Draft, step: Step, by: ClaimBy) -> Lease:
    """Give the lease of a ready step, and charge the attempt."""
    step = d.move(step, "claim_and_ack" if by.ack else "claim")
    run = d.edit_run()
    d.mark_started(run)
    step.attempt += 1
    step.charged += 1
    timeout_at = d.now + step.timeout_us if step.timeout_us is not None else None
    expires_at = d.now + step.lease_us
    if timeout_at is not None and timeout_at < expires_at:
        expires_at = timeout_at
    state, lease = ("running", "active") if by.ack else ("leased", "granted")
    d.add(
        Attempt(
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
    """The runner has the lease."""
    step, attempt = hold(d, c, active=False)
    step = d.move(step, "ack")
    reply = answer(d, c, attempt, Reply(cancel=step.state == "canceling", expires_at=attempt.expires_at))
    return finish(d, reply, "ack")


def extended(step: Step, attempt: Attempt, now: int) -> int:
    """The expiry a heartbeat gives: never earlier than before, never past the timeout or cancel deadline."""
    expires_at = now + step.lease_us
    for end in (attempt.timeout_at, step.cancel_by):
        if end is not None and end < expires_at:
            expires_at = end
    return max(expires_at, attempt.expires_at)


def heartbeat(d: Draft, c: Heartbeat) -> Decision:
    """Extends the lease; the first one says that the work has begun. A late one is ignored."""
    try:
        step, attempt = hold(d, c)
    except TenureError as late:
        if late.code != "MESSAGE_OUT_OF_ORDER":
            raise
        return Decision(Reply("ignored"))
    if step.state == "starting":
        step = d.move(step, "begin")
    elif c.begins:
        d.notes["begins"] = step.idx  # whatever keeps an answer makes an event (law 2)
    attempt = d.edit(attempt)
    attempt.expires_at = extended(step, attempt, d.now)
    attempt.beat_at = d.now
    attempt.progress = c.progress or attempt.progress
    attempt.seq = c.seq  # the kept answer stays that of the last message that is not a heartbeat
    reply = Reply(cancel=step.state == "canceling", expires_at=attempt.expires_at)
    if c.begins:
        answer(d, c, attempt, reply)
    return finish(d, reply, "begin")


def uploading(d: Draft, c: Uploading) -> Decision:
    """The work is done and its artifacts are on the way."""
    step, attempt = hold(d, c)
    if step.state == "canceling":
        d.notes["canceling"] = step.idx
        return finish(d, answer(d, c, attempt, Reply(cancel=True)), "uploading")
    d.move(step, "upload")
    return finish(d, answer(d, c, attempt, OK), "uploading")


def report_cost(d: Draft, c: ReportCost) -> Decision:
    """What the try has cost so far."""
    step, attempt = hold(d, c)
    attempt = d.edit(attempt)
    attempt.cost = c.cost or attempt.cost
    if spend(d, c.spent) and step.state != "canceling":
        return end_over_budget(d, answer(d, c, attempt, OVER_BUDGET), "cost")
    reply = Reply(cancel=True) if step.state == "canceling" else OK
    return finish(d, answer(d, c, attempt, reply), "cost")


def complete(d: Draft, c: Complete, spent: tuple[Cost, ...]) -> Decision:
    """The step succeeded, unless a cancel was requested before, or this was more than the run may spend. `spent`: by it and
    by what came with it."""
    step, attempt = hold(d, c)
    over = spend(d, spent)
    if step.state == "canceling":
        return _late(d, c, step, attempt, c.output, c.cost, "complete")
    if over:
        return _too_dear(d, c, step, c.output, c.cost, "complete")
    children = _children_to_await(d, step) if d.run.children_open else []
    output_ref = d.payload(c.output)
    step = d.move(step, "complete_waiting" if children else "complete")
    attempt = d.attempt_of(step)
    attempt.reason = "done"
    attempt.cost = c.cost or attempt.cost
    step.charged = 0
    reply = answer(d, c, attempt, Reply("suspended") if children else OK)
    if children:
        # Its result is kept, and counts when the last of them has ended (`closing.settle_wait`).
        step.output_ref = output_ref
        step.waits_on = ",".join([AT_END, *map(str, children)])
        step.wake_at = None
        close_waits(d, step.idx, proposals=False, keep=children)
    else:
        end_step(d, step, "done", output_ref=output_ref)
    return finish(d, reply, "complete")


def _children_to_await(d: Draft, step: Step) -> list[int]:
    """The waits for those children whose ends the step has to wait for."""
    return [w.wait_no for w in d.snap.open_children() if w.idx == step.idx and w.on_close == "wait"]


def suspend(d: Draft, step: Step, waits: list[int], *, approval: bool) -> Reply:
    """End the lease until one of the waits settles; the charge is given back."""
    step = d.move(step, "suspend_approval" if approval else "suspend_external")
    step.waits_on = ",".join(map(str, waits))
    step.charged = max(0, step.charged - 1)
    step.wake_at = None
    d.edit(d.attempt_of(step)).reason = "suspended"
    return Reply("suspended")


def _late(
    d: Draft,
    c: LeaseMessage,
    step: Step,
    attempt: Attempt,
    output: bytes | None,
    cost: str | None,
    kind: str,
) -> Decision:
    """A result after the cancel request: kept as evidence; the step ends canceled."""
    evidence = d.payload(output)
    if evidence is not None:
        d.notes["late_result"] = evidence
    step = d.move(step, "late_result")
    attempt = d.attempt_of(step)
    attempt.cost = cost or attempt.cost
    attempt.reason = "RUN_CANCELED"
    reply = answer(d, c, attempt, Reply(cancel=True, late=True))
    end_step(d, step, "STEP_CANCELED")
    return finish(d, reply, kind)


def _too_dear(
    d: Draft, c: LeaseMessage, step: Step, output: bytes | None, cost: str | None, kind: str
) -> Decision:
    """A result with which the run has spent more than it may: kept as evidence; the run ends."""
    evidence = d.payload(output)
    if evidence is not None:
        d.notes["late_result"] = evidence
    attempt = d.edit(d.attempt_of(step))
    attempt.cost = cost or attempt.cost
    return end_over_budget(d, answer(d, c, attempt, OVER_BUDGET), kind)


def fail(d: Draft, c: Fail) -> Decision:
    """The step failed: again after a backoff while that may help and tries are left, else for good."""
    step, attempt = hold(d, c)
    over = spend(d, c.spent)
    if step.state == "canceling":
        return _late(d, c, step, attempt, c.message or None, c.cost, "fail")
    if over:
        return _too_dear(d, c, step, c.message or None, c.cost, "fail")
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
    reply = answer(d, c, attempt, OK)
    after_failure(d, step, code, error_ref, again=again)
    return finish(d, reply, "fail")


def after_failure(d: Draft, step: Step, code: str, error_ref: int | None, *, again: bool) -> None:
    """Back off and try again, or end the step."""
    step.last_error = code
    step.error_ref = error_ref
    if not again:
        end_step(d, step, code, error_ref=error_ref)
        return
    deadline = d.run.deadline_at
    # A deadline that stands still while a person is asked is no end to wait for.
    cap = None if deadline is None or d.run.steps_approval else deadline - d.now
    delay = delay_us(d, step, cap)
    if delay <= 0:
        make_ready(d, d.move(step, "due"))
    else:
        step.eligible_at = step.wake_at = d.now + delay


def release(d: Draft, c: Release) -> Decision:
    """Give the step back unworked."""
    step, attempt = hold(d, c, active=False)
    return _give_back(d, c, step, attempt, "release", None)


def park(d: Draft, c: Park) -> Decision:
    """Give the step back because the code does not fit; nobody claims it until somebody looks."""
    step, attempt = hold(d, c, active=False)
    return _give_back(d, c, step, attempt, "park", c.why)


def _give_back(
    d: Draft, c: LeaseMessage, step: Step, attempt: Attempt, kind: str, parked: str | None
) -> Decision:
    if step.state == "canceling":
        step = d.move(step, "release_canceling")
        attempt = d.attempt_of(step)
        attempt.reason = "RUN_CANCELED"
        reply = answer(d, c, attempt, Reply(cancel=True))
        end_step(d, step, "STEP_CANCELED")
        return finish(d, reply, kind)
    if step.unsafe:
        step = d.move(step, "revoke_final")
        attempt = d.attempt_of(step)
        attempt.reason = kind
        reply = answer(d, c, attempt, OK)
        end_step(d, step, "RUN_RESUME_FAILED")
        return finish(d, reply, kind)
    if parked is not None:
        d.edit_run().parked = parked
        for other in d.open_steps() if d.run.steps_ready else ():
            if other.claimable:
                d.edit(other).claimable = False
    step = d.move(step, "release")
    step.charged = max(0, step.charged - 1)
    attempt = d.attempt_of(step)
    attempt.reason = kind
    reply = answer(d, c, attempt, OK)
    make_ready(d, step)
    return finish(d, reply, kind)


def cancel_ack(d: Draft, c: CancelAck) -> Decision:
    """The holder has stopped."""
    step, attempt = hold(d, c)
    if step.state != "canceling":
        raise TenureError("RUN_INVALID_TRANSITION", "nobody asked for a cancel")
    step = d.move(step, "cancel_ack")
    attempt = d.attempt_of(step)
    attempt.reason = "RUN_CANCELED"
    reply = answer(d, c, attempt, OK)
    end_step(d, step, "STEP_CANCELED")
    return finish(d, reply, "cancel_ack")


# --------------------------------------------------------------------------------------- lost leases


def revoke(d: Draft, c: RevokeLease) -> Decision:
    """Take a live lease away by hand."""
    step = d.step(c.idx)
    if d.run.status in CLOSED_RUN:
        raise TenureError("RUN_TERMINAL_STATE", f"the run is {d.run.status} already")
    if d.snap.find_attempt(c.idx, c.n) is None:
        raise TenureError("LEASE_NOT_FOUND", f"step {c.idx} has no attempt {c.n}")
    if c.n != step.attempt or d.attempt_of(step).ended_at is not None:
        raise TenureError("LEASE_STALE", "that lease has ended already")
    stand_behind(d, c.context, c.behind)
    if step.state == "canceling":
        end_lost(d, d.move(step, "force_cancel"))
    else:
        lose_lease(d, step, "revoke")
    return finish(d, {"state": d.step(c.idx).state}, "revoke")


def holder_died(d: Draft, c: HolderDied) -> Decision:
    """End a lease whose holder is proven dead, as if it had expired. Return whether it was ended. It is charged like any other that is lost.

    A holder that was heard of a moment ago is not believed dead, whatever was proven: hosts that were copied from one image may
    look like one host."""
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
        end_lost(d, d.move(step, "expire_canceling"))
    else:
        d.notes["orphaned"] = {"step": step.idx, "last_heartbeat": attempt.beat_at}
        lose_lease(d, step, "expire")
    return finish(d, True, "lease_expired")


def end_lost(d: Draft, step: Step) -> None:
    """A canceling step whose holder is gone is canceled."""
    d.edit(d.attempt_of(step)).reason = "RUN_CANCELED"
    end_step(d, step, "STEP_CANCELED")


def lose_lease(d: Draft, step: Step, move: str) -> None:
    """A lease is lost (`expire`) or taken away (`revoke`): the profile says how the step recovers."""
    reason = recovery_failure(d, step)
    if reason is None and step.charged >= step.max_attempts:
        reason = "STEP_LOST"
    step = d.move(step, move if reason is None else f"{move}_final")
    d.edit(d.attempt_of(step)).reason = "STEP_LOST"
    step.last_error = "STEP_LOST"
    if reason is None:
        make_ready(d, step)
    else:
        end_step(d, step, reason)


def recovery_failure(d: Draft, step: Step) -> str | None:
    """Why a lost step cannot go on, if it cannot: what was begun can be neither skipped nor repeated, or
    there is nothing to resume from under a profile that only resumes."""
    if step.unsafe:
        return "RUN_RESUME_FAILED"
    if d.rules.recovery == "resume_or_fail" and not step.recorded:
        return "RUN_ORPHANED"
    return None
