"""Applies what was resolved for steps: a step gets its input, is skipped, has the result of an earlier step, or fails.
Laws:
1. A step with a template is not handed out before its input is made. If its condition is false, it never is (I61).
2. A resolution that is repeated, late, or for another attempt than the next one is ignored.
3. A step with `reuse` is not handed out before an earlier result was looked for. If there is one, the step succeeds with
   it, without an attempt, and its row names the run and step that made it. A step that was begun is never reused.
"""

from __future__ import annotations

from tenure.kernel.commands import Resolution, ResolveSteps
from tenure.kernel.decide.ready_steps import make_ready
from tenure.kernel.decide.termination import end_step, finish_decision, is_unresolved
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.run_rows import CLOSED_RUN, REUSED


def resolve_steps(d: Draft, c: ResolveSteps) -> Decision:
    if d.run.status in CLOSED_RUN or d.run.cancel_at is not None:
        return Decision({"steps": 0})
    d.need("step", (made.idx for made in c.steps))
    done = 0
    for made in c.steps:
        step = d.step(made.idx)
        if is_unresolved(step) and made.n == step.attempt + 1 and not d.run.steps_bad:
            _resolve(d, made)
            done += 1
    return finish_decision(d, {"steps": done}, "resolve") if done else Decision({"steps": 0})


def _resolve(d: Draft, made: Resolution) -> None:
    step = d.edit(d.step(made.idx))
    step.resolution = "each" if made.each_try else ""
    step.reuse_key = made.reuse_key or step.reuse_key
    if made.skipped:
        d.skipping.append(step.idx)
    elif made.reused is not None and step.reuse is not None and step.state == "pending":
        step = d.move(step, "reuse")
        step.reused_run, step.reused_step = made.reused
        d.notes.setdefault("reused", []).append(
            {"step": step.idx, "name": step.name, "run": step.reused_run, "of": step.reused_step}
        )
        end_step(d, step, REUSED, output_ref=d.payload(made.output))
    elif made.code:
        error_ref = d.payload(made.message or None)
        step = d.move(step, "fail_resolution")
        step.last_error = made.code
        end_step(d, step, made.code, error_ref=error_ref)
    else:
        if step.template_ref is not None:
            step.input_ref = d.payload(made.input)
        step.idempotency_key = made.idempotency_key or step.idempotency_key
        if step.state == "pending":
            step = d.move(step, "ready")
        # An input for one attempt is due again for the next attempt, not for this one.
        each, step.resolution = step.resolution, ""
        make_ready(d, step)
        step.resolution = each
