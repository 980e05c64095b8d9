"""The commands. A command changes one run, and says who asks and why."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from tenure.kernel.costs import Cost
from tenure.kernel.run_terms import NO_TERMS, RunTerms

Tier = Literal["low", "med", "high"]
TIERS: tuple[str, ...] = get_args(Tier)
"""From the lowest risk to the highest."""
Initiator = Literal["user", "system", "timeout", "policy", "webhook", "approval"]


class Context(msgspec.Struct, frozen=True, gc=False):
    """Who caused a change, by opaque id (never a name)."""

    actor: str
    initiator: Initiator
    cause: str
    """The id of the request, message, event or moment that caused the change; never empty (I8)."""


SYSTEM = Context("system", "system", "internal")
"""The context of commands that the system issues itself, where no request or event is known."""


class Command(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    context: Context = SYSTEM


class RunCommand(Command, frozen=True, gc=False, kw_only=True):
    """A command about an existing run."""

    run_id: int
    tenant: str | None = None
    """The tenant that must own the run; a run of another tenant is not found. None only inside the system."""


# ------------------------------------------------------------------------------------------ creation


class ApprovalSpec(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A question to people."""

    action: str = "approve"
    tier: Tier = "low"
    people: int = 1
    within_seconds: float | None = None
    digest: str = ""
    """Hex digest of the proposal. Empty: the question binds nothing."""
    group: str = ""
    """The group of the approvers. Empty: any approver."""


