"""Plans a run: a declared workflow and inputs become the plan that the kernel takes.

Laws:
1. Expressions over values that are known at submission are evaluated now. If all of a step is known, its input is plain data;
   otherwise the step has a template whose `open` lists the places that `tenure.declared.step_resolver` evaluates when the step is
   due. An evaluated value is data, whatever it looks like.
2. A step whose condition is already known to be false keeps its name and position, and is skipped when it is due.
3. A step's input never looks like a reference: an input that begins with a reserved key is refused.
4. The text of a question is a payload, which can be erased; the history of a gate contains only its action.
5. A run of a workflow with a planner has a plan step, which gets the bound inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tenure.declared.model import (
    GATES,
    ApprovalQuestion,
    DeclaredStep,
    DeclaredWorkflow,
    RetrySettings,
    WaitSettings,
    WorkflowPlanner,
    required_capability,
    step_tool,
)
from tenure.declared.step_inputs import RESERVED_KEYS, StepTemplate, is_condition_true, plain_step_input
from tenure.errors import Detail, TenureError
from tenure.expressions import templates
from tenure.expressions.expression import shared_budget
from tenure.expressions.templates import TemplatePlace, format_value, parse_condition
from tenure.kernel import capability as cap
from tenure.kernel.commands import ApprovalSpec, BackoffSpec, StepSpec, WaitSpec, build_plan_step
from tenure.limits import LABEL_CHARS_MAX, NAME_CHARS_MAX

NO_EVENT_SECONDS = 1.0
"""The duration of a skipped wait that has none of its own."""


def build_plan(
    declared: DeclaredWorkflow,
    inputs: Mapping[str, Any],
    *,
    run: Mapping[str, Any] | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> tuple[StepSpec, ...]:
    scope: dict[str, Any] = {"inputs": declared.bind(inputs)}
    if declared.planner is not None:
        return (_plan_step(declared.planner, scope["inputs"]),)
    if run is not None:
        scope["run"] = run
    if trigger is not None:
        scope["trigger"] = trigger
    with shared_budget():
        return tuple(
            _gate(step, scope) if step.kind in GATES else _work(step, scope) for step in declared.steps
        )


def _plan_step(planner: WorkflowPlanner, inputs: Mapping[str, Any]) -> StepSpec:
    return msgspec.structs.replace(
        build_plan_step(
            planner.tool,
            queue=cap.capability(planner.queue, cap.tool(planner.tool)),
            input=msgspec.json.encode(inputs),
            timeout_seconds=planner.timeout_seconds,
            retries=planner.retry.max,
        ),
        backoff=_backoff(planner.retry),
    )


def _backoff(retry: RetrySettings) -> BackoffSpec | None:
    jitter = () if retry.jitter is None else (retry.jitter,)
    return None if retry.backoff is None else BackoffSpec(retry.backoff, *jitter)


def _work(step: DeclaredStep, scope: Mapping[str, Any]) -> StepSpec:
    left: list[TemplatePlace] = []
    undecided = False
    if step.condition is not None:
        undecided = not all(r.is_known(scope) for r in parse_condition(step.condition).refers)
        if undecided:
            left.append(("if",))
        elif not is_condition_true(step.condition, scope):
            return _spec(step, skipped=True)

    def close(name: str, value: Any) -> Any:
        # An undecided condition may guard an expression that cannot be evaluated: that is left for later too.
        return templates.evaluate_known_templates(value, scope, (name,), left, lenient=undecided)

    key = close("idempotency_key", step.idempotency_key) if step.idempotency_key else ""
    open_key = bool(left) and left[-1] == ("idempotency_key",)
    job = StepTemplate(
        condition=step.condition if undecided else None,
        arguments=close("with", step.arguments),
        run=close("run", list(step.run)),
        env=close("env", step.env),
        cwd=close("cwd", step.cwd) if step.cwd else None,
        output=step.output,
        idempotency_key=key if open_key else None,
        places=left,
    )
    fixed = "" if open_key or not key else _fixed(step, "idempotency_key", key, LABEL_CHARS_MAX)
    if left:
        return _spec(step, idempotency_key=fixed, template=msgspec.json.encode(job))
    made = plain_step_input(job)
    if made.startswith(RESERVED_KEYS):
        raise _invalid(step, "with", "the name of an argument must not begin with '$tenure'")
    return _spec(step, idempotency_key=fixed, input=made)


def _spec(step: DeclaredStep, **how: Any) -> StepSpec:
    return StepSpec(
        name=step.id,
        tool=step_tool(step.kind, step.target),
        needs=step.needs,
        required=step.required,
        queue=cap.capability(step.queue, required_capability(step.kind, step.target)),
        retries=step.retry.max,
        backoff=_backoff(step.retry),
        timeout_seconds=step.timeout_seconds,
        condition=step.condition,
        **how,
    )


def _gate(step: DeclaredStep, scope: Mapping[str, Any]) -> StepSpec:
    approval, wait, asked = None, None, None
    skipped = step.condition is not None and not is_condition_true(step.condition, scope)
    if step.approval is not None:
        approval, asked = _approval(step, step.approval, scope, skipped)
    elif step.wait is not None:
        wait = _wait(step, step.wait, scope, skipped)
    return StepSpec(
        name=step.id,
        kind=step.kind,  # type: ignore[arg-type]  # a gate's kind is a step's
        needs=step.needs,
        required=step.required,
        queue=step.queue,
        input=asked,
        approval=approval,
        wait=wait,
        condition=step.condition,
        skipped=skipped,
    )


def _approval(
    step: DeclaredStep, question: ApprovalQuestion, scope: Mapping[str, Any], skipped: bool
) -> tuple[ApprovalSpec, bytes | None]:
    if skipped:  # its title may have no value, which is what the condition guards against
        return ApprovalSpec(question.action, question.tier, question.people, question.within), None
    title = _fixed(
        step, "approval.title", templates.parse_template(question.title).value(scope), LABEL_CHARS_MAX
    )
    spec = ApprovalSpec(
        question.action, question.tier, question.people, question.within, group=question.group
    )
    return spec, msgspec.json.encode({"title": title})


def _wait(step: DeclaredStep, awaited: WaitSettings, scope: Mapping[str, Any], skipped: bool) -> WaitSpec:
    # The event of a skipped wait may have no value, which is what the condition guards against.
    if awaited.time is not None or skipped:
        return WaitSpec(within_seconds=awaited.time or awaited.within or NO_EVENT_SECONDS)
    event, source = (
        _fixed(step, f"wait.{name}", templates.parse_template(text).value(scope), NAME_CHARS_MAX)
        if text
        else ""
        for name, text in (("event", awaited.event), ("source", awaited.source))
    )
    return WaitSpec(event, source, awaited.within)


def _fixed(step: DeclaredStep, name: str, value: Any, most: int) -> str:
    """A text made from inputs, with a limited length."""
    text = format_value(value)
    if 0 < len(text) <= most and text.isprintable():
        return text
    problem = f"has {len(text)} characters with these inputs; it must have 1 to {most} printable characters"
    raise _invalid(step, name, problem)


def _invalid(step: DeclaredStep, name: str, problem: str) -> TenureError:
    return TenureError(
        "INVALID_INPUT", f"step {step.id}: {name}: {problem}", (Detail(f"{step.id}.{name}", problem),)
    )
