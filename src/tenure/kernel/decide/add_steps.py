"""More steps for a run that is under way.

Laws:
1. A repeat, after a lost answer, is known by its steps: all of them are there, in this order, as they were asked for,
   added at one moment, and nothing else was added then. It is answered as the first time, whatever has become of the
   run since, and changes nothing.
2. Whatever else names a step that is there is PLAN_INVALID.
3. Each addition has a moment of its own. One that shares its commit with another is a microsecond later.

A step knows who needs it, and not what it needs: whoever repeats an addition reads all steps up to its last. Repeats are
rare, and an addition that is new reads none of that.

A step that is there learns who needs it (`dependents`), and its event holds the whole list. Additions that each need the
one before them cost the same every time; n additions behind one and the same step write n lists of up to n numbers. Who
adds that many adds them together: one AddSteps writes the list once.
"""

from __future__ import annotations

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.commands import AddSteps, StepSpec
from tenure.kernel.decide.plans import add_plan, build_step
from tenure.kernel.decide.ready_steps import open_step
from tenure.kernel.decide.termination import dependents_of, finish_decision
from tenure.kernel.decide.validation import step_problems
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.run_rows import CLOSED_RUN, StepRow

_ASKED = (*StepRow.__struct_fields__[: StepRow.__struct_fields__.index("dependents")],
          "max_attempts", "timeout_us", "lease_us", "idempotency_key", "spec", "condition")  # fmt: skip
"""What a step was asked to be: nothing of it changes."""


def add_steps(d: Draft, c: AddSteps) -> Decision:
    """More steps while the run is under way; see the laws above."""
    run = d.run
    if run.planned and c.plan and (last := _added_before(d, c.plan)) is not None:
        return Decision({"steps": last.idx + 1})
    if run.status in CLOSED_RUN:
        raise TenureError("RUN_TERMINAL_STATE", f"the run is {run.status} already")
    if not run.planned or run.cancel_at is not None:
        raise TenureError("RUN_INVALID_TRANSITION", f"the run is {run.status} and takes no more steps")
    d.now = max(d.now, d.step(run.steps_total - 1).created_at + 1)
    spec = d.spec()
    for step in add_plan(d, c.plan, d.rules, spec.priority, spec.input_ref):
        if step.needs_left == 0 and run.admitted_at is not None:
            open_step(d, step)
    return finish_decision(d, {"steps": d.run.steps_total}, "add_steps")


def _added_before(d: Draft, plan: tuple[StepSpec, ...]) -> StepRow | None:
    """The last of these steps, if the run has all of them just as they are asked for."""
    first = d.snap.find_named_step(plan[0].name)
    total = d.run.steps_total
    if first is None or first.idx == 0 or first.idx + len(plan) > total:
        return None
    end = first.idx + len(plan)
    d.need_steps(range(first.idx - 1, min(end + 1, total)))
    steps = [d.step(idx) for idx in range(first.idx, end)]
    around = [d.step(idx) for idx in (first.idx - 1, end) if idx < total]
    if any(step.created_at == first.created_at for step in around):
        return None  # a part of what was added then, or of the run's first plan
    if any(step.created_at != first.created_at for step in steps):
        return None  # more than what was added then
    same = all(_is_same(d, step, spec) for step, spec in zip(steps, plan, strict=True))
    return steps[-1] if same and _same_needs(d, plan, steps) else None


def _is_same(d: Draft, step: StepRow, spec: StepSpec) -> bool:
    if any(step_problems("plan", spec, d.rules)):
        return False
    run_spec = d.spec()
    prefix = ids.run_text(step.run_id)
    asked = build_step(
        d.run, spec, step.idx, 0, [], d.rules, run_spec.priority, step.input_ref, prefix, step.created_at
    )
    if any(getattr(asked, name) != getattr(step, name) for name in _ASKED if name not in _made_of(step)):
        return False
    if (spec.template is None) != (step.template_ref is None):
        return False
    if step.template_ref is not None:
        template = d.snap.find_payload(step.template_ref)
        return template is None or template.body == spec.template
    if spec.input is None:
        return step.input_ref == run_spec.input_ref
    if step.input_ref is None or step.input_ref == run_spec.input_ref:
        return False
    kept = d.snap.find_payload(step.input_ref)
    return kept is None or kept.body == spec.input  # one that was erased cannot be told from another


def _made_of(step: StepRow) -> tuple[str, ...]:
    """What a step's template may have changed since."""
    return () if step.template_ref is None else ("idempotency_key",)


def _same_needs(d: Draft, plan: tuple[StepSpec, ...], steps: list[StepRow]) -> bool:
    """Whether these steps need what is asked for, no less and no more."""
    everything = range(steps[-1].idx + 1)
    d.need_steps(everything)
    needs: dict[int, set[str]] = {step.idx: set() for step in steps}
    for need in map(d.step, everything):
        for idx in dependents_of(need):
            if idx in needs:
                needs[idx].add(need.name)
    before = [d.step(steps[0].idx - 1).name] if d.rules.strict_sequence else []
    for spec, step in zip(plan, steps, strict=True):
        if needs[step.idx] != set(before if spec.needs is None else spec.needs):
            return False
        before = [spec.name]
    return True
