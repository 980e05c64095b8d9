"""Cancellation of runs and steps.
Law: steps without a lease are canceled at once. The holder of a live lease is asked to stop, and the step is canceled
when it acknowledges that or when the grace period ends.
"""

from __future__ import annotations

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.commands import CancelStep, RequestCancel
from tenure.kernel.decide.termination import end_step, finish_decision
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.machines import LEASED_STEP
from tenure.kernel.run_rows import CLOSED_RUN, QUESTIONS, StepRow
from tenure.kernel.separation_of_duties import add_involved_people


def request_cancel(d: Draft, c: RequestCancel) -> Decision:
    run = d.run
    if run.status in CLOSED_RUN:
        raise TenureError("RUN_TERMINAL_STATE", f"the run is {run.status} already", status=run.status)
    if run.cancel_at is not None:
        return d.decision({"status": run.status, "again": True}, "cancel")
    run = d.edit_run()
    run.cancel_at = d.now
    run.cancel_reason = c.reason
    d.notes["cancel_reason"] = c.reason
    add_involved_people(d, c.context, c.involved)
    steps = d.open_steps()
    d.need_attempts(steps)
    if run.waits_open:
        ending = [step.idx for step in steps if step.state not in LEASED_STEP]
        d.need("approval", (w.no for idx in ending for w in d.open_waits_of(idx) if w.kind in QUESTIONS))
    for step in steps:
        cancel_open_step(d, step)
    decision = finish_decision(d, None, "cancel")
    decision.result = {"status": d.run.status, "again": False}
    return decision


def cancel_open_step(d: Draft, step: StepRow) -> None:
    if step.state == "pending":
        end_step(d, d.move(step, "drop"), "STEP_CANCELED")
    elif d.can_move(step, "request_cancel"):
        attempt = d.attempt_of(step)
        step = d.move(step, "request_cancel")
        step.cancel_by = d.now + us(d.rules.timing.cancel_grace_seconds)
        step.wake_at = min(step.cancel_by, attempt.expires_at)
    elif step.state != "canceling":
        end_step(d, d.move(step, "close"), "STEP_CANCELED")


def cancel_step(d: Draft, c: CancelStep) -> Decision:
    step = d.snap.find_named_step(c.name)
    if step is None or step.kind == "plan":
        raise TenureError("STEP_NOT_FOUND", f"the run has no step {c.name!r}")
    if d.run.status in CLOSED_RUN or step.finished_at is not None:
        raise TenureError("RUN_TERMINAL_STATE", f"step {c.name!r} is {step.state} already")
    again = step.state == "canceling"
    if not again:
        add_involved_people(d, c.context, c.involved)
        cancel_open_step(d, step)
    decision = finish_decision(d, None, "cancel_step")
    decision.result = {"state": d.step(step.idx).state, "again": again}
    return decision
