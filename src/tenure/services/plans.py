"""Plans as people write them: step specs, plain dictionaries, or a JSON or TOML file with a list of steps.

Laws:
1. Whatever is wrong is PLAN_INVALID with the place; the kernel checks what only it can know (names, needs, cycles).
2. A step that somebody has to do goes to workers that have its tool, which is called as the step where none is named; a
   queue that says already who may take it (`default|tool:build`) stays as it is.
3. What users give is data: a payload that begins as only ours do is refused, and so are commands, conditions and templates,
   which come from workflow files alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tenure.canonical import decode_json
from tenure.errors import Detail, TenureError
from tenure.kernel import capability
from tenure.kernel.commands import StepSpec
from tenure.sdk.codec import RESERVED, encode

PlanLike = Sequence[StepSpec | Mapping[str, Any]]
CHOICES = {".kind": ("work", "approval", "wait"), ".approval.tier": ("low", "med", "high")}
"""What people may choose from, told to who chose something else. (`body` is the code of a code-first run.)"""


def encode_payload(value: Any, *, aside: bool = False) -> bytes | None:
    """A value as the bytes of a payload: JSON. None is no payload; bytes are taken as they are. What looks like a
    reference of ours is refused, unless the caller puts it aside (`Engine.kept`)."""
    if value is None:
        return None
    body = value if isinstance(value, bytes) else encode(value, "a payload")
    if body is not None and body.startswith(RESERVED) and not aside:
        raise TenureError("INVALID_INPUT", "a payload's first name may not begin with '$tenure'")
    return body


def encode_json_object(value: Mapping[str, Any] | None) -> str:
    """Labels or metadata as they are stored."""
    return (encode_payload(dict(value or {})) or b"{}").decode()


def make_plan(steps: PlanLike) -> tuple[StepSpec, ...]:
    """A plan from step specs and dictionaries; a dictionary's `input` may be any JSON value."""
    if not steps:
        raise _invalid("plan", "a plan has at least one step")
    made = []
    for i, step in enumerate(steps):
        place = f"plan[{i}]"
        made.append(_placed(place, step if isinstance(step, StepSpec) else _step(place, step)))
    return tuple(made)


def _placed(place: str, step: StepSpec) -> StepSpec:
    """The step where the workers that have its tool find it; see law 2."""
    if step.kind != "work":
        return step
    tool = step.tool or step.name
    if capability.SEPARATOR in step.queue:
        return msgspec.structs.replace(step, tool=tool)
    if step.input is not None and step.input.startswith(RESERVED):
        raise _invalid(f"{place}.input", "its first name may not begin with '$tenure'")
    try:
        queue = capability.capability(step.queue, capability.tool(tool))
    except TenureError as fault:
        raise _invalid(f"{place}.queue", fault.message) from fault
    return msgspec.structs.replace(step, tool=tool, queue=queue)


def _step(place: str, raw: Any) -> StepSpec:
    if not isinstance(raw, Mapping):
        raise _invalid(place, f"a step is an object with a name, not {type(raw).__name__}")
    fields = dict(raw)
    given = encode_payload(fields.pop("input", None))
    try:
        step = msgspec.convert(fields, StepSpec)
    except msgspec.ValidationError as fault:
        problem, _, where = str(fault).partition(" - at ")
        path = where.strip("`").removeprefix("$")
        if choices := CHOICES.get(path):
            problem = f"{problem}; it is one of {', '.join(choices)}"
        raise _invalid(place + path, problem) from fault
    if capability.split(step.queue)[1] == capability.RUN or step.template is not None or step.skipped:
        raise _invalid(place, "commands, conditions and templates come from workflow files")
    return msgspec.structs.replace(step, input=given)


def _invalid(place: str, problem: str) -> TenureError:
    return TenureError("PLAN_INVALID", f"{place}: {problem}", (Detail(place, problem),))


def read_plan(file: Path) -> tuple[StepSpec, ...]:
    """A plan from a file: a JSON list of steps, or TOML with `[[steps]]`; JSON may also have `{"steps": […]}`."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise TenureError("PLAN_INVALID", f"{file} cannot be read: {fault}") from fault
    try:
        raw = tomllib.loads(text) if file.suffix == ".toml" else decode_json(text)
    except RecursionError as fault:
        raise TenureError("PLAN_INVALID", f"{file} is nested too deeply") from fault
    except (tomllib.TOMLDecodeError, msgspec.DecodeError) as fault:
        kind = "TOML" if file.suffix == ".toml" else "JSON"
        raise TenureError("PLAN_INVALID", f"{file} is not {kind}: {fault}") from fault
    if isinstance(raw, dict):
        unknown = sorted(raw.keys() - {"steps"})
        if unknown:
            raise _invalid(unknown[0], "a plan file has nothing but steps")
        raw = raw.get("steps")
    if not isinstance(raw, list):
        raise _invalid("plan", "a plan file is a list of steps")
    return make_plan(raw)
