"""A declared workflow, after its file was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tenure.declared import inputs as given
from tenure.declared.inputs import WorkflowInput
from tenure.kernel import capability as cap
from tenure.kernel.commands import StepSpec
from tenure.kernel.run_terms import RunTerms

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
    source: str = "<text>"
    text: str = ""
    """The text of the file."""

    def bind(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return given.bind_inputs(self.name, self.inputs, inputs)

    def from_texts(self, texts: Mapping[str, str]) -> dict[str, Any]:
        return given.parse_input_texts(self.inputs, texts)

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
