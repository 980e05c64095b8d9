"""What happens when time passes: timers of runs, steps and waits. A tick that comes too early only sets the next moment."""

from __future__ import annotations

from tenure.errors import TenureError
from tenure.kernel.commands import Tick
from tenure.kernel.decide.leases import end_lost_cancel, lose_lease, retry_or_end_step
from tenure.kernel.decide.ready_steps import make_ready
from tenure.kernel.decide.termination import (
    current_approval,
    end_question,
    finish_decision,
    settle_wait,
    time_out_planning,
    time_out_run,
)
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.feed import REMINDED
from tenure.kernel.machines import LEASED_STEP
from tenure.kernel.run_rows import CLOSED_RUN, QUESTIONS, StepRow, WaitRow


def tick(d: Draft, c: Tick) -> Decision:
    if c.entity == "run":
        return _tick_run(d)
    return _step(d, d.step(c.at)) if c.entity == "step" else _tick_wait(d, c.at)


def _tick_run(d: Draft) -> Decision:
    run = d.run
    if run.status in CLOSED_RUN:
        return Decision(None)
    if run.wake_at is None or run.wake_at > d.now:
        return finish_decision(d, None, "tick")
    if not run.planned:
        return time_out_planning(d)
    if run.admitted_at is None:
        raise TenureError("RUN_INVALID_TRANSITION", "the run is not admitted yet: send Admit, not Tick")
    if run.deadline_at is not None and run.deadline_at <= d.now and run.human_since is None:
        return time_out_run(d)
    return finish_decision(d, None, "tick")


def _step(d: Draft, step: StepRow) -> Decision:
    if step.finished_at is not None or step.wake_at is None:
        return Decision(None)
    now = d.now
    if step.state == "retry_wait":
        if step.eligible_at is not None and step.eligible_at > now:
            return _again_at(d, step, step.eligible_at)
        make_ready(d, d.move(step, "due"))
        return finish_decision(d, None, "backoff_over")
    attempt = d.attempt_of(step)
    if step.state == "canceling":
        if attempt.expires_at <= now:
            end_lost_cancel(d, d.move(step, "expire_canceling"))
            return finish_decision(d, None, "lease_expired")
        if step.cancel_by is not None and step.cancel_by <= now:
            end_lost_cancel(d, d.move(step, "force_cancel"))
            return finish_decision(d, None, "cancel_deadline")
        return _again_at(d, step, min(attempt.expires_at, step.cancel_by or attempt.expires_at))
    if step.state not in LEASED_STEP:
        return _again_at(d, step, None)
    if attempt.timeout_at is not None and attempt.timeout_at <= now:
        again = d.rules.retryable("STEP_TIMED_OUT") and step.charged < step.max_attempts and not step.unsafe
        step = d.move(step, "time_out_retry" if again else "time_out")
        d.edit(d.attempt_of(step)).reason = "STEP_TIMED_OUT"
        code = "RUN_RESUME_FAILED" if step.unsafe else "STEP_TIMED_OUT"
        retry_or_end_step(d, step, code, None, again=again)
        return finish_decision(d, None, "step_timeout")
    if attempt.expires_at <= now:
        d.notes["orphaned"] = {"step": step.idx, "last_heartbeat": attempt.beat_at}
        lose_lease(d, step, "expire")
        return finish_decision(d, None, "lease_expired")
    return _again_at(d, step, attempt.expires_at)


def _again_at(d: Draft, step: StepRow, moment: int | None) -> Decision:
    if step.wake_at != moment:
        d.edit(step).wake_at = moment
    return d.decision(None, "tick")


def _remind(d: Draft, wait: WaitRow) -> Decision:
    """Remind people once of an approval that expires."""
    if wait.kind != "approval" or wait.wake_at is None or wait.wake_at > d.now:
        return Decision(None)
    approval = current_approval(d, wait.no)
    if approval.reminded_at is None:
        d.edit(approval).reminded_at = d.now
        d.notes["reminded"] = wait.no
    d.edit(wait).wake_at = wait.expires_at
    return d.decision(None, REMINDED)


def _tick_wait(d: Draft, no: int) -> Decision:
    wait = d.snap.find_wait(no)
    if wait is None or wait.state != "open" or wait.expires_at is None:
        return Decision(None)
    if wait.expires_at > d.now:
        return _remind(d, wait)
    if wait.kind in QUESTIONS:
        end_question(d, no, "expire")
    d.notes["expired"] = no
    settle_wait(d, wait, "elapsed" if wait.kind == "time" else "expired")
    return finish_decision(d, None, "wait_over")
