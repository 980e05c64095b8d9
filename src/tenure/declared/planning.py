"""From a declared workflow and a run's inputs to the plan the kernel takes.

Laws:
1. What only needs what is known at submission is evaluated now; every other template stays a text in the step's
   input, and `open` lists the places of those. What was evaluated is data from then on, whatever it looks like.
2. What it writes for a worker begins with a mark of its own: an input without it is data, whatever it looks like.
3. A gate whose condition is false keeps its name and place: it becomes a wait that is over at once.
4. A question's text is a payload, which can be erased; of a gate only the action is told in the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tenure.declared import rules, templates
from tenure.declared.model import GATES, Awaited, Declared, Question, Step
from tenure.declared.templates import Place, as_text
from tenure.errors import Detail, TenureError
from tenure.kernel import capability as cap
from tenure.kernel.commands import ApprovalSpec, BackoffSpec, StepSpec, WaitSpec
from tenure.limits import LABEL_CHARS_MAX, NAME_CHARS_MAX

MARK = "$tenure.step"
"""The first key of what a worker is to resolve. Inputs of users may not begin with it."""
NO_TIME_SECONDS = 1e-6
"""The shortest wait there is."""


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
    return tuple(_gate(step, scope) if step.kind in GATES else _work(step, scope) for step in declared.steps)


def is_true(condition: str, scope: Mapping[str, Any]) -> bool:
    """What an `if` says."""
    value = rules.condition(condition).value(scope)
    if not isinstance(value, bool):
        raise TenureError(
            "EXPRESSION_FAILED", f"{condition}: an if is true or false, not {as_text(value)[:60]}"
        )
    return value


def _work(step: Step, scope: Mapping[str, Any]) -> StepSpec:
    job: dict[str, Any] = {MARK: 1}
    left: list[Place] = []
    undecided = False
    if step.condition is not None:
        undecided = not all(r.is_known(scope) for r in rules.condition(step.condition).refers)
        if undecided:
            job["if"] = step.condition
            left.append(("if",))
        elif not is_true(step.condition, scope):
            job["if"] = False
    key = ""
    if job.get("if") is not False:
        # A condition that is not known yet may guard what cannot be evaluated: that is left for later too.
        parts = {"with": step.arguments, "run": list(step.run), "env": step.env, "cwd": step.cwd}
        for name, value in parts.items():
            if value or (name == "with" and step.kind != "run"):
                job[name] = templates.close(value, scope, (name,), left, lenient=undecided)
        if step.idempotent:
            job["idempotent"] = True
        if step.output != "text":
            job["output"] = step.output
        if step.idempotency_key:
            before = len(left)
            made = templates.close(step.idempotency_key, scope, ("idempotency_key",), left, lenient=undecided)
            if len(left) > before:
                job["idempotency_key"] = made
            else:
                key = _fixed(step, "idempotency_key", made, LABEL_CHARS_MAX)
    if left:
        job["open"] = left
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
        idempotency_key=key,
        input=msgspec.json.encode(job),
    )


def _gate(step: Step, scope: Mapping[str, Any]) -> StepSpec:
    approval, wait, asked = None, None, None
    kind: Any = step.kind
    if step.condition is not None and not is_true(step.condition, scope):
        kind, wait = "wait", WaitSpec(within_seconds=NO_TIME_SECONDS)
    elif step.approval is not None:
        approval, asked = _approval(step, step.approval, scope)
    elif step.wait is not None:
        wait = _wait(step, step.wait, scope)
    return StepSpec(
        name=step.id,
        kind=kind,
        needs=step.needs,
        required=step.required,
        queue=step.queue,
        input=asked,
        approval=approval,
        wait=wait,
    )


def _approval(step: Step, question: Question, scope: Mapping[str, Any]) -> tuple[ApprovalSpec, bytes]:
    title = _fixed(step, "approval.title", templates.parse(question.title).value(scope), LABEL_CHARS_MAX)
    spec = ApprovalSpec(
        question.action, question.tier, question.people, question.within, group=question.group
    )
    return spec, msgspec.json.encode({"title": title})


def _wait(step: Step, awaited: Awaited, scope: Mapping[str, Any]) -> WaitSpec:
    if awaited.time is not None:
        return WaitSpec(within_seconds=awaited.time)
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
