"""What a run looks like from outside: the run, its summary in lists, its log lines and files, the reason why it waits."""

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
    """The status in the profile's words."""
    reason: str | None
    paused: bool
    parked: str | None
    steps_done: int
    steps_total: int
    """The number of steps known so far."""
    labels: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None
    seconds: float | None
    """The duration of a run that has ended."""
    workspace: str = "default"
    repo: str | None = None
    started_at: datetime | None = None
    steps_skipped: int = 0
    """How many of `steps_done` were skipped, because their condition was false."""


class RunPage(list[RunSummary]):
    """Runs of a list, newest first, and the cursor of the next page."""

    next_cursor: str | None = None
    """Pass it as `cursor` with the same conditions. None: this is the last page."""


class RunLogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a run's code has logged."""

    no: int
    at: datetime
    step: str
    level: str
    text: str
    fields: dict[str, Any] = {}


class RunMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The labels and metadata of a run."""

    id: str
    labels: dict[str, str]
    metadata: dict[str, Any]


class SignalResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of delivering an event."""

    taken: bool
    """Whether a wait has taken the event. If not, it is kept for a later wait."""
    again: bool
    """Whether this event was delivered before."""
    awaited: tuple[str, ...] = ()
    """If the event was not taken: the events that the run waits for now."""


class ReportStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A person's statement that the end of a run was reported. It does not change the run's status."""

    by: str
    at: datetime


class SkippedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that its condition skipped."""

    step: str
    reason: str
    condition: str | None = None


class Run(RunSummary, frozen=True, kw_only=True):
    """A run with everything that is known about it."""

    code_version: str
    tenant: str
    workspace: str
    cancel_requested: bool
    priority: int
    concurrency_key: str | None
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
    skipped: tuple[SkippedStep, ...] = ()
    events: int
    started_at: datetime | None
    deadline_at: datetime | None
    sealed: bool
    input: Any = None
    output: Any = None
    """The run's result; None until it has succeeded. Steps have outputs of their own."""
    error: Any = None
    restarted_as: str | None = None
    """The run that continues this one (`tenure.restart`)."""
    reported_at: datetime | None = None
    """When the status reporter reported how the run ended."""
    reported_statement: ReportStatement | None = None

    @property
    def finished(self) -> bool:
        """Whether the run has ended, in any status."""
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
    """Default: the newest registered version."""
    input: dict[str, Any] = {}
    labels: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] = 0
    profile: Name | None = None
    """Default: the workflow's own."""
    workspace: Name = "default"
    trigger: RunTrigger = API_TRIGGER
    concurrency_key: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX)] | None = None
    """Of the runs with the same key, one is active at a time."""
    supersede: bool = False
    """Cancel older runs with the same key instead of waiting for them."""
    not_before: datetime | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | str | None = None
    """Seconds, or a text such as `5m`."""
    budget: Annotated[str, msgspec.Meta(pattern=f"^{money.PATTERN}$")] | None = None
    """The most the run may spend, such as `5 USD`. If it spends more, it ends with BUDGET_EXCEEDED."""


class RunCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was created."""

    id: str
    workflow: str
    version: str
    profile: str
    workspace: str
    status: str
    shown: str
    """The status in the profile's words."""
    created_at: datetime


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a run waits: a word for programs and a sentence for people."""

    reason: str
    """finished, canceling, paused, parked, planning, delayed, key, rate, working, cap, worker, turn, approval, event,
    receipt, time, child, backoff, input."""
    text: str
    step: str | None = None
    until: datetime | None = None


ArtifactState = Literal["accepted", "pending", "failed", "late"]


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A named file of a run."""

    name: str
    step: str
    attempt: int
    state: ArtifactState
    """accepted: its attempt succeeded. pending: its attempt is running. failed: its attempt did not succeed. late: see `late`."""
    size: int
    digest: str
    content_type: str
    worker: str
    uploaded_at: datetime
    late: bool
    """Uploaded after the lease had ended. It is kept as evidence and has changed nothing."""
    expires_at: datetime | None = None
    """When its retention ends. None: with its run."""
    deleted_at: datetime | None = None
    """When its bytes were deleted at the end of its retention."""
