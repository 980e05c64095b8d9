"""The end of planning: a plan step completes with the plan of its run.

Laws:
1. The plan step succeeds and the steps of its plan are added in one commit: planning -> queued. A plan without steps is
   valid: then the run succeeds as soon as it is admitted.
2. A plan that is missing or invalid is the planner's failure, with the code PLAN_INVALID and the text of the first
   problem. It is not tried again: the same input would give the same plan.
3. Planning needs no admission, but the steps of the plan wait for it. What must be checked under the tenant's lock (a
   concurrency key, max_runs_per_min) is left to `Admit`, which the run's timer sends at once.
4. How a run ends whose plan step ends otherwise is in `termination`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import TenureError
from tenure.kernel.commands import Complete, StepSpec
from tenure.kernel.decide.admission import admit_if_possible
from tenure.kernel.decide.budget import add_spending
from tenure.kernel.decide.leases import OK_REPLY, keep_answer, refuse_result, require_lease, retry_or_end_step
from tenure.kernel.decide.plans import add_plan, check_plan, check_plan_payloads
from tenure.kernel.decide.termination import end_step, finish_decision
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.lease_types import LeaseReply
from tenure.kernel.run_rows import StepRow

PLAN_REFUSED_REPLY = LeaseReply("refused", outcome="PLAN_INVALID")


def complete_plan(d: Draft, c: Complete) -> Decision:
    step, _ = require_lease(d, c)
    if step.kind != "plan":
        raise TenureError(
            "INVALID_INPUT", f"step {step.name!r} is {step.kind}: only a plan step completes with a plan"
        )
    if c.last is not None or c.restart is not None:
        raise TenureError(
            "INVALID_INPUT", "a plan step has no checkpoints and cannot restart: send only the plan"
        )
    if add_spending(d, c.spent) or step.state == "canceling":
        return refuse_result(d, c, step, c.output, "complete")
    try:
        if c.plan is None:
            raise TenureError("PLAN_INVALID", "the planner completed without a plan")
        needs = _check_plan(d, c.plan)
    except TenureError as wrong:
        return _fail(d, c, step, wrong)
    output_ref = d.payload(c.output)
    step = d.move(step, "complete")
    attempt = d.attempt_of(step)
    attempt.reason = "done"
    attempt.cost = c.cost or attempt.cost
    step.charged = 0
    reply = keep_answer(d, c, attempt, OK_REPLY)
    end_step(d, step, "done", output_ref=output_ref)
    _begin(d, c.plan, needs)
    return finish_decision(d, reply, "complete")


def _check_plan(d: Draft, plan: tuple[StepSpec, ...]) -> Sequence[list[str]]:
    needs = check_plan(plan, d.rules, {}, 0) if plan else []
    check_plan_payloads(plan)
    return needs


def _begin(d: Draft, plan: tuple[StepSpec, ...], needs: Sequence[list[str]]) -> None:
    """Add the steps, and admit the run or have it checked (law 3)."""
    spec = d.spec()
    run = d.edit_run()
    add_plan(d, plan, d.rules, spec.priority, spec.input_ref, needs)
    run.planned = True
    d.show("queued")
    if run.rated or run.concurrency_key is not None:
        run.wake_at = d.now
    else:
        admit_if_possible(d, spec, over_rate="delay")


def _fail(d: Draft, c: Complete, step: StepRow, wrong: TenureError) -> Decision:
    """The plan is invalid (law 2)."""
    error_ref = d.payload(wrong.message.encode())
    step = d.move(step, "fail")
    attempt = d.attempt_of(step)
    attempt.reason = wrong.code
    attempt.cost = c.cost or attempt.cost
    reply = keep_answer(d, c, attempt, PLAN_REFUSED_REPLY)
    retry_or_end_step(d, step, wrong.code, error_ref, again=False)
    return finish_decision(d, reply, "complete")
