"""Turns a step's template into its input: plain values without expressions.

Laws:
1. A tool and a child workflow get `with` as an object. A command gets `argv` and optionally `env`, `cwd` and `output`: see
   docs/runner-protocol.md. Workers evaluate nothing.
2. The condition is evaluated first. If it is false, nothing else is evaluated.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from tenure.commands.process import ResolvedCommand
from tenure.errors import TenureError
from tenure.expressions import templates
from tenure.expressions.expression import (
    ATTEMPT_PATH,
    ExpressionReference,
    MalformedExpression,
    shared_budget,
)
from tenure.expressions.templates import TemplatePlace, format_value, parse_condition
from tenure.limits import LABEL_CHARS_MAX

RESERVED_KEYS = b'{"$tenure'
"""The beginning of payloads that are references. A step's input never begins like this."""


class PreparedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluated template of a step, for one attempt."""

    skipped: bool = False
    """The condition is false: the step succeeds with the output null."""
    input: bytes = b"{}"
    idempotency_key: str = ""
    """Empty: the step's own key."""
    each_try: bool = False
    """Whether it uses the attempt number, so that each attempt needs its own input."""


class StepTemplate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A step's work as planned: values, and the places that still contain expressions."""

    condition: str | None = msgspec.field(default=None, name="if")
    arguments: dict[str, Any] = msgspec.field(default_factory=dict, name="with")
    run: list[Any] = []
    env: dict[str, Any] = {}
    cwd: str | None = None
    output: Literal["text", "json"] = "text"
    idempotency_key: str | None = None
    places: list[tuple[str | int, ...]] = msgspec.field(default_factory=list, name="open")


_DECODER = msgspec.json.Decoder(StepTemplate)


def _decoded(template: bytes) -> StepTemplate:
    try:
        return _DECODER.decode(template)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise TenureError("INVALID_INPUT", f"this is not the template of a step: {fault}") from fault


def template_references(template: bytes) -> set[ExpressionReference]:
    return set(_refers(_decoded(template)))


def needed_steps(refers: Iterable[ExpressionReference]) -> set[str]:
    return {str(r.parts[0]) for r in refers if r.root == "steps" and r.parts}


def _refers(job: StepTemplate) -> Iterator[ExpressionReference]:
    for place in job.places:
        if place == ("if",) and job.condition is not None:
            yield from parse_condition(job.condition).refers
        else:
            yield from templates.parse_template(_at(job, place)).refers


def prepare_step(
    template: bytes, scope: Mapping[str, Any], key_scope: Mapping[str, Any] | None = None
) -> PreparedStep:
    """Evaluate a template in a scope of inputs, steps (`{id: {"output": …}}`), run, trigger and optionally slot. The idempotency key is
    evaluated in `key_scope`, if given.
    """
    with shared_budget():
        return _prepared(_decoded(template), scope, key_scope)


def _prepared(
    job: StepTemplate, scope: Mapping[str, Any], key_scope: Mapping[str, Any] | None
) -> PreparedStep:
    if job.condition is not None and not is_condition_true(job.condition, scope):
        return PreparedStep(skipped=True)
    places = frozenset(job.places)

    def fill(name: str, value: Any, values: Mapping[str, Any] = scope) -> Any:
        return None if value is None else templates.evaluate_open_templates(value, values, (name,), places)

    key = fill("idempotency_key", job.idempotency_key, key_scope or scope)
    key = "" if job.idempotency_key is None else _checked_key(format_value(key))
    filled = msgspec.structs.replace(
        job,
        arguments=fill("with", job.arguments),
        run=fill("run", job.run),
        env=fill("env", job.env),
        cwd=fill("cwd", job.cwd),
    )
    each_try = any(map(names_attempt, _refers(job)))
    return PreparedStep(input=plain_step_input(filled), idempotency_key=key, each_try=each_try)


def names_attempt(reference: ExpressionReference) -> bool:
    """Whether a reference is to the attempt number, or to all of `run`."""
    return reference.root == ATTEMPT_PATH[0] and reference.parts[:1] in ((), ATTEMPT_PATH[1:])


def plain_step_input(job: StepTemplate) -> bytes:
    if not job.run:
        return msgspec.json.encode(job.arguments)
    command = ResolvedCommand(
        argv=tuple(_argument(f"run[{i}]", value) for i, value in enumerate(job.run)),
        env={name: _without_nul(f"env.{name}", format_value(value)) for name, value in job.env.items()},
        cwd=None if job.cwd is None else _argument("cwd", job.cwd),
        output=job.output,
    )
    return msgspec.json.encode(command)


def is_condition_true(condition: str, scope: Mapping[str, Any]) -> bool:
    value = parse_condition(condition).value(scope)
    if not isinstance(value, bool):
        raise TenureError(
            "EXPRESSION_FAILED",
            f"{condition}: a condition must be true or false, not {format_value(value)[:60]}",
        )
    return value


def _at(job: StepTemplate, place: TemplatePlace) -> str:
    here: Any = {
        "with": job.arguments,
        "run": job.run,
        "env": job.env,
        "cwd": job.cwd,
        "idempotency_key": job.idempotency_key,
    }
    try:
        for part in place:
            here = here[part]
    except (KeyError, IndexError, TypeError) as fault:
        raise TenureError("INVALID_INPUT", f"the step's template has nothing at {place}") from fault
    return str(here)


def _checked_key(text: str) -> str:
    if 0 < len(text) <= LABEL_CHARS_MAX and text.isprintable():
        return text
    raise TenureError(
        "EXPRESSION_FAILED",
        f"idempotency_key: has {len(text)} characters; it must have 1 to {LABEL_CHARS_MAX} printable characters",
    )


def _argument(at: str, value: Any) -> str:
    """An argument as text. A list or null is a mistake, and is not converted to JSON."""
    if value is None or isinstance(value, list | dict):
        raise TenureError(
            "EXPRESSION_FAILED",
            f"{at}: an argument must be a string, a number or a boolean, not {format_value(value)[:60]}",
        )
    return _without_nul(at, format_value(value))


def _without_nul(at: str, text: str) -> str:
    if "\0" in text:
        raise TenureError("EXPRESSION_FAILED", f"{at}: has a NUL character, which a command cannot take")
    return text


_KEPT = re.compile("\ue000([0-9]+)\ue001")


def split_arguments(command: str | list[str]) -> tuple[str, ...]:
    """The arguments of a command. A string is split as a shell would split it. An expression stays (a part of) one argument, whatever its
    value is. MalformedExpression for an unclosed quote.
    """
    if not isinstance(command, str):
        return tuple(command)
    kept: list[str] = []
    text = ""
    for literal, part in templates.split_template(command):
        if literal:
            if any("\ue000" <= char <= "\uf8ff" for char in part):
                raise MalformedExpression("a command must not contain private-use characters")
            text += part
        else:
            text += f"\ue000{len(kept)}\ue001"
            kept.append(part)
    try:
        words = shlex.split(text)
    except ValueError as fault:
        raise MalformedExpression(
            f"the command cannot be split into arguments: {str(fault).lower()}"
        ) from fault
    return tuple(
        _KEPT.sub(lambda found: f"{templates.OPEN}{kept[int(found[1])]}{templates.CLOSE}", word)
        for word in words
    )
