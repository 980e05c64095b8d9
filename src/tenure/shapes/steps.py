"""What steps, attempts and checkpoints look like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tenure.shapes.costs import StepCost


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that failed or was lost, or the attempt that took over from a lost one."""

    step: str
    at: datetime
    state: str
    """`failed`, `lost` or `taken over`."""
    attempt: int
    worker: str
    code: str = ""
    message: str = ""

    @property
    def text(self) -> str:
        return ": ".join(part for part in (self.code, self.message) if part)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a step."""

    n: int
    state: str
    worker: str | None = None
    lease: str | None = None
    """The state of its lease. A checkpoint has no lease of its own."""
    lease_until: datetime | None = None
    heartbeat_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None
    message: str = ""
    progress: str = ""
    costs: tuple[StepCost, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A durable result inside a step."""

    key: str
    step: str
    """The step that recorded it."""
    no: int
    state: str
    """started, done or failed."""
    attempt: int
    """The attempt of the step that recorded it."""
    tries: int
    retry_at: datetime | None
    resumable: bool
    idempotent: bool
    recorded_at: datetime
    seconds: float | None
    agent: str | None
    costs: tuple[StepCost, ...]
    code: str | None
    """The error code, if it failed."""
    input: Any = None
    output: Any = None
    error: Any = None


class ReusedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The step whose result another step has. Its run may have been deleted since."""

    run: str
    step: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step: leased work, a gate, a checkpoint, a wait or a child run."""

    name: str
    kind: str
    """work, checkpoint, approval, proposal, wait, sleep, child, value (a recorded time, uuid or number)."""
    tool: str = ""
    state: str
    shown: str
    """The state in the profile's words."""
    required: bool = True
    needs: tuple[str, ...] = ()
    within: str | None = None
    """The step that recorded it, if that step is in the list."""
    attempt: int = 0
    """The number of its newest attempt."""
    attempts_max: int | None = None
    worker: str | None = None
    progress: str = ""
    lease_until: datetime | None = None
    retry_at: datetime | None = None
    until: datetime | None = None
    """When a wait expires."""
    reason: str | None = None
    skipped: bool = False
    """It succeeded without being executed, because its condition was false (reason CONDITION_FALSE)."""
    condition: str | None = None
    """Its condition in the workflow file."""
    reused_from: ReusedResult | None = None
    """It succeeded without being executed, because a step with the same inputs had succeeded (reason REUSED)."""
    last_error: str | None = None
    last_failure: str | None = None
    """The error of its last failed attempt, if it needed several."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    seconds: float | None = None
    """The duration of its last attempt."""
    agent: str | None = None
    costs: tuple[StepCost, ...] = ()
    child: str | None = None
    """The run that it started."""
    question: Any = None
    """What an approval asks."""
    note: Any = None
    """The reason given with a decision."""
    output: Any = None
    error: Any = None
