"""A declared workflow, after its file was loaded: inputs, steps, and the checks of input values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal

import msgspec

from tenure.canonical import DuplicateName, decode_json, encode_json
from tenure.errors import Detail, TenureError
from tenure.expressions.json_schema import JSON_TYPES, display_json, find_problems, name_type
from tenure.kernel import capability as cap
from tenure.kernel.commands import StepSpec
from tenure.kernel.run_terms import RunTerms
from tenure.limits import PROBLEMS_MAX
from tenure.secrets import REFERENCE_FORM, is_reference
from tenure.suggestions import Suggestions

StepKind = Literal["run", "uses", "workflow", "approval", "wait"]
GATES: tuple[StepKind, ...] = ("approval", "wait")


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is retried. None: as in the profile."""

    max: int | None = None
    backoff: tuple[float, ...] | None = None
    jitter: float | None = None

    @classmethod
    def merge(cls, own: dict[str, Any] | None, defaults: dict[str, Any] | None) -> RetrySettings:
        """A step's own settings over the workflow's defaults."""
        return msgspec.convert({**(defaults or {}), **(own or {})}, cls)


class ApprovalQuestion(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    action: str
    tier: Literal["low", "med", "high"] = "low"
    people: int = 1
    group: str = ""
    within: float | None = None


class WaitSettings(msgspec.Struct, frozen=True, kw_only=True):
    event: str = ""
    source: str = ""
    within: float | None = None
    time: float | None = None


NO_DEFAULT = "\0none"
"""Marks an input without a default. It is a string so that the definition stays JSON; no YAML string can contain it."""


class WorkflowInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    default: Any = NO_DEFAULT
    description: str = ""
    enum: tuple[Any, ...] | None = None
    items: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    secret: bool | msgspec.UnsetType = msgspec.UNSET
    """The value is a reference to a secret (`tenure.secrets`), never the secret. If unset, it is not part of the definition's digest."""

    @property
    def required(self) -> bool:
        return bool(self.default == NO_DEFAULT)

    def problems(self, value: Any) -> Iterator[str]:
        """Why a value does not fit this input."""
        if value is None and self.default is None:
            return
        if self.secret is True:
            if not (isinstance(value, str) and is_reference(value)):
                yield REFERENCE_FORM  # it may be the secret itself, so it is not repeated
            return
        yield from (found.problem for found in find_problems(self._schema(), value, ""))
        if self.items is not None and isinstance(value, list | tuple):
            for i, item in enumerate(value):
                if not JSON_TYPES[self.items](item):
                    yield f"item {i} must be {name_type(self.items)}, not {display_json(item)}"

    def _schema(self) -> dict[str, Any]:
        size = "Length" if self.type == "string" else "Items"
        limits = {
            "enum": self.enum,
            "minimum": self.minimum,
            "maximum": self.maximum,
            f"min{size}": self.min_length,
            f"max{size}": self.max_length,
        }
        return {
            "type": self.type,
            "items": None,
            **{key: limit for key, limit in limits.items() if limit is not None},
        }

    def own_problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the declaration itself: (key, problem)."""
        sized = self.type in ("string", "array")
        counted = self.type in ("integer", "number")
        for key, fits, kinds in (
            ("minimum", counted, "an integer or a number"),
            ("maximum", counted, "an integer or a number"),
            ("min_length", sized, "a string or an array"),
            ("max_length", sized, "a string or an array"),
            ("items", self.type == "array", "an array"),
            ("secret", self.type == "string", "a string"),
        ):
            given = getattr(self, key)
            if given is not None and given is not False and given is not msgspec.UNSET and not fits:
                yield key, f"belongs to {kinds}, not to {name_type(self.type)}"
        for low, high in (("minimum", "maximum"), ("min_length", "max_length")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                yield low, f"is {least:g}, which is greater than {high}, {most:g}"
        for i, choice in enumerate(self.enum or ()):
            if not JSON_TYPES[self.type](choice):
                yield "enum", f"choice {i} must be {name_type(self.type)}, not {display_json(choice)}"
        if not self.required:
            yield from (("default", problem) for problem in self.problems(self.default))


class DeclaredStep(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    index: int
    kind: StepKind
    needs: tuple[str, ...] | None = None
    """The needs in the file. None: the previous step."""
    condition: str | None = None
    required: bool = True
    queue: str = "default"
    timeout_seconds: float | None = None
    retry: RetrySettings = RetrySettings()
    idempotency_key: str = ""
    idempotent: bool = False
    run: tuple[str, ...] = ()
    """The arguments of the command. A template stays one argument."""
    env: dict[str, str] = {}
    cwd: str = ""
    output: Literal["text", "json"] = "text"
    target: str = ""
    """The tool that the step uses, or the workflow that it starts."""
    arguments: dict[str, Any] = {}
    approval: ApprovalQuestion | None = None
    wait: WaitSettings | None = None


class WorkflowPlanner(msgspec.Struct, frozen=True, kw_only=True):
    """The tool that plans each run of a workflow."""

    tool: str
    queue: str = "default"
    timeout_seconds: float | None = None
    retry: RetrySettings = RetrySettings()


class DeclaredWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    digest: str
    """SHA-256, in hex, of the definition without its version."""
    profile: str
    timeout_seconds: float | None
    terms: RunTerms
    inputs: dict[str, WorkflowInput]
    steps: tuple[DeclaredStep, ...]
    planner: WorkflowPlanner | None = None
    """If there is one, the workflow has no steps of its own."""
    source: str = "<text>"
    text: str = ""

    def bind(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return bind_inputs(self.name, self.inputs, inputs)

    def from_texts(self, texts: Mapping[str, str]) -> dict[str, Any]:
        return parse_input_texts(self.inputs, texts)

    def plan(
        self,
        inputs: Mapping[str, Any],
        *,
        run: Mapping[str, Any] | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> tuple[StepSpec, ...]:
        """The steps of a run with these inputs. Expressions over known values are evaluated now; with `run={"id": …}` that includes
        idempotency keys that name the run.
        """
        from tenure.declared.planner import build_plan

        return build_plan(self, inputs, run=run, trigger=trigger)


def step_tool(kind: str, target: str) -> str:
    """The tool that does a step: `run` for a command, a tool's name, or `workflow:NAME`."""
    return {"run": "run", "uses": target}.get(kind, f"workflow:{target}")


def required_capability(kind: str, target: str) -> str:
    return cap.RUN if kind == "run" else cap.tool(step_tool(kind, target))


GUESSES_MAX = 3
"""Suggestions per run: they are computed while the caller waits."""


def bind_inputs(
    workflow: str, inputs: Mapping[str, WorkflowInput], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs of a run as JSON: checked, with defaults filled in. INVALID_INPUT names the first `PROBLEMS_MAX` problems."""
    problems: list[Detail] = []
    guesses = Suggestions(GUESSES_MAX)
    for name in islice((name for name in given if name not in inputs), PROBLEMS_MAX):
        guess = guesses.close_to(str(name), inputs, "it has") if inputs else "; it has none"
        problems.append(Detail(f"inputs.{name}", f"workflow {workflow} has no such input{guess}"))
    bound: dict[str, Any] = {}
    for name, declared in inputs.items():
        if name in given:
            found = islice(declared.problems(given[name]), PROBLEMS_MAX)
            problems += [Detail(f"inputs.{name}", problem) for problem in found]
            bound[name] = given[name]
        elif declared.required:
            problems.append(Detail(f"inputs.{name}", f"is required: {name_type(declared.type)}"))
        else:
            bound[name] = declared.default
    if not problems:
        try:
            plain: dict[str, Any] = msgspec.json.decode(encode_json(bound))
        except (TypeError, ValueError, OverflowError, RecursionError, DuplicateName) as fault:
            problems.append(Detail("inputs", f"must be JSON: {fault}"))
        else:
            return plain
    raise _invalid(problems[:PROBLEMS_MAX])


def _invalid(problems: list[Detail]) -> TenureError:
    text = "; ".join(f"{problem.path} {problem.problem}" for problem in problems)
    return TenureError("INVALID_INPUT", text, tuple(problems))


def parse_input_texts(inputs: Mapping[str, WorkflowInput], texts: Mapping[str, str]) -> dict[str, Any]:
    """Values from a command line: a string input is taken literally, any other input is read as JSON."""
    values: dict[str, Any] = {}
    problems: list[Detail] = []
    for name, text in texts.items():
        declared = inputs.get(name)
        if declared is None or declared.type == "string":
            values[name] = text
            continue
        try:
            values[name] = decode_json(text)
        except DuplicateName as twice:
            problems.append(Detail(f"inputs.{name}", str(twice)))
        except (msgspec.DecodeError, RecursionError):
            problems.append(
                Detail(f"inputs.{name}", f"must be {name_type(declared.type)} in JSON, not {text[:60]!r}")
            )
    if problems:
        raise _invalid(problems)
    return values
