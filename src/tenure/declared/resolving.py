"""What a worker has to do, once it has claimed a step and knows the outputs of the steps before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tenure.declared import rules, templates
from tenure.declared.expressions import Reference
from tenure.declared.planning import MARK, is_true
from tenure.declared.templates import Place, as_text
from tenure.errors import TenureError


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A step's work without any templates left."""

    skipped: bool = False
    """Its condition is false: it succeeds with the output null, and nothing is done."""
    arguments: dict[str, Any] = {}
    """`with`, of a tool or a child workflow."""
    argv: tuple[str, ...] = ()
    """`run`, of a command."""
    env: dict[str, str] = {}
    cwd: str | None = None
    output: Literal["text", "json"] = "text"
    idempotency_key: str | None = None
    """Where it could not be known at submission; None: the step's own."""
    idempotent: bool = False
    """Doing it twice is the same as doing it once, says its author."""


class _Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of a declared step, as planning wrote it."""

    mark: int = msgspec.field(default=1, name=MARK)
    condition: str | bool = msgspec.field(default=True, name="if")
    arguments: dict[str, Any] = msgspec.field(default_factory=dict, name="with")
    run: list[Any] = []
    env: dict[str, Any] = {}
    cwd: str | None = None
    output: Literal["text", "json"] = "text"
    idempotency_key: str | None = None
    idempotent: bool = False
    places: list[tuple[str | int, ...]] = msgspec.field(default_factory=list, name="open")


_DECODER = msgspec.json.Decoder(_Job)
_BEGINS = f'{{"{MARK}":'.encode()


def _decoded(job_input: bytes) -> tuple[_Job, frozenset[Place]]:
    try:
        job = _DECODER.decode(job_input)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise TenureError("INVALID_INPUT", f"this is no input of a declared step: {fault}") from fault
    return job, frozenset(job.places)


def is_planned(step_input: bytes | None) -> bool:
    """Whether a step's input is what planning wrote, and not data for its tool."""
    return step_input is not None and step_input.startswith(_BEGINS)


def needed_steps(job_input: bytes) -> set[str]:
    """The ids of the steps whose outputs `resolve` will look at."""
    job, places = _decoded(job_input)
    refers: list[Reference] = []
    for place in places:
        if place == ("if",) and isinstance(job.condition, str):
            refers += rules.condition(job.condition).refers
        else:
            refers += templates.parse(_at(job, place)).refers
    return {str(r.parts[0]) for r in refers if r.root == "steps" and r.parts}


def resolve(job_input: bytes, scope: Mapping[str, Any]) -> Resolved:
    """A step's work in a scope of inputs, steps (`{id: {"output": …}}`), run, trigger and, where there is one, slot."""
    job, places = _decoded(job_input)
    if job.condition is False or (isinstance(job.condition, str) and not is_true(job.condition, scope)):
        return Resolved(skipped=True)
    cwd = None if job.cwd is None else templates.fill(job.cwd, scope, ("cwd",), places)
    key = job.idempotency_key
    if key is not None:
        key = as_text(templates.fill(key, scope, ("idempotency_key",), places))
    return Resolved(
        arguments=templates.fill(job.arguments, scope, ("with",), places),
        argv=tuple(
            _argument(f"run[{i}]", value)
            for i, value in enumerate(templates.fill(job.run, scope, ("run",), places))
        ),
        env={
            name: _bare(f"env.{name}", as_text(value))
            for name, value in templates.fill(job.env, scope, ("env",), places).items()
        },
        cwd=None if cwd is None else _argument("cwd", cwd),
        output=job.output,
        idempotency_key=key,
        idempotent=job.idempotent,
    )


def _at(job: _Job, place: Place) -> str:
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
        raise TenureError("INVALID_INPUT", f"the step's input has nothing at {place}") from fault
    return str(here)


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
