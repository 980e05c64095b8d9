"""Plans from users: step specs, dictionaries, or a JSON or TOML file with a list of steps.

Laws:
1. A problem is PLAN_INVALID with its place. The kernel checks names, needs and cycles.
2. Work and planning are queued for workers that have the step's tool. Without a tool, the tool of work has the step's name. A queue that
   already names a capability (`default|tool:build`) stays unchanged.
3. Users' values are data. A payload that begins like a reference is refused. So are commands, conditions and templates, which only
   workflow files may contain.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tenure.canonical import decode_json
from tenure.durations import parse_duration
from tenure.errors import TenureError, field_error
from tenure.kernel import capability
from tenure.kernel.commands import StepSpec, build_plan_step
from tenure.sdk.codec import RESERVED, encode

PlanLike = Sequence[StepSpec | Mapping[str, Any]]
CHOICES = {".kind": ("work", "approval", "wait"), ".approval.tier": ("low", "med", "high")}
"""The values that users may choose. (`body`, the code of a code-first run, and `plan` are not among them.)"""


def encode_payload(value: Any, *, aside: bool = False) -> bytes | None:
    """A value as the JSON of a payload. None is no payload, and bytes stay unchanged. A body that looks like a reference is refused, unless
    the caller stores it as an artifact (`aside`)."""
    if value is None:
        return None
    body = value if isinstance(value, bytes) else encode(value, "a payload")
    if body is not None and body.startswith(RESERVED) and not aside:
        raise TenureError("INVALID_INPUT", "the first name in a payload must not begin with '$tenure'")
    return body


def encode_json_object(value: Mapping[str, Any] | None) -> str:
    """Labels or metadata as stored JSON."""
    return (encode_payload(dict(value or {})) or b"{}").decode()


class Planner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tool that plans a run: it returns the list of the run's steps."""

    tool: str
    queue: str = "default"
    input: Any = None
    """Its arguments by name. None: the run's input."""
    timeout: float | str | None = None
    """For one attempt. The profile limits the time of planning as a whole (`planning_seconds`)."""
    retries: int | None = None


def make_plan(steps: PlanLike) -> tuple[StepSpec, ...]:
    """A plan from step specs and dictionaries; a dictionary's `input` may be any JSON value."""
    if not steps:
        raise _invalid("plan", "a plan needs at least one step")
    return read_steps(steps)


def read_steps(steps: PlanLike) -> tuple[StepSpec, ...]:
    """Likewise for what a planner returned, which may be no step at all."""
    return tuple(
        _assign_queue(f"plan[{i}]", step if isinstance(step, StepSpec) else _read_step(f"plan[{i}]", step))
        for i, step in enumerate(steps)
    )


def assign_queues(plan: tuple[StepSpec, ...]) -> tuple[StepSpec, ...]:
    """The plan with each step in the queue of the workers that have its tool (law 2)."""
    return tuple(_assign_queue(f"plan[{i}]", step) for i, step in enumerate(plan))


def make_planned_later(planner: Planner | Mapping[str, Any]) -> tuple[StepSpec, ...]:
    """The plan of a run that a tool plans: its plan step."""
    if not isinstance(planner, Planner):
        try:
            planner = msgspec.convert(dict(planner), Planner)
        except msgspec.ValidationError as fault:
            problem, _, where = str(fault).partition(" - at ")
            raise _invalid("planner" + where.strip("`").removeprefix("$"), problem) from fault
    step = build_plan_step(
        planner.tool,
        queue=planner.queue,
        input=encode_payload(planner.input),
        timeout_seconds=None if planner.timeout is None else parse_duration(planner.timeout),
        retries=planner.retries,
    )
    return (_assign_queue("planner", step),)


def _assign_queue(place: str, step: StepSpec) -> StepSpec:
    """A step in the queue of the workers that have its tool (law 2)."""
    if step.kind not in ("work", "plan"):
        return step
    tool = step.tool or step.name
    if capability.SEPARATOR in step.queue:
        return msgspec.structs.replace(step, tool=tool)
    if step.input is not None and step.input.startswith(RESERVED):
        raise _invalid(f"{place}.input", "its first name must not begin with '$tenure'")
    try:
        queue = capability.capability(step.queue, capability.tool(tool))
    except TenureError as fault:
        raise _invalid(f"{place}.queue", fault.message) from fault
    return msgspec.structs.replace(step, tool=tool, queue=queue)


def _read_step(place: str, raw: Any) -> StepSpec:
    if not isinstance(raw, Mapping):
        raise _invalid(place, f"a step must be an object with a name, not {type(raw).__name__}")
    fields = dict(raw)
    given = encode_payload(fields.pop("input", None))
    try:
        step = msgspec.convert(fields, StepSpec)
    except msgspec.ValidationError as fault:
        problem, _, where = str(fault).partition(" - at ")
        path = where.strip("`").removeprefix("$")
        if choices := CHOICES.get(path):
            problem = f"{problem}; it must be one of {', '.join(choices)}"
        raise _invalid(place + path, problem) from fault
    if capability.split(step.queue)[1] == capability.RUN or step.template is not None or step.skipped:
        raise _invalid(place, "only workflow files may contain commands, conditions and templates")
    return msgspec.structs.replace(step, input=given)


def _invalid(place: str, problem: str) -> TenureError:
    return field_error(place, problem, "PLAN_INVALID")


def read_plan(file: Path) -> tuple[StepSpec, ...]:
    """A plan from a file: JSON (a list of steps, or `{"steps": […]}`) or TOML with `[[steps]]`."""
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
        if unknown := sorted(raw.keys() - {"steps"}):
            raise _invalid(unknown[0], "a plan file may contain only steps")
        raw = raw.get("steps")
    if not isinstance(raw, list):
        raise _invalid("plan", "a plan file must be a list of steps")
    return make_plan(raw)
