"""The runner protocol: every request and every answer, for the server and for the worker that speaks it alike.

Laws:
1. `docs/runner-protocol.md` says all of it, and a test compares the two: what is added here is added there. What a lease's holder is
   told of its step, and its acts, are in `tenure.worker.protocol_state`.
2. Payloads and times travel as `tenure.worker.values` says.
3. Fields are only ever added, and answers may have more of them than a runner knows.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from tenure.errors import TenureError
from tenure.kernel import capability
from tenure.kernel.commands import ApprovalSpec, BackoffSpec, WaitSpec
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


class _Asked(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a runner sends."""


class _Told(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What it is told."""


class ClaimRequest(_Asked, kw_only=True, frozen=True):
    """`POST /runner/claim`: take up to `max` steps that need one of these capabilities."""

    claim_id: str
    """The runner's own name of this claim, 1 to 200 characters: the same again returns the same leases."""
    capabilities: tuple[str, ...]
    max: int = 1
    """0: nothing new; only what this claim was given before."""
    wait_s: float = 0.0
    worker: str = ""
    slots: int | None = None
    ack: bool = False
    """Acknowledge the leases with the claim, and begin at once: saves `ack` and `running`."""
    session: int | None = None
    """The session of the process that was registered (`RegisterRequest.process`): its leases end with it."""

    def check(self) -> None:
        """Bounds."""
        if self.session is not None and not 0 <= self.session <= SESSION_MAX:
            raise TenureError("INVALID_INPUT", f"session is 0 to {SESSION_MAX}, not {self.session}")
        if not 0 <= self.max <= CLAIM_STEPS_MAX:
            raise TenureError("INVALID_INPUT", f"max is 0 to {CLAIM_STEPS_MAX}, not {self.max}")
        if not 0 <= self.wait_s <= WAIT_SECONDS_MAX:
            raise TenureError("INVALID_INPUT", f"wait_s is 0 to {WAIT_SECONDS_MAX:.0f}, not {self.wait_s}")
        if not self.capabilities:
            raise TenureError("INVALID_INPUT", "a claim names at least one capability")
        if len(self.capabilities) > CLAIM_STEPS_MAX:
            raise TenureError("INVALID_INPUT", f"a claim names at most {CLAIM_STEPS_MAX} capabilities")
        if not (1 <= len(self.claim_id) <= 200 and self.claim_id.isprintable()):
            raise TenureError("INVALID_INPUT", "claim_id has 1 to 200 printable characters")
        for one in self.capabilities:
            capability.check(one)


class LeaseInfo(_Told, kw_only=True, frozen=True):
    """A lease."""

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
    """`work`, or `body` for the code of a code-first workflow."""
    tool: str
    idempotency_key: str
    expires_at: datetime
    timeout_at: datetime | None = None
    heartbeat_seconds: float
    """How often to beat at least."""
    lease_seconds: float
    """How long it holds after a heartbeat."""
    resumed: bool = False
    """Whether the step has recorded checkpoints before."""
    trace: str | None = None
    """The traceparent that the run was asked for with."""
    input: Any = UNSET


class GrantedLease(LeaseInfo, kw_only=True, frozen=True):
    """A lease with the token that only its holder has."""

    token: str


class ClaimAnswer(_Told, kw_only=True, frozen=True):
    """What was granted."""

    leases: list[GrantedLease]
    now: datetime
    """The server's time."""


# ----------------------------------------------------------------------------------------- messages


class Said(_Asked, kw_only=True, frozen=True):
    """What all messages of a lease have: `seq` grows from message to message; a repeat has the same."""

    seq: int


class Ack(Said, kw_only=True, frozen=True):
    """The runner has the lease and prepares."""


class Running(Said, kw_only=True, frozen=True):
    """The work has begun."""


class Heartbeat(Said, kw_only=True, frozen=True):
    """Still working. Without a number (0) it only extends the lease."""

    seq: int = 0
    progress: str = ""


class Checkpoint(Said, kw_only=True, frozen=True):
    """A sub-result inside the step, under a name of the runner's own."""

    name: str
    state: Literal["started", "done", "failed"] = "done"
    output: Any = UNSET
    error: str | None = None
    message: str | None = None
    arguments: str = ""
    """A digest of what it was called with, in hex."""
    resumable: bool = True
    idempotent: bool = True
    tries: int = 1
    next_at: datetime | None = None
    input: Any = UNSET
    closes: int | None = None
    meta: dict[str, Any] | None = None
    spent: tuple[Spent, ...] = ()
    """What was spent since the last message that said so; counted once, however often this is sent."""


class LogEntry(_Asked, kw_only=True, frozen=True):
    """A line."""

    text: str
    level: str = "info"
    at: datetime | None = None
    step: str = ""
    fields: dict[str, Any] = {}


class Log(Said, kw_only=True, frozen=True):
    """Lines for the run's log. With a number they are kept once, however often they are sent."""

    seq: int = 0
    lines: list[LogEntry]


class Uploading(Said, kw_only=True, frozen=True):
    """The work is done, its artifacts are on the way."""


class Suspend(Said, kw_only=True, frozen=True):
    """Let go until one of these waits settles."""

    waits: tuple[int, ...]


class Wait(Said, kw_only=True, frozen=True):
    """Open a wait under a label: for an approval, an event or a time."""

    label: str
    approval: ApprovalSpec | None = None
    question: Any = UNSET
    event: WaitSpec | None = None
    until: datetime | None = None
    fatal: bool = False


class PlanStep(_Asked, kw_only=True, frozen=True):
    """A step of a child's plan."""

    name: str
    kind: Literal["work", "body", "approval", "wait"] = "work"
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


class ChildRun(_Asked, kw_only=True, frozen=True):
    """A run that this one starts."""

    workflow: str
    code_version: str = "1"
    profile: str | None = None
    input: Any = UNSET
    plan: tuple[PlanStep, ...] = ()
    """Without one: the code-first workflow of this name and version."""
    on_close: Literal["cancel", "leave", "wait"] = "cancel"
    timeout_seconds: float | None = None
    budget: str | None = None
    """What it may cost, like `5 USD`."""
    compensate: bool = False
    """Whether its cancellation undoes what it did."""
    run_id: str | None = None
    """An id of the runner's own making, which nobody has; else the server makes one."""


class Start(Said, kw_only=True, frozen=True):
    """Start a child, and open a wait for its end under a label."""

    label: str
    child: ChildRun
    fatal: bool = False


class Propose(Said, kw_only=True, frozen=True):
    """Ask people something that nobody waits for."""

    label: str
    proposal: ApprovalSpec
    question: Any = UNSET


class Cost(Said, kw_only=True, frozen=True):
    """What was spent since the last message that said so."""

    spent: tuple[Spent, ...] = ()
    cost: str | None = None
    """What this try has cost in all, as a text that is shown with it."""


class Complete(Said, kw_only=True, frozen=True):
    """The step succeeded."""

    output: Any = UNSET
    cost: str | None = None
    spent: tuple[Spent, ...] = ()
    """As in `cost`."""
    last: Checkpoint | None = None
    """A checkpoint recorded just before, in the same breath."""
    restart: ChildRun | None = None
    """Of a body: go on as this new run."""


class Fail(Said, kw_only=True, frozen=True):
    """The step failed."""

    code: str = "STEP_FAILED"
    message: str = ""
    retryable: bool | None = None
    """Left out: the run's profile classifies the code."""
    cost: str | None = None
    spent: tuple[Spent, ...] = ()
    """As in `cost`."""


class Release(Said, kw_only=True, frozen=True):
    """Give the step back unworked, uncharged."""


class Park(Said, kw_only=True, frozen=True):
    """This runner's code does not fit the run; `why` says where."""

    why: str


class CancelAck(Said, kw_only=True, frozen=True):
    """The work was stopped as requested."""


MESSAGES: dict[str, type[Said]] = {
    "ack": Ack,
    "running": Running,
    "heartbeat": Heartbeat,
    "checkpoint": Checkpoint,
    "log": Log,
    "uploading": Uploading,
    "suspend": Suspend,
    "wait": Wait,
    "start": Start,
    "propose": Propose,
    "cost": Cost,
    "complete": Complete,
    "fail": Fail,
    "release": Release,
    "park": Park,
    "cancel-ack": CancelAck,
}
"""Verb -> its message: `POST /runner/leases/{id}/VERB`."""

ADDRESSED: dict[str, Any] = {
    verb: msgspec.defstruct(
        f"{body.__name__}Message",
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
"""The same with their address, for `POST /runner/messages`."""

VERBS: dict[type, str] = {
    **{body: verb for verb, body in MESSAGES.items()},
    **{body: verb for verb, body in ADDRESSED.items()},
}

AnyMessage: Any = None
for _one in ADDRESSED.values():
    AnyMessage = _one if AnyMessage is None else AnyMessage | _one


class Fault(_Told, kw_only=True, frozen=True):
    """Why a message of a batch was refused."""

    code: str
    message: str
    retryable: bool


class Answer(_Told, kw_only=True, frozen=True):
    """The answer to a message."""

    state: str
    """`ok`; `go_on` (a wait has settled already); `suspended`; `refused` (by a governed wait: the step has ended);
    `ignored` (a heartbeat that came late); in a batch also `error`."""
    cancel: bool
    """Stop: cancellation has been requested."""
    expires_at: datetime | None = None
    wait: int | None = None
    """The number of the wait."""
    outcome: str | None = None
    """Of a wait that has settled."""
    settled: tuple[int, ...] = ()
    """Of a suspension that goes on: the waits that have settled."""
    late: bool = False
    """It came after a cancel request, or after the lease's end: kept as evidence, changing nothing."""
    error: Fault | None = None


class Messages(_Asked, kw_only=True, frozen=True):
    """`POST /runner/messages`: many messages of many leases; and, after them, a claim."""

    messages: list[AnyMessage] = []
    claim: ClaimRequest | None = None


class MessagesAnswer(_Told, kw_only=True, frozen=True):
    """One answer for each message, in order; and what the claim was granted."""

    answers: list[Answer]
    leases: list[GrantedLease] = []
    now: datetime


class Uploaded(_Told, kw_only=True, frozen=True):
    """What became of an upload."""

    name: str
    size: int
    digest: str
    late: bool
    reference: dict[str, Any]
    """What to send as a payload that is this file's content."""


# ------------------------------------------------------------------------------------------ registering


class ProcessInfo(_Asked, kw_only=True, frozen=True):
    """Which process a worker is, as Linux tells it (`tenure.processes`): a server on the same host may prove its death."""

    session: int
    """A random number of its own, named with each claim."""
    boot_id: str
    namespaces: str
    pid: int
    start_ticks: int

    def check(self) -> None:
        """Bounds."""
        if not (
            0 <= self.session <= SESSION_MAX
            and 0 < self.pid <= PID_MAX
            and 0 <= self.start_ticks <= SESSION_MAX
        ):
            raise TenureError("INVALID_INPUT", "session, pid and start_ticks are what Linux can give")
        for text in (self.boot_id, self.namespaces):
            if not (1 <= len(text) <= NAME_CHARS_MAX and text.isprintable()):
                raise TenureError(
                    "INVALID_INPUT",
                    f"boot_id and namespaces have 1 to {NAME_CHARS_MAX} printable characters",
                )


class RegisterRequest(_Asked, kw_only=True, frozen=True):
    """`POST /runner/register`: a worker is here; again every ten seconds."""

    worker: str
    capabilities: tuple[str, ...]
    slots: int = 1
    version: str = ""
    leaves: bool = False
    """It stops in peace."""
    process: ProcessInfo | None = None


class WorkflowEntry(_Asked, kw_only=True, frozen=True):
    """A workflow that a runner has."""

    name: str
    version: str
    kind: Literal["code", "declared"] = "code"
    definition: dict[str, Any] = {}
    digest: str = ""


class WorkflowsRequest(_Asked, kw_only=True, frozen=True):
    """`POST /runner/workflows`."""

    workflows: list[WorkflowEntry]


class Done(_Told, kw_only=True, frozen=True):
    """That was it."""

    refused: list[str]
    """What could not be registered, in words."""
