"""From a declared workflow and a run's inputs to the plan the kernel takes.

Laws:
1. What only needs what is known at submission is evaluated now. Where all of a step is known its input is plain; every
   other step has a template, in which `open` lists the places that are evaluated when its turn comes
   (`tenure.declared.resolution`). What was evaluated is data from then on, whatever it looks like.
2. A step whose condition is known to be false keeps its name and place, and is skipped when its turn comes.
3. Nothing that a step is handed stands for something else: an input that begins with a reserved key is refused.
4. A question's text is a payload, which can be erased; of a gate only the action is told in the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tenure.declared import rules, templates
from tenure.declared.expressions import shared_budget
from tenure.declared.model import GATES, Awaited, Declared, Question, Step
from tenure.declared.resolving import RESERVED, Template, is_true, plain
from tenure.declared.templates import Place, as_text
from tenure.errors import Detail, TenureError
from tenure.kernel import capability as cap
from tenure.kernel.commands import ApprovalSpec, BackoffSpec, StepSpec, WaitSpec
from tenure.limits import LABEL_CHARS_MAX, NAME_CHARS_MAX

NO_EVENT_SECONDS = 1.0
"""What a wait says that is skipped and has no time of its own; nobody waits for it."""


def plan(
    declared: Declared,
    inputs: Mapping[str, Any],
    *,
    run: Mapping[str, Any] | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> tuple[StepSpec, ...]:
    """The steps of a run with these inputs, which are bound first."""
    scope: dict[str, Any] = {"inputs": declared.bind(inputs)}
    if run is not None:
        scope["run"] = run
    if trigger is not None:
        scope["trigger"] = trigger
    with shared_budget():
        return tuple(
            _gate(step, scope) if step.kind in GATES else _work(step, scope) for step in declared.steps
        )


def _work(step: Step, scope: Mapping[str, Any]) -> StepSpec:
    left: list[Place] = []
    undecided = False
    if step.condition is not None:
        undecided = not all(r.is_known(scope) for r in rules.condition(step.condition).refers)
        if undecided:
            left.append(("if",))
        elif not is_true(step.condition, scope):
            return _spec(step, skipped=True)

    def close(name: str, value: Any) -> Any:
        # A condition that is not known yet may guard what cannot be evaluated: that is left for later too.
        return templates.close(value, scope, (name,), left, lenient=undecided)

    key = close("idempotency_key", step.idempotency_key) if step.idempotency_key else ""
    open_key = bool(left) and left[-1] == ("idempotency_key",)
    job = Template(
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
    made = plain(job)
    if made.startswith(RESERVED):
        problem = "the name of an argument may not begin with '$tenure'"
        raise TenureError(
            "INVALID_INPUT", f"step {step.id}: with: {problem}", (Detail(f"{step.id}.with", problem),)
        )
    return _spec(step, idempotency_key=fixed, input=made)


def _spec(step: Step, **how: Any) -> StepSpec:
    retry = step.retry
    backoff = None
    if retry.backoff is not None:
        backoff = (
            BackoffSpec(retry.backoff) if retry.jitter is None else BackoffSpec(retry.backoff, retry.jitter)
        )
    tool = {"run": "run", "uses": step.target}.get(step.kind, f"workflow:{step.target}")
    return StepSpec(
        name=step.id,
        tool=tool,
        needs=step.needs,
        required=step.required,
        queue=cap.capability(step.queue, rules.what(step.kind, step.target)),
        retries=retry.max,
        backoff=backoff,
        timeout_seconds=step.timeout_seconds,
        condition=step.condition,
        **how,
    )


def _gate(step: Step, scope: Mapping[str, Any]) -> StepSpec:
    approval, wait, asked = None, None, None
    skipped = step.condition is not None and not is_true(step.condition, scope)
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
    step: Step, question: Question, scope: Mapping[str, Any], skipped: bool
) -> tuple[ApprovalSpec, bytes | None]:
    if skipped:  # what its condition guards may have no value
        return ApprovalSpec(question.action, question.tier, question.people, question.within), None
    title = _fixed(step, "approval.title", templates.parse(question.title).value(scope), LABEL_CHARS_MAX)
    spec = ApprovalSpec(
        question.action, question.tier, question.people, question.within, group=question.group
    )
    return spec, msgspec.json.encode({"title": title})


def _wait(step: Step, awaited: Awaited, scope: Mapping[str, Any], skipped: bool) -> WaitSpec:
    if awaited.time is not None or skipped:  # what its condition guards may have no value
        return WaitSpec(within_seconds=awaited.time or awaited.within or NO_EVENT_SECONDS)
    event = _fixed(step, "wait.event", templates.parse(awaited.event).value(scope), NAME_CHARS_MAX)
    source = ""
    if awaited.source:
        source = _fixed(step, "wait.source", templates.parse(awaited.source).value(scope), NAME_CHARS_MAX)
    return WaitSpec(event, source, awaited.within)


def _fixed(step: Step, name: str, value: Any, most: int) -> str:
    """A text that was made from inputs and goes where texts are bounded."""
    text = as_text(value)
    if 0 < len(text) <= most and text.isprintable():
        return text
    problem = f"with these inputs it has {len(text)} characters; it must have 1 to {most} printable ones"
    raise TenureError(
        "INVALID_INPUT", f"step {step.id}: {name}: {problem}", (Detail(f"{step.id}.{name}", problem),)
    )