class WaitSpec(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A wait for an external event by name or, without a name, for time. `source` is where the event is expected
    from; it is recorded and not compared."""

    event: str = ""
    source: str = ""
    within_seconds: float | None = None


class BackoffSpec(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A step's retry delays, in place of its profile's."""

    seconds: tuple[float, ...]
    jitter: float = 0.2


class StepSpec(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    name: str
    kind: Literal["work", "body", "approval", "wait"] = "work"
    tool: str = ""
    needs: tuple[str, ...] | None = None
    """The names of the steps that must end first. None: the step before it. An empty tuple: none."""
    required: bool = True
    queue: str = "default"
    retries: int | None = None
    backoff: BackoffSpec | None = None
    timeout_seconds: float | None = None
    lease_seconds: float | None = None
    idempotency_key: str = ""
    """Stable for the step and its external target. If empty, it is made from run and step."""
    input: bytes | None = None
    approval: ApprovalSpec | None = None
    wait: WaitSpec | None = None
    template: bytes | None = None
    """In place of `input`: the input (and idempotency key) is made from it once every needed step has ended
    (`ResolveSteps`). Only work has a template."""
    condition: str | None = None
    """The expression that decides whether the step runs, for people to read. The template has what is evaluated."""
    skipped: bool = False
    """The condition is known to be false: the step succeeds without running as soon as its needs have ended."""


BODY_STEP = StepSpec(name="main", kind="body")


class Trigger(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    type: Literal["ui", "cli", "webhook", "scheduled", "api", "child"] = "api"
    ref: str | None = None
    repo: str | None = None


class Claimant(msgspec.Struct, frozen=True, gc=False):
    """Who claims a lease, and how."""

    worker: str
    ack: bool = True
    """Workers in this process acknowledge in the same commit; remote ones send `AckLease`."""
    session: int | None = None
    """The worker's process session, if its death can be proven."""


class ReusedCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """A resumable checkpoint of another run."""

    name: str
    arguments: bytes
    output: bytes | None
    idempotent: bool
    meta: str | None


class RunRequest(Command, frozen=True, gc=False, kw_only=True):
    """What is asked of a new run, whoever asks: a request, a hook, a schedule, a parent, a rerun."""

    workflow: str
    code_version: str = "1"
    profile: str = "agent-runs"
    plan: tuple[StepSpec, ...] | None = (BODY_STEP,)
    """None: the run stays in planning until AcceptPlan or FailPlan."""
    input: bytes | None = None
    trigger: Trigger = Trigger()
    source: str = "api"
    """The namespace of `idempotency_key`."""
    idempotency_key: str | None = None
    request_hash: bytes = b""
    priority: int = 0
    concurrency_key: str | None = None
    concurrency_mode: Literal["queue", "supersede"] = "queue"
    not_before: int | None = None
    timeout_seconds: float | None = None
    wall_clock: bool = False
    labels: str = "{}"
    metadata: str = "{}"
    trace: str | None = None
    """The caller's traceparent. It is not part of the request: a repeat may carry another one."""
    over_rate: Literal["refuse", "delay"] = "refuse"
    """What happens above max_runs_per_min: an API call is refused, every other start is delayed."""
    requester: str | None = None
    """The person who asked for the run, where that is not `context.actor`: a child has its parent's requester."""
    involved: str = ""
    """The other people involved, as `id id`."""
    budget: int | None = None
    """What the run may cost, in micro-units of `currency`."""
    currency: str = ""
    compensate: bool = False
    """Whether a cancellation starts a run that undoes what this one did."""
    parent_id: int | None = None
    parent_no: int | None = None
    resumed_from: int | None = None
    resume_count: int = 0
    rerun_of: int | None = None
    attempt_no: int = 1
    undo_of: int | None = None
    """The run whose effects this one undoes."""
    reuse: tuple[ReusedCheckpoint, ...] = ()
    """Checkpoints of the run that this one resumes, for its first step."""


class CreateRun(RunRequest, frozen=True, gc=False, kw_only=True):
    """Create a run. `kernel.new_run.build_create_run` is the one place that builds this command."""

    run_id: int
    tenant: str
    workspace: str = "default"
    eager: Claimant | None = None
    """A worker of this process with a free slot. It gets the first step's lease in the same commit, unless a cap,
    a concurrency key or a delay forbids that."""


class AcceptPlan(RunCommand, frozen=True, gc=False, kw_only=True):
    """The planner's plan."""

    plan: tuple[StepSpec, ...]


class FailPlan(RunCommand, frozen=True, gc=False, kw_only=True):
    """The planner failed."""

    code: str = "PLAN_FAILED"
    message: bytes = b""


class AddSteps(RunCommand, frozen=True, gc=False, kw_only=True):
    """More steps for a run that has started. They may need existing steps."""

    plan: tuple[StepSpec, ...]


class Resolution(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a template gave for one attempt of a step."""

    idx: int
    n: int
    """The number of the attempt."""
    input: bytes | None = None
    idempotency_key: str = ""
    """Empty: the step keeps its own."""
    each_try: bool = False
    """Whether the next attempt needs a new input."""
    skipped: bool = False
    """The condition is false: the step does not run."""
    code: str = ""
    """The error code if the template failed, usually EXPRESSION_FAILED. The step fails with it."""
    message: bytes = b""


class ResolveSteps(RunCommand, frozen=True, gc=False, kw_only=True):
    """The inputs of steps that are due, evaluated outside of the kernel. Steps that are no longer due are ignored."""

    steps: tuple[Resolution, ...]


class Admit(RunCommand, frozen=True, gc=False, kw_only=True):
    """Check again whether a queued run may begin."""

    gate_tenant: str
    """The tenant whose lock the transaction takes first."""


# -------------------------------------------------------------------------------------------- leases


class ClaimStep(RunCommand, frozen=True, gc=False, kw_only=True):
    """Claim the lease of one ready step."""

    idx: int
    by: Claimant


class LeaseCommand(RunCommand, frozen=True, gc=False, kw_only=True):
    """A message from the holder of a lease. `seq` grows with each message of the lease; a repeat gets the same
    answer."""

    idx: int
    n: int
    seq: int


class AckLease(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """The runner has the lease."""


class Heartbeat(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """Still working; the first one says that the work has begun."""

    progress: str = ""
    begins: bool = False
    """It says just that, and its answer is kept for a repeat, as those of other messages are."""


class BeginUpload(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """The work is done, its logs and artifacts are on the way."""


class ReportCost(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """What this try has cost so far; what its last word says counts more."""

    cost: str | None = None
    spent: tuple[Cost, ...] = ()
    """What was spent since the last message that said so."""


class RecordCheckpoint(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """A sub-result inside the step."""

    name: str
    state: Literal["started", "done", "failed"] = "done"
    output: bytes | None = None
    error: str | None = None
    """Of a failed try: its code."""
    message: bytes | None = None
    """Of a failed try: what went wrong, in words. A payload, kept in the place of an output."""
    arguments: bytes = b""
    """The digest of its arguments."""
    resumable: bool = True
    idempotent: bool = True
    tries: int = 1
    next_at: int | None = None
    """Of a failed try: when it is to be tried again."""
    input: bytes | None = None
    """What it was called with, where its profile keeps that."""
    closes: int | None = None
    """A wait that the code has given up: it takes nothing any more."""
    meta: str | None = None
    """Agent, tokens, duration and cost, as a JSON object."""
    spent: tuple[Cost, ...] = ()
    """As in `ReportCost`."""


class Complete(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """The step succeeded."""

    output: bytes | None = None
    cost: str | None = None
    spent: tuple[Cost, ...] = ()
    """As in `ReportCost`."""
    last: RecordCheckpoint | None = None
    """A checkpoint recorded just before, in the same breath."""
    restart: StartChild | None = None
    """Of a body: go on as this new run. Whoever waits for this one waits for that one then."""


class Fail(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """The step failed; without `retryable` the profile's rules classify the code."""

    code: str = "STEP_FAILED"
    message: bytes = b""
    retryable: bool | None = None
    cost: str | None = None
    spent: tuple[Cost, ...] = ()
    """As in `ReportCost`."""


class Release(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """Give the step back unworked (a worker shuts down); the charge is given back too."""


class Park(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """This worker's code does not fit the run; `why` names the first step that differs."""

    why: str


class AckCancel(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """The work was stopped as requested."""


class StartChild(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A run this one starts."""

    run_id: int
    workflow: str
    code_version: str = "1"
    profile: str | None = None
    input: bytes | None = None
    plan: tuple[StepSpec, ...] = (BODY_STEP,)
    on_close: Literal["cancel", "leave", "wait"] = "cancel"
    timeout_seconds: float | None = None
    terms: RunTerms = NO_TERMS
    """What its workflow asks of its runs. (What a run goes on as has this run's, and what is left of its budget.)"""


class OpenWait(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """Wait for something while the lease goes on, or propose something. Exactly one of the five is given."""

    label: str
    """Its key at replay; opening the same label again answers with the same wait."""
    approval: ApprovalSpec | None = None
    question: bytes | None = None
    event: WaitSpec | None = None
    until: int | None = None
    child: StartChild | None = None
    proposal: ApprovalSpec | None = None
    """A question that blocks nobody: the step goes on, completes, and the answer may come after the run's end."""
    fatal: bool = False
    """A refusal or expiry fails the step and cannot be caught (governed actions)."""


class Suspend(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """Let go of the lease until one of these waits settles; if one has, the answer is "go on"."""

    waits: tuple[int, ...]


# ------------------------------------------------------------------------------- people and the world


class DecideApproval(RunCommand, frozen=True, gc=False, kw_only=True):
    """A person's answer. `approver` is opaque; who may answer at all is checked before."""

    no: int
    approver: str
    approve: bool
    revision: int | None = None
    digest: str = ""
    reason: bytes | None = None


class ReviseApproval(RunCommand, frozen=True, gc=False, kw_only=True):
    """What is proposed has changed: votes so far do not count for it.

    People have no door to it: who changes the question's words does not change what the run does after a yes. They reject,
    and the run asks anew.
    """

    no: int
    digest: str
    question: bytes | None = None


class DeliverEvent(RunCommand, frozen=True, gc=False, kw_only=True):
    """Something happened outside. It may arrive before anybody waits for it."""

    name: str
    event_id: str
    source: str = ""
    payload: bytes | None = None
    involved: str = ""
    """Who sends it besides the actor, as `id id`: they stand behind the run once a wait has taken it."""


class RequestCancel(RunCommand, frozen=True, gc=False, kw_only=True):
    """Cancel the run; `reason` is a code such as superseded or user."""

    reason: str = "RUN_CANCELED"
    involved: str = ""
    """As in `EndWait`: a parent may go on otherwise because of it, and what the run did may be taken back."""


class CancelStep(RunCommand, frozen=True, gc=False, kw_only=True):
    """Cancel one step by hand, in two phases like a run."""

    name: str
    involved: str = ""
    """As in `EndWait`."""


class RevokeLease(RunCommand, frozen=True, gc=False, kw_only=True):
    """Take a lease away; the step goes back to the queue while tries are left."""

    idx: int
    n: int
    involved: str = ""
    """As in `EndWait`."""


class Pause(RunCommand, frozen=True, gc=False, kw_only=True):
    """No new lease until Unpause; deadlines go on."""


class Unpause(RunCommand, frozen=True, gc=False, kw_only=True):
    """Leases may be given again; a parked run is tried again too."""


class EndWait(RunCommand, frozen=True, gc=False, kw_only=True):
    """Resume a run that waits for an event or a time, by hand; never an approval."""

    involved: str = ""
    """Who wants that besides whoever sends this, as `id id`: they all stand behind the run from now on."""


class MarkReported(RunCommand, frozen=True, gc=False, kw_only=True):
    """The status reporter has told the world how the run ended. Only the system sends this; people send `AttestReported`."""


class AttestReported(RunCommand, frozen=True, gc=False, kw_only=True):
    """Somebody says that the world has been told how the run ended. It is recorded as their word and changes no status."""


class SealRun(RunCommand, frozen=True, gc=False, kw_only=True):
    """The finished run's history is sealed; from now on it may be deleted. With `parts`, by evidence of all of it."""

    parts: tuple[SealedBundle, ...] = ()


class SealedBundle(msgspec.Struct, frozen=True, gc=False):
    """A bundle (0) or a supplement: up to which event, with which hash, and the SHA-256 of its zip."""

    no: int
    events: int
    head: str
    sha256: str


class UpdateMetadata(RunCommand, frozen=True, gc=False, kw_only=True):
    """Labels and metadata, also of a finished run."""

    labels: str | None = None
    metadata: str | None = None
    merge: bool = False
    """Change what is named and leave the rest; a null takes a name away."""
    involved: str = ""
    """As in `EndWait`."""


class InvolvePeople(RunCommand, frozen=True, gc=False, kw_only=True):
    """Record people who feed the run, and so stand behind it from now on. Who does already changes nothing and makes no event."""

    involved: str
    """Who, as `id id`, besides whoever sends this."""


class DeleteRun(RunCommand, frozen=True, gc=False, kw_only=True):
    """Retention: remove a finished, sealed run and everything beneath it."""


# ------------------------------------------------------------------------------------------- internal


class Tick(RunCommand, frozen=True, gc=False, kw_only=True):
    """A moment has come: the run's, one step's or one wait's; the kernel knows what it means."""

    entity: Literal["run", "step", "wait"]
    at: int = 0


class ExpireDeadLease(RunCommand, frozen=True, gc=False, kw_only=True):
    """The process that holds a lease is proven dead, and the cause says how: the lease need not run out."""

    idx: int
    n: int
    session: int


class FinishChild(RunCommand, frozen=True, gc=False, kw_only=True):
    """A child has ended; settles the parent's wait for it."""

    child_id: int
    outcome: str
    successor: int | None = None
    """The run it went on as: the wait goes on for that one."""
    involved: str = ""
    """Who stands behind the child, as `id id`: what it came to feeds its parent."""
