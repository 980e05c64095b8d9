"""What steps, attempts and checkpoints look like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tenure.shapes.costs import StepCost


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A try that failed or was lost, or the one that took over from a lost one."""

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
        """Code and message."""
        return ": ".join(part for part in (self.code, self.message) if part)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a step."""

    n: int
    state: str
    worker: str | None = None
    lease: str | None = None
    """The state of its lease; what was recorded in a body has none of its own."""
    lease_until: datetime | None = None
    heartbeat_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None
    message: str = ""
    """What went wrong, where that was told."""
    progress: str = ""
    costs: tuple[StepCost, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A durable sub-result of a step."""

    key: str
    step: str
    """The step it was recorded in."""
    no: int
    state: str
    """started, done or failed."""
    attempt: int
    """The try of its step that recorded it."""
    tries: int
    retry_at: datetime | None
    resumable: bool
    idempotent: bool
    recorded_at: datetime
    seconds: float | None
    agent: str | None
    costs: tuple[StepCost, ...]
    code: str | None
    """Of a failed one."""
    input: Any = None
    output: Any = None
    error: Any = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step: leased, a gate, a checkpoint, a wait or a child."""

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
    """The step it was recorded in, where that is one of the list."""
    attempt: int = 0
    """The number of its newest try."""
    attempts_max: int | None = None
    worker: str | None = None
    progress: str = ""
    lease_until: datetime | None = None
    retry_at: datetime | None = None
    until: datetime | None = None
    """Of a wait: when it ends by itself."""
    reason: str | None = None
    skipped: bool = False
    """Whether it succeeded without being done, because its condition was false (reason CONDITION_FALSE)."""
    condition: str | None = None
    """Its condition, as its workflow file has it."""
    last_error: str | None = None
    last_failure: str | None = None
    """Of a step that needed several tries: what the last one that failed said."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    seconds: float | None = None
    """How long it took; of a step with several tries, its last."""
    agent: str | None = None
    costs: tuple[StepCost, ...] = ()
    child: str | None = None
    """The run that it started."""
    question: Any = None
    """Of an approval: what people are shown."""
    note: Any = None
    """What was said with a decision."""
    output: Any = None
    error: Any = None
