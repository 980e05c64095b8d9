"""From a step's template to what it is handed out with: plain values, in which no expression is left.

Laws:
1. A tool and a child workflow get their `with` as an object. A command gets `argv`, and where it has them `env`, `cwd` and
   `output`: see docs/runner-protocol.md. Nobody who is handed a step evaluates anything.
2. The condition is evaluated first. Where it is false nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from tenure.declared import rules, templates
from tenure.declared.expressions import TRY, Reference, shared_budget
from tenure.declared.templates import Place, as_text
from tenure.errors import TenureError
from tenure.limits import LABEL_CHARS_MAX

RESERVED = b'{"$tenure'
"""How a payload begins that stands for something else; what a step is handed never looks like one."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A command without any templates left: the input of a `run` step."""

    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    output: Literal["text", "json"] = "text"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What a template is worth for one try."""

    skipped: bool = False
    """Its condition is false: it succeeds with the output null, and nothing is done."""
    input: bytes = b"{}"
    idempotency_key: str = ""
    """Empty: the step's own."""
    each_try: bool = False
    """Whether it looks at the number of the try, so that the next try needs an input of its own."""


class Template(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A step's work as planning wrote it: values, and the places at which there are still expressions."""

    condition: str | None = msgspec.field(default=None, name="if")
    arguments: dict[str, Any] = msgspec.field(default_factory=dict, name="with")
    run: list[Any] = []
    env: dict[str, Any] = {}
    cwd: str | None = None
    output: Literal["text", "json"] = "text"
    idempotency_key: str | None = None
    places: list[tuple[str | int, ...]] = msgspec.field(default_factory=list, name="open")


_DECODER = msgspec.json.Decoder(Template)
_COMMAND = msgspec.json.Decoder(Resolved)


def _decoded(template: bytes) -> Template:
    try:
        return _DECODER.decode(template)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise TenureError("INVALID_INPUT", f"this is no template of a step: {fault}") from fault


def command_of(step_input: bytes | None) -> Resolved:
    """The command that the input of a `run` step names."""
    try:
        return _COMMAND.decode(step_input or b"{}")
    except (msgspec.DecodeError, RecursionError) as fault:
        raise TenureError("INVALID_INPUT", f"this is no input of a command: {fault}") from fault


def references(template: bytes) -> set[Reference]:
    """All that `prepare` will look at."""
    return set(_refers(_decoded(template)))


def needed_steps(refers: Iterable[Reference]) -> set[str]:
    """The ids of the steps whose outputs these look at."""
    return {str(r.parts[0]) for r in refers if r.root == "steps" and r.parts}


def _refers(job: Template) -> Iterator[Reference]:
    for place in job.places:
        if place == ("if",) and job.condition is not None:
            yield from rules.condition(job.condition).refers
        else:
            yield from templates.parse(_at(job, place)).refers


def prepare(
    template: bytes, scope: Mapping[str, Any], key_scope: Mapping[str, Any] | None = None
) -> Prepared:
    """What a template is worth in a scope of inputs, steps (`{id: {"output": …}}`), run, trigger and, where there is one,
    slot. Its key is made in `key_scope`, where that is another."""
    with shared_budget():
        return _prepared(_decoded(template), scope, key_scope)


def _prepared(job: Template, scope: Mapping[str, Any], key_scope: Mapping[str, Any] | None) -> Prepared:
    if job.condition is not None and not is_true(job.condition, scope):
        return Prepared(skipped=True)
    places = frozenset(job.places)
    key = ""
    if job.idempotency_key is not None:
        made = templates.fill(job.idempotency_key, key_scope or scope, ("idempotency_key",), places)
        key = _key(as_text(made))
    filled = msgspec.structs.replace(
        job,
        arguments=templates.fill(job.arguments, scope, ("with",), places),
        run=templates.fill(job.run, scope, ("run",), places),
        env=templates.fill(job.env, scope, ("env",), places),
        cwd=None if job.cwd is None else templates.fill(job.cwd, scope, ("cwd",), places),
    )
    each = any(r.root == TRY[0] and r.parts[:1] in ((), TRY[1:]) for r in _refers(job))
    return Prepared(input=plain(filled), idempotency_key=key, each_try=each)


def plain(job: Template) -> bytes:
    """The input of a step, of whose template everything is evaluated."""
    if not job.run:
        return msgspec.json.encode(job.arguments)
    command = Resolved(
        argv=tuple(_argument(f"run[{i}]", value) for i, value in enumerate(job.run)),
        env={name: _bare(f"env.{name}", as_text(value)) for name, value in job.env.items()},
        cwd=None if job.cwd is None else _argument("cwd", job.cwd),
        output=job.output,
    )
    return msgspec.json.encode(command)


def is_true(condition: str, scope: Mapping[str, Any]) -> bool:
    """What an `if` says."""
    value = rules.condition(condition).value(scope)
    if not isinstance(value, bool):
        raise TenureError(
            "EXPRESSION_FAILED", f"{condition}: an if is true or false, not {as_text(value)[:60]}"
        )
    return value


def _at(job: Template, place: Place) -> str:
    names: dict[str | int, Any] = {
        "with": job.arguments,
        "run": job.run,
        "env": job.env,
        "cwd": job.cwd,
        "idempotency_key": job.idempotency_key,
    }
    here: Any = names
    try:
        for part in place:
            here = here[part]
    except (KeyError, IndexError, TypeError) as fault:
        raise TenureError("INVALID_INPUT", f"the step's template has nothing at {place}") from fault
    return str(here)


def _key(text: str) -> str:
    if 0 < len(text) <= LABEL_CHARS_MAX and text.isprintable():
        return text
    raise TenureError(
        "EXPRESSION_FAILED",
        f"idempotency_key: it has {len(text)} characters; a key has 1 to {LABEL_CHARS_MAX} printable ones",
    )


def _argument(at: str, value: Any) -> str:
    """A list or null where a command takes one word is a mistake, not a text in JSON."""
    if value is None or isinstance(value, list | dict):
        raise TenureError(
            "EXPRESSION_FAILED",
            f"{at}: an argument is a text, a number or a boolean, not {as_text(value)[:60]}",
        )
    return _bare(at, as_text(value))


def _bare(at: str, text: str) -> str:
    if "\0" in text:
        raise TenureError("EXPRESSION_FAILED", f"{at}: it has a NUL character, which no command can be given")
    return text
