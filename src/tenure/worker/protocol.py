"""The runner protocol: every request and response, for the server and for remote workers.

Laws:
1. `docs/runner-protocol.md` describes all of it, and a test compares the two.
2. Payloads and times are encoded as in `tenure.worker.protocol_codec`.
3. Fields are only added, never changed. A response may have fields that a runner does not know.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Union

import msgspec
from msgspec import UNSET

from tenure.errors import TenureError
from tenure.kernel import capability
from tenure.kernel.commands import ApprovalSpec, BackoffSpec, ReuseSpec, WaitSpec
from tenure.kernel.costs import Cost as Spent
from tenure.limits import CLAIM_STEPS_MAX, NAME_CHARS_MAX
from tenure.processes import PID_MAX

WAIT_SECONDS_MAX = 30.0
SESSION_MAX = (1 << 63) - 1
MESSAGES_MAX = 1_000
"""Messages in one request."""
LINES_MAX = 1_000
"""Log lines in one message."""

# ------------------------------------------------------------------------------------------- claims


class _RunnerBody(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A body that a runner sends."""


class _ServerBody(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A body that the server sends."""


class ClaimRequest(_RunnerBody, kw_only=True, frozen=True):
    """`POST /runner/claim`: lease up to `max` steps that need one of these capabilities."""

    claim_id: str
    """Chosen by the runner, 1 to 200 characters. A claim with the same id returns the same leases."""
    capabilities: tuple[str, ...]
    max: int = 1
    """0: no new leases, only those that were granted to this claim before."""
    wait_s: float = 0.0
    worker: str = ""
    slots: int | None = None
    ack: bool = False
    """Acknowledge the leases with the claim and begin at once: `ack` and `running` are not sent."""
    session: int | None = None
    """The session of the registered process (`RegisterRequest.process`): the leases end when it is dead."""

    def check(self) -> None:
        if self.session is not None and not 0 <= self.session <= SESSION_MAX:
            raise TenureError("INVALID_INPUT", f"session must be 0 to {SESSION_MAX}, not {self.session}")
        if not 0 <= self.max <= CLAIM_STEPS_MAX:
            raise TenureError("INVALID_INPUT", f"max must be 0 to {CLAIM_STEPS_MAX}, not {self.max}")
        if not 0 <= self.wait_s <= WAIT_SECONDS_MAX:
            raise TenureError(
                "INVALID_INPUT", f"wait_s must be 0 to {WAIT_SECONDS_MAX:.0f}, not {self.wait_s}"
            )
        if not self.capabilities:
            raise TenureError("INVALID_INPUT", "capabilities must name at least one capability")
        if len(self.capabilities) > CLAIM_STEPS_MAX:
            raise TenureError(
                "INVALID_INPUT",
                f"capabilities must name at most {CLAIM_STEPS_MAX}, not {len(self.capabilities)}",
            )
        if not (1 <= len(self.claim_id) <= 200 and self.claim_id.isprintable()):
            raise TenureError("INVALID_INPUT", "claim_id must have 1 to 200 printable characters")
        for one in self.capabilities:
            capability.check(one)


class LeaseInfo(_ServerBody, kw_only=True, frozen=True):
    """A lease, without its token."""

    id: str
    """`<run id>.<step>.<attempt>`, the last two as numbers."""
    run_id: str
    step: str
    attempt: int
    tenant: str
    workflow: str
    code_version: str
    profile: str
    kind: str
    """`work`; `body` for the code of a code-first workflow; `plan` for a step whose `complete` brings the run's plan."""
    tool: str
    idempotency_key: str
    expires_at: datetime
    timeout_at: datetime | None = None
    heartbeat_seconds: float
    """The longest interval between heartbeats."""
    lease_seconds: float
    """How long the lease lasts after a heartbeat."""
    resumed: bool = False
    """Whether the step recorded checkpoints before."""
    trace: str | None = None
    """The traceparent of the request that started the run."""
    input: Any = UNSET


class GrantedLease(LeaseInfo, kw_only=True, frozen=True):
    """A lease with its token, which only its holder has."""

    token: str


class ClaimReply(_ServerBody, kw_only=True, frozen=True):
    """The granted leases."""

    leases: list[GrantedLease]
    now: datetime
    """The server's time."""


# ----------------------------------------------------------------------------------------- messages


class RunnerMessage(_RunnerBody, kw_only=True, frozen=True):
    """A message of a lease. `seq` grows from message to message; a repeated message has the same `seq`."""

    seq: int


class AckMessage(RunnerMessage, kw_only=True, frozen=True):
    """The runner has the lease and prepares the work."""


class RunningMessage(RunnerMessage, kw_only=True, frozen=True):
    """The work has begun."""


class HeartbeatMessage(RunnerMessage, kw_only=True, frozen=True):
    """The work continues. With `seq` 0 it only extends the lease."""

    seq: int = 0
    progress: str = ""


class CheckpointMessage(RunnerMessage, kw_only=True, frozen=True):
    """A result inside the step, under a name that the runner chooses."""

    name: str
    state: Literal["started", "done", "failed"] = "done"
    output: Any = UNSET
    error: str | None = None
    message: str | None = None
    arguments: str = ""
    """A digest of the call's arguments, in hex."""
    resumable: bool = True
    idempotent: bool = True
    tries: int = 1
    next_at: datetime | None = None
    input: Any = UNSET
    closes: int | None = None
    meta: dict[str, Any] | None = None
    spent: tuple[Spent, ...] = ()
    """Costs since the last message with `spent`; counted once, however often this message is sent."""


class LogEntry(_RunnerBody, kw_only=True, frozen=True):
    """A line of a run's log."""

    text: str
    level: str = "info"
    at: datetime | None = None
    step: str = ""
    fields: dict[str, Any] = {}


class LogMessage(RunnerMessage, kw_only=True, frozen=True):
    """Lines for the run's log. With a `seq` they are added once, however often the message is sent."""

    seq: int = 0
    lines: list[LogEntry]


class UploadingMessage(RunnerMessage, kw_only=True, frozen=True):
    """The work is done, and its artifacts are being uploaded."""


class SuspendMessage(RunnerMessage, kw_only=True, frozen=True):
    """Give up the lease until one of these waits settles."""

    waits: tuple[int, ...]


class WaitMessage(RunnerMessage, kw_only=True, frozen=True):
    """Open a wait under a label, for an approval, an event or a time."""

    label: str
    approval: ApprovalSpec | None = None
    question: Any = UNSET
    event: WaitSpec | None = None
    until: datetime | None = None
    fatal: bool = False


class PlanStep(_RunnerBody, kw_only=True, frozen=True):
    """A step of a plan: of a child's, or of the run that a plan step plans."""

    name: str
    kind: Literal["work", "body", "approval", "wait", "plan"] = "work"
    tool: str = ""
    needs: tuple[str, ...] | None = None
    required: bool = True
    queue: str = "default"
    retries: int | None = None
    backoff: BackoffSpec | None = None
    timeout_seconds: float | None = None
    lease_seconds: float | None = None
    idempotency_key: str = ""
    input: Any = UNSET
    approval: ApprovalSpec | None = None
    wait: WaitSpec | None = None
    condition: str | None = None
    """Why the step is in the plan or is skipped, as an expression for people."""
    skipped: bool = False
    """The condition is false: the step succeeds without running."""
    reuse: ReuseSpec | None = None
    """When an earlier result may be used in place of running the step."""


class ChildRun(_RunnerBody, kw_only=True, frozen=True):
    """A child run."""

    workflow: str
    code_version: str = "1"
    profile: str | None = None
    input: Any = UNSET
    plan: tuple[PlanStep, ...] = ()
    """If empty, the child is the code-first workflow of this name and version."""
    on_close: Literal["cancel", "leave", "wait"] = "cancel"
    timeout_seconds: float | None = None
    budget: str | None = None
    """What the child may cost, such as `5 USD`."""
    compensate: bool = False
    """Whether canceling the child undoes its actions."""
    run_id: str | None = None
    """A new id that the runner chose; if it is left out, the server makes one."""


class StartChildMessage(RunnerMessage, kw_only=True, frozen=True):
    """Start a child and open a wait for its end under a label."""

    label: str
    child: ChildRun
    fatal: bool = False


class ProposeMessage(RunnerMessage, kw_only=True, frozen=True):
    """Propose something to people without waiting for their decision."""

    label: str
    proposal: ApprovalSpec
    question: Any = UNSET


class CostMessage(RunnerMessage, kw_only=True, frozen=True):
    """Report costs since the last message with `spent`."""

    spent: tuple[Spent, ...] = ()
    cost: str | None = None
    """What this attempt has cost in all, as a text for people."""


class CompleteMessage(RunnerMessage, kw_only=True, frozen=True):
    """The step succeeded."""

    output: Any = UNSET
    cost: str | None = None
    spent: tuple[Spent, ...] = ()
    last: CheckpointMessage | None = None
    """A checkpoint to record in the same commit, before the end."""
    restart: ChildRun | None = None
    """For a body: the run continues as this new run."""
    plan: tuple[PlanStep, ...] | None = None
    """For a lease of kind `plan`: the steps of the run, perhaps none."""


class FailMessage(RunnerMessage, kw_only=True, frozen=True):
    """The step failed."""

    code: str = "STEP_FAILED"
    message: str = ""
    retryable: bool | None = None
    """If it is left out, the run's profile decides by the code."""
    cost: str | None = None
    spent: tuple[Spent, ...] = ()


class ReleaseMessage(RunnerMessage, kw_only=True, frozen=True):
    """Give the step back without an outcome; the attempt is not counted."""


class ParkMessage(RunnerMessage, kw_only=True, frozen=True):
    """The runner's code does not match the run; `why` names the first difference."""

    why: str


class CancelAckMessage(RunnerMessage, kw_only=True, frozen=True):
    """The work was stopped as requested."""


MESSAGES: dict[str, type[RunnerMessage]] = {
    "ack": AckMessage,
    "running": RunningMessage,
    "heartbeat": HeartbeatMessage,
    "checkpoint": CheckpointMessage,
    "log": LogMessage,
    "uploading": UploadingMessage,
    "suspend": SuspendMessage,
    "wait": WaitMessage,
    "start": StartChildMessage,
    "propose": ProposeMessage,
    "cost": CostMessage,
    "complete": CompleteMessage,
    "fail": FailMessage,
    "release": ReleaseMessage,
    "park": ParkMessage,
    "cancel-ack": CancelAckMessage,
}
"""Verb -> its message: `POST /runner/leases/{id}/VERB`."""

ADDRESSED_MESSAGES: dict[str, Any] = {
    verb: msgspec.defstruct(
        f"Addressed{body.__name__}",
        [("lease", str), ("token", str)],
        bases=(body,),
        tag_field="type",
        tag=verb,
        kw_only=True,
        frozen=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
    )
    for verb, body in MESSAGES.items()
}
"""The same messages with their lease and token, for `POST /runner/messages`."""

AnyMessage: Any = Union[tuple(ADDRESSED_MESSAGES.values())]  # noqa: UP007 - of a computed list


class MessageFault(_ServerBody, kw_only=True, frozen=True):
    """Why a message of a batch was refused."""

    code: str
    message: str
    retryable: bool


class MessageReply(_ServerBody, kw_only=True, frozen=True):
    """The reply to a message."""

    state: str
    """`ok`; `go_on` (a wait has settled already); `suspended`; `refused` (by a governed wait: the step has ended); `ignored` (a late
    heartbeat); in a batch also `error`."""
    cancel: bool
    """Whether to stop: cancellation was requested."""
    expires_at: datetime | None = None
    wait: int | None = None
    """The number of the wait."""
    outcome: str | None = None
    """The outcome of a wait that has settled."""
    settled: tuple[int, ...] = ()
    """With `go_on`: the waits that have settled."""
    late: bool = False
    """The message came after a cancel request or the lease's end. It is kept as evidence and changes nothing."""
    error: MessageFault | None = None


class MessageBatch(_RunnerBody, kw_only=True, frozen=True):
    """`POST /runner/messages`: messages of several leases, and a claim after them."""

    messages: list[AnyMessage] = []
    claim: ClaimRequest | None = None


class MessageBatchReply(_ServerBody, kw_only=True, frozen=True):
    """One reply per message, in order, and the leases of the claim."""

    answers: list[MessageReply]
    leases: list[GrantedLease] = []
    now: datetime


class UploadReply(_ServerBody, kw_only=True, frozen=True):
    """The reply to an upload."""

    name: str
    size: int
    digest: str
    late: bool
    reference: dict[str, Any]
    """Send this as a payload to refer to the file's content."""


# ------------------------------------------------------------------------------------------ registering


class ProcessInfo(_RunnerBody, kw_only=True, frozen=True):
    """Identifies a worker's process on Linux (`tenure.processes`), so that a server on the same host can prove its death."""

    session: int
    """A random number that the process sends with each claim."""
    boot_id: str
    namespaces: str
    pid: int
    start_ticks: int

    def check(self) -> None:
        if not (
            0 <= self.session <= SESSION_MAX
            and 0 < self.pid <= PID_MAX
            and 0 <= self.start_ticks <= SESSION_MAX
        ):
            raise TenureError(
                "INVALID_INPUT", "session, pid and start_ticks must be in the ranges that Linux uses"
            )
        for text in (self.boot_id, self.namespaces):
            if not (1 <= len(text) <= NAME_CHARS_MAX and text.isprintable()):
                raise TenureError(
                    "INVALID_INPUT",
                    f"boot_id and namespaces must have 1 to {NAME_CHARS_MAX} printable characters",
                )


class RegisterRequest(_RunnerBody, kw_only=True, frozen=True):
    """`POST /runner/register`: announces a worker; sent again every ten seconds."""

    worker: str
    capabilities: tuple[str, ...]
    slots: int = 1
    version: str = ""
    leaves: bool = False
    """Whether the worker is stopping."""
    process: ProcessInfo | None = None


class WorkflowEntry(_RunnerBody, kw_only=True, frozen=True):
    """A workflow that a runner serves."""

    name: str
    version: str
    kind: Literal["code", "declared"] = "code"
    definition: dict[str, Any] = {}
    digest: str = ""


class WorkflowsRequest(_RunnerBody, kw_only=True, frozen=True):
    """`POST /runner/workflows`."""

    workflows: list[WorkflowEntry]


class RegisterReply(_ServerBody, kw_only=True, frozen=True):
    """The reply to a registration."""

    refused: list[str]
    """What could not be registered, in words."""


# ---------------------------------------------------------------------------------- acts and replays

ACT_SECONDS_MAX = 60.0
"""How long an act may take before the server replies."""


class ActCallMessage(_RunnerBody, kw_only=True, frozen=True):
    """`POST /runner/leases/{id}/act`: have the server do an action, if the tenant's policy allows it."""

    label: str
    """Names the act within its step: the same label is the same act."""
    action: str
    """`connector.operation`."""
    target: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    key: str = ""
    """The idempotency key; if empty, it is made from run, step and label."""
    why: str = ""
    """The reason, for the people who are asked."""
    retries: int | None = None
    """How often it is tried again if it is known not to have happened. If it is left out, the runner counts."""
    fresh: bool = False
    """Nothing was requested under this label before."""
    reverses: tuple[str, int] | None = None
    """The receipt that it reverses: run and number."""
    expects: dict[str, Any] | None = None
    """What the target must look like for a reversal."""


class ActCallReply(_ServerBody, kw_only=True, frozen=True):
    """The result of an act."""

    state: Literal["done", "wait", "failed", "conflict", "refused", "misfit", "cancel"]
    """`done`: `result` is what the service answered. `wait`: suspend on `wait`, and request the act again when it has settled. `failed`:
    it was not done; it may be requested again from `retry_at` on, or never without one. `conflict`: the target of a reversal is no longer
    what was written. `refused`: the step has ended. `misfit`: another act was requested under this label. `cancel`: stop."""
    result: Any = None
    wait: int | None = None
    code: str = ""
    message: str = ""
    retry_at: datetime | None = None
    tried: bool = False
    """For a failed act: whether this request tried it."""
    receipt: int | None = None


class ActionsReply(_ServerBody, kw_only=True, frozen=True):
    """`GET /runner/actions`: the actions that the server can do."""

    actions: list[str]


class RecordedCheckpoint(_ServerBody, kw_only=True, frozen=True):
    """A checkpoint of the step."""

    name: str
    no: int
    state: str
    attempt: int
    resumable: bool
    idempotent: bool
    arguments: str
    at: datetime
    tries: int
    next_at: datetime | None = None
    error: str | None = None
    meta: Any = None
    output: Any = UNSET
    erased: bool = False
    """Whether its output was erased."""


class OpenedWait(_ServerBody, kw_only=True, frozen=True):
    """A wait of the step, and how it was settled."""

    no: int
    label: str
    kind: str
    name: str
    state: str
    outcome: str | None = None
    opened_at: datetime
    expires_at: datetime | None = None
    settled_at: datetime | None = None
    result: Any = UNSET
    """The event's payload."""
    revision: int | None = None
    decided_by: str | None = None
    reason: Any = UNSET
    child_id: str | None = None
    child_outcome: str | None = None
    child_code: str | None = None
    child_output: Any = UNSET
    child_error: Any = UNSET


class ActReceipt(_ServerBody, kw_only=True, frozen=True):
    """An act of the step, and its result."""

    label: str
    no: int
    tries: int
    own: bool = True
    """False for an act of a run that this one resumes."""
    action: str
    key: str
    state: str
    """`intent`, `unknown`, `succeeded`, `failed`, `reversed`, or `reused` (another run's effect)."""
    attempt: int
    intent_at: datetime
    settled_at: datetime | None = None
    eligible_at: datetime | None = None
    error: str | None = None
    wait: int | None = None
    request: Any = UNSET
    """Target and fields."""
    result: Any = UNSET
    """What the service answered, or the message of a failure."""


class BufferedEvent(_ServerBody, kw_only=True, frozen=True):
    """A delivered event that no wait has taken yet."""

    name: str
    event_id: str
    source: str
    received_at: datetime
    payload: Any = UNSET


class RunFacts(_ServerBody, kw_only=True, frozen=True):
    """The data that the steps of a workflow file refer to."""

    input: Any = UNSET
    outputs: dict[str, Any] = {}
    """Outputs of the steps that have succeeded; null if a step has none."""
    version: str
    repo: str | None = None
    trigger: dict[str, Any] = {}


class LeaseState(_ServerBody, kw_only=True, frozen=True):
    """`GET /runner/leases/{id}`: everything that its holder needs to resume the step."""

    lease: LeaseInfo
    cancel: bool
    checkpoints: list[RecordedCheckpoint]
    waits: list[OpenedWait]
    events: list[BufferedEvent]
    acts: list[ActReceipt] = []
    run: RunFacts | None = None
    """With `?run=true`."""
    now: datetime
