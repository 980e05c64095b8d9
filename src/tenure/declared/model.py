"""A declared workflow, after its file has been understood."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tenure.declared import inputs as given
from tenure.declared.inputs import Input
from tenure.kernel.commands import StepSpec
from tenure.kernel.terms import Terms

Kind = Literal["run", "uses", "workflow", "approval", "wait"]
GATES: tuple[Kind, ...] = ("approval", "wait")


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a step is tried again; None leaves it to the profile."""

    max: int | None = None
    backoff: tuple[float, ...] | None = None
    jitter: float | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What an approval asks."""

    title: str
    action: str
    tier: Literal["low", "med", "high"] = "low"
    people: int = 1
    group: str = ""
    within: float | None = None


class Awaited(msgspec.Struct, frozen=True, kw_only=True):
    """What a wait is for: an event, or time."""

    event: str = ""
    source: str = ""
    within: float | None = None
    time: float | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a declared workflow, with its defaults filled in."""

    id: str
    index: int
    kind: Kind
    needs: tuple[str, ...] | None = None
    """As declared: None is the step before it."""
    condition: str | None = None
    required: bool = True
    queue: str = "default"
    timeout_seconds: float | None = None
    retry: Retry = Retry()
    idempotency_key: str = ""
    idempotent: bool = False
    run: tuple[str, ...] = ()
    """The command's arguments; with templates, each of which stays one argument."""
    env: dict[str, str] = {}
    cwd: str = ""
    output: Literal["text", "json"] = "text"
    target: str = ""
    """The tool it uses, or the workflow it starts."""
    arguments: dict[str, Any] = {}
    approval: Question | None = None
    wait: Awaited | None = None


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow from a file."""

    name: str
    version: str
    digest: str
    """SHA-256, in hex, of the definition: all of it but the version."""
    profile: str
    timeout_seconds: float | None
    terms: Terms
    inputs: dict[str, Input]
    steps: tuple[Step, ...]
    source: str = "<text>"
    text: str = ""
    """The document it was loaded from."""

    def bind(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a run: checked, with the defaults filled in."""
        return given.bind(self.name, self.inputs, inputs)

    def from_texts(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Inputs as a command line gives them, to be bound."""
        return given.from_texts(self.inputs, texts)

    def plan(
        self,
        inputs: Mapping[str, Any],
        *,
        run: Mapping[str, Any] | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> tuple[StepSpec, ...]:
        """The steps of a run with these inputs. What only needs what is given here is evaluated now; who knows the
        run's id already (`run={"id": …}`) has keys that name it fixed as well."""
        from tenure.declared.planning import plan

        return plan(self, inputs, run=run, trigger=trigger)
