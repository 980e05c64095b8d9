"""What a run looks like from outside: the run, its summary in lists, its log lines, why it waits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from tenure import money
from tenure.limits import KEY_CHARS_MAX, NAME_CHARS_MAX


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list."""

    id: str
    workflow: str
    profile: str
    status: str
    shown: str
    reason: str | None
    paused: bool
    parked: str | None
    steps_done: int
    steps_total: int
    labels: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None
    seconds: float | None
    workspace: str = "default"
    repo: str | None = None
    started_at: datetime | None = None
    steps_skipped: int = 0
    """Of those that are done: how many were skipped, because their condition was false."""


class RunPage(list[RunSummary]):
    """Runs of a list, newest first, and where the next of them are."""

    next_cursor: str | None = None
    """Give it as `cursor` with the same conditions; None: there are no more."""


class RunLogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a run's code has logged."""

    no: int
    at: datetime
    step: str
    level: str
    text: str
    fields: dict[str, Any] = {}


class SignalResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an event that was delivered."""

    taken: bool
    """Whether a wait has taken it; else it is kept for one."""
    again: bool
    """Whether this event had been delivered before."""
    awaited: tuple[str, ...] = ()
    """The other events that the run waits for now, where nobody has taken this one."""


class ReportStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody said of a run: their word, and no state of it."""

    by: str
    at: datetime


class SkippedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was not done."""

    step: str
    reason: str
    condition: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run."""

    id: str
    workflow: str
    code_version: str
    profile: str
    tenant: str
    workspace: str
    status: str
    shown: str
    """The status in the profile's words."""
    reason: str | None
    paused: bool
    parked: str | None
    cancel_requested: bool
    priority: int
    concurrency_key: str | None
    labels: dict[str, Any]
    metadata: dict[str, Any] = {}
    requester: str
    trigger: str
    trigger_ref: str | None = None
    repo: str | None
    parent: str | None
    resumed_from: str | None
    resume_count: int
    rerun_of: str | None
    attempt_no: int
    steps_total: int
    """How many are known so far."""
    steps_done: int
    steps_skipped: int = 0
    """Of those that are done: how many were skipped, because their condition was false."""
    skipped: tuple[SkippedStep, ...] = ()
    """Which ones, and why."""
    events: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    seconds: float | None
    """How long it took, once it has ended."""
    sealed: bool
    input: Any = None
    output: Any = None
    """Its result; None until it has succeeded. What its steps made is theirs."""
    error: Any = None
    restarted_as: str | None = None
    """The run that it went on as (`tenure.restart`)."""
    reported_at: datetime | None = None
    """When the status reporter told the world how it ended."""
    reported_statement: ReportStatement | None = None
    """Who said by hand that the world was told, and when. The status does not follow it."""

    @property
    def finished(self) -> bool:
        """Whether it has ended, however."""
        return self.finished_at is not None


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class RunTrigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What triggered a run."""

    type: Literal["ui", "cli", "webhook", "scheduled", "api"] = "api"
    ref: str | None = None
    repo: str | None = None
    pr_id: str | int | None = None
    pr_url: str | None = None
    commit: str | None = None
    correlation_id: str | None = None


API_TRIGGER = RunTrigger()


class StartRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to start a run."""

    workflow: Name
    version: Name | None = None
    """Default: the newest that is registered."""
    input: dict[str, Any] = {}
    labels: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] = 0
    profile: Name | None = None
    """Default: the workflow's own."""
    workspace: Name = "default"
    trigger: RunTrigger = API_TRIGGER
    concurrency_key: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX)] | None = None
    """Of the runs with one key, one is under way at a time."""
    supersede: bool = False
    """Cancel the older runs with that key instead of waiting for them."""
    not_before: datetime | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | str | None = None
    """Seconds, or a text like `5m`."""
    budget: Annotated[str, msgspec.Meta(pattern=f"^{money.PATTERN}$")] | None = None
    """What the run may cost, like `5 USD`. It ends with BUDGET_EXCEEDED when it has spent more."""


class RunCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was made."""

    id: str
    workflow: str
    version: str
    profile: str
    workspace: str
    status: str
    shown: str
    """What its profile calls that."""
    created_at: datetime


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reason, as a word for programs and a sentence for people."""

    reason: str
    """finished, canceling, paused, parked, planning, delayed, key, rate, working, cap, worker, turn, approval, event,
    receipt, time, child, backoff, input."""
    text: str
    step: str | None = None
    until: datetime | None = None
