"""Adds steps to a run that has started.

Laws:
1. A repeat, after a lost answer, is recognised by its steps: the run has all of them, in this order and as requested,
   they were added at one moment, and nothing else was added then. It gets the same answer, in whatever state the run
   is now, and changes nothing.
2. Any other request that names an existing step is PLAN_INVALID.
3. Each addition has a moment of its own. If two share a commit, the second is a microsecond later.

A step lists the steps that need it, not its own needs. So a repeat reads all steps up to its last one; repeats are rare,
and a new addition reads none of them.

An existing step gets the new steps in its list of dependents, and the event has the whole list. Additions that each need
the previous one cost the same every time, but n additions behind one step write n lists of up to n numbers. Add that many
steps with one AddSteps, which writes the list once.
"""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.commands import AddSteps, ReuseTerms, StepSpec
from tenure.kernel.decide.plans import add_plan, build_step
from tenure.kernel.decide.ready_steps import open_step
from tenure.kernel.decide.termination import check_run_open, dependents_of, finish_decision
from tenure.kernel.decide.validation import step_problems
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.run_rows import StepRow

_ASKED = (*StepRow.__struct_fields__[: StepRow.__struct_fields__.index("dependents")],
          "max_attempts", "timeout_us", "lease_us", "idempotency_key", "spec", "condition")  # fmt: skip
"""Columns that the request determines and that never change."""


def add_steps(d: Draft, c: AddSteps) -> Decision:
    run = d.run
    if run.planned and c.plan and (last := _added_before(d, c.plan)) is not None:
        return Decision({"steps": last.idx + 1})
    check_run_open(d)
    if not run.planned or run.cancel_at is not None:
        raise TenureError("RUN_INVALID_TRANSITION", f"the run is {run.status} and takes no more steps")
    d.now = max(d.now, d.step(run.steps_total - 1).created_at + 1)
    spec = d.spec()
    for step in add_plan(d, c.plan, d.rules, spec.priority, spec.input_ref):
        if step.needs_left == 0 and run.admitted_at is not None:
            open_step(d, step)
    return finish_decision(d, {"steps": d.run.steps_total}, "add_steps")


def _added_before(d: Draft, plan: tuple[StepSpec, ...]) -> StepRow | None:
    """The last of these steps, if the run has all of them as requested (law 1)."""
    first = d.snap.find_named_step(plan[0].name)
    total = d.run.steps_total
    if first is None or first.idx == 0 or first.idx + len(plan) > total:
        return None
    end = first.idx + len(plan)
    d.need("step", range(first.idx - 1, min(end + 1, total)))
    steps = [d.step(idx) for idx in range(first.idx, end)]
    around = [d.step(idx) for idx in (first.idx - 1, end) if idx < total]
    if any(step.created_at == first.created_at for step in around):
        return None  # only a part of that addition, or of the first plan
    if any(step.created_at != first.created_at for step in steps):
        return None  # more than that addition
    same = all(_is_same(d, step, spec) for step, spec in zip(steps, plan, strict=True))
    return steps[-1] if same and _same_needs(d, plan, steps) else None


def _is_same(d: Draft, step: StepRow, spec: StepSpec) -> bool:
    if any(step_problems("plan", spec, d.rules)):
        return False
    by_template = () if step.template_ref is None else ("idempotency_key",)  # a template may change it
    if not _is_same_reuse(step, spec):
        return False
    run_spec = d.spec()
    prefix = ids.run_text(step.run_id)
    asked = build_step(
        d.run, spec, step.idx, 0, [], d.rules, run_spec.priority, step.input_ref, prefix, step.created_at
    )
    if any(getattr(asked, name) != getattr(step, name) for name in _ASKED if name not in by_template):
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
    stored = d.snap.find_payload(step.input_ref)
    return stored is None or stored.body == spec.input  # an erased input counts as the same


def _is_same_reuse(step: StepRow, spec: StepSpec) -> bool:
    if spec.reuse is None or step.reuse is None:
        return spec.reuse is None and step.reuse is None
    kept, asked = msgspec.json.decode(step.reuse, type=ReuseTerms), spec.reuse
    return (kept.scope, kept.digest, kept.also) == (asked.scope, asked.digest, asked.also)


def _same_needs(d: Draft, plan: tuple[StepSpec, ...], steps: list[StepRow]) -> bool:
    """Whether these steps need exactly what is requested."""
    everything = range(steps[-1].idx + 1)
    d.need("step", everything)
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
