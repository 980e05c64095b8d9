"""The commands. A command changes one run, and says who asks and why."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from tenure.kernel.costs import Cost
from tenure.kernel.run_terms import NO_TERMS, RunTerms

DEFAULT_PROFILE = "tenure"
"""The profile of runs whose workflow, plan or request names none."""

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
"""The context of commands that the system issues itself without a request or event."""


class Command(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    context: Context = SYSTEM


class RunCommand(Command, frozen=True, gc=False, kw_only=True):
    """A command about an existing run."""

    run_id: int
    tenant: str | None = None
    """The tenant that must own the run; a run of another tenant is not found. None only inside the system."""


class InvolvingCommand(RunCommand, frozen=True, gc=False, kw_only=True):
    """A command whose senders become involved in the run."""

    involved: str = ""
    """The people who send it besides `context.actor`, as `id id`."""


class AttemptCommand(RunCommand, frozen=True, gc=False, kw_only=True):
    """A command about one attempt of a step."""

    idx: int
    n: int


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


class ReuseSpec(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """When the result of a step may be used again, in place of doing it: when a step of the same tenant with the same key
    has succeeded. The key is a digest of the scope, of `digest`, and of how the needed steps ended, with their outputs."""

    scope: str
    """Who shares results: those of other scopes are not found."""
    digest: str
    """Hex SHA-256 of all else that the result depends on: files, command, environment."""
    also: tuple[str, ...] = ()
    """Further scopes whose results may be used. The step's own result is stored in `scope` only."""


class ReuseTerms(ReuseSpec, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """The same with the needed steps, as a step's row has it."""

    needs: tuple[int, ...] = ()
    """The indexes of the steps that it needs."""


class StepSpec(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    name: str
    kind: Literal["work", "body", "approval", "wait", "plan"] = "work"
    """`plan`: the only step that a run is created with. It is leased while the run is planning, completes with the plan, and
    is neither counted nor shown as a step."""
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
    reuse: ReuseSpec | None = None
    """Only work has it. When its needs have ended, an earlier result is looked for before the step can be claimed."""


BODY_STEP = StepSpec(name="main", kind="body")
PLAN_STEP_NAME = "$plan"
"""The name of every plan step. No other step may have it."""


def build_plan_step(
    tool: str,
    *,
    queue: str = "default",
    input: bytes | None = None,  # noqa: A002 - the word of a step
    timeout_seconds: float | None = None,
    lease_seconds: float | None = None,
    retries: int | None = None,
) -> StepSpec:
    """The step that plans a run: create the run with this step alone as its plan."""
    return StepSpec(
        name=PLAN_STEP_NAME,
        kind="plan",
        tool=tool,
        queue=queue,
        input=input,
        timeout_seconds=timeout_seconds,
        lease_seconds=lease_seconds,
        retries=retries,
    )


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
    """The request for a new run, from an API call, a hook, a schedule, a parent or a rerun."""

    workflow: str
    code_version: str = "1"
    profile: str = DEFAULT_PROFILE
    plan: tuple[StepSpec, ...] = (BODY_STEP,)
    """Its steps; or one step of kind `plan`, whose `Complete` brings them."""
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
    """The person who asked for the run, if that is not `context.actor`: a child has its parent's requester."""
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
    vcs_target: str | None = None
    """Where the status reporter reports the run, as the JSON of a `VcsTarget`. Only trusted code sets it."""
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


class AddSteps(RunCommand, frozen=True, gc=False, kw_only=True):
    """More steps for a run that has started. They may need existing steps."""

    plan: tuple[StepSpec, ...]


class Resolution(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The result of a step's template for one attempt."""

    idx: int
    n: int
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
    reuse_key: bytes | None = None
    """For a step with `reuse`: the key of its result."""
    reused: tuple[int, str] | None = None
    """The run and the step whose result it has: it succeeds with `output` and does not run."""
    output: bytes | None = None


class ResolveSteps(RunCommand, frozen=True, gc=False, kw_only=True):
    """The inputs and earlier results of steps that are due, found outside of the kernel. Steps that are no longer due are
    ignored."""

    steps: tuple[Resolution, ...]


class Admit(RunCommand, frozen=True, gc=False, kw_only=True):
    """Check again whether a queued run may begin."""

    gate_tenant: str
    """The tenant whose lock the transaction takes first."""


# -------------------------------------------------------------------------------------------- leases


class ClaimStep(RunCommand, frozen=True, gc=False, kw_only=True):
    idx: int
    by: Claimant


class LeaseCommand(AttemptCommand, frozen=True, gc=False, kw_only=True):
    """A message from the holder of a lease. `seq` grows with each message of the lease; a repeat gets the same
    answer."""

    seq: int


class CostCommand(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """A message that may report costs."""

    cost: str | None = None
    """The cost of the attempt so far, as text. A later message replaces it."""
    spent: tuple[Cost, ...] = ()
    """What was spent since the last message that reported costs."""


class AckLease(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """The runner has the lease."""


class Heartbeat(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """Extend the lease. The first heartbeat says that the work has begun."""

    progress: str = ""
    begins: bool = False
    """It only says that the work has begun, and its answer is stored for a repeat, like those of other messages."""


class BeginUpload(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """The work is done; its logs and artifacts are being uploaded."""


class ReportCost(CostCommand, frozen=True, gc=False, kw_only=True):
    """Report costs while the attempt continues."""


class RecordCheckpoint(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """Record a result inside the step."""

    name: str
    state: Literal["started", "done", "failed"] = "done"
    output: bytes | None = None
    error: str | None = None
    """For a failed try: its code."""
    message: bytes | None = None
    """For a failed try: the error message. It is stored in place of an output."""
    arguments: bytes = b""
    """The digest of its arguments."""
    resumable: bool = True
    idempotent: bool = True
    tries: int = 1
    next_at: int | None = None
    """For a failed try: when the next try is due."""
    input: bytes | None = None
    """Its arguments, if the profile stores them."""
    closes: int | None = None
    """A wait that the code has abandoned. It is closed."""
    meta: str | None = None
    """Agent, tokens, duration and cost, as a JSON object."""
    spent: tuple[Cost, ...] = ()
    """As in `CostCommand`."""


class Complete(CostCommand, frozen=True, gc=False, kw_only=True):
    output: bytes | None = None
    last: RecordCheckpoint | None = None
    """A last checkpoint, recorded in the same commit."""
    restart: StartChild | None = None
    """For a body: continue as this new run. A parent that waits for this run then waits for the new one."""
    plan: tuple[StepSpec, ...] | None = None
    """For a plan step: the steps of the run, perhaps none. A plan step without a plan, or with an invalid one, has failed."""


class Fail(CostCommand, frozen=True, gc=False, kw_only=True):
    code: str = "STEP_FAILED"
    message: bytes = b""
    retryable: bool | None = None
    """None: the rules of the profile classify the code."""


class Release(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """Give the step back, for example because the worker shuts down. The attempt is not charged."""


class Park(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """This worker's code does not match the run's history; `why` names the first step that differs."""

    why: str


class AckCancel(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """The work has stopped, as the cancel request asked."""


class StartChild(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    run_id: int
    workflow: str
    code_version: str = "1"
    profile: str | None = None
    input: bytes | None = None
    plan: tuple[StepSpec, ...] = (BODY_STEP,)
    on_close: Literal["cancel", "leave", "wait"] = "cancel"
    timeout_seconds: float | None = None
    terms: RunTerms = NO_TERMS
    """The terms of its workflow. (A restart keeps the terms of its run, with what is left of the budget.)"""


class OpenWait(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """Open a wait while the lease continues, or propose something. Exactly one of approval, event, until, child and
    proposal is given."""

    label: str
    """Its key at replay: opening the same label again returns the same wait."""
    approval: ApprovalSpec | None = None
    question: bytes | None = None
    event: WaitSpec | None = None
    until: int | None = None
    child: StartChild | None = None
    proposal: ApprovalSpec | None = None
    """A question that no step waits for. It may be decided after the run's end."""
    fatal: bool = False
    """A refusal or expiry fails the step and cannot be caught (governed actions)."""


class Suspend(LeaseCommand, frozen=True, gc=False, kw_only=True):
    """Give up the lease until one of these waits settles. If one has settled already, the answer is `go_on`."""

    waits: tuple[int, ...]


# ---------------------------------------------------------------------------------- people and events


class DecideApproval(RunCommand, frozen=True, gc=False, kw_only=True):
    """A person decides an approval. The caller checks that the person may decide approvals at all."""

    no: int
    approver: str
    approve: bool
    revision: int | None = None
    digest: str = ""
    reason: bytes | None = None


class ReviseApproval(RunCommand, frozen=True, gc=False, kw_only=True):
    """The proposal has changed: earlier votes do not count for it. No API offers this to people, because another
    question would not change what the run does afterwards; they reject, and the run asks again."""

    no: int
    digest: str
    question: bytes | None = None


class DeliverEvent(InvolvingCommand, frozen=True, gc=False, kw_only=True):
    """Deliver an event from outside, perhaps before a step waits for it. Its senders become involved when a wait takes it."""

    name: str
    event_id: str
    source: str = ""
    payload: bytes | None = None


class RequestCancel(InvolvingCommand, frozen=True, gc=False, kw_only=True):
    """Cancel the run. `reason` is an error code."""

    reason: str = "RUN_CANCELED"


class CancelStep(InvolvingCommand, frozen=True, gc=False, kw_only=True):
    """Cancel one step, in two phases like a run."""

    name: str


class RevokeLease(AttemptCommand, frozen=True, gc=False, kw_only=True):
    """Take a lease away. The step goes back to the queue while attempts are left."""

    involved: str = ""
    """As in `InvolvingCommand`."""


class Pause(RunCommand, frozen=True, gc=False, kw_only=True):
    """Grant no new leases until `Unpause`. Deadlines keep running."""


class Unpause(RunCommand, frozen=True, gc=False, kw_only=True):
    """Grant leases again, also for a parked run."""


class EndWait(InvolvingCommand, frozen=True, gc=False, kw_only=True):
    """Resume a run that waits for an event or a time. An approval cannot be ended like this."""


class MarkReported(RunCommand, frozen=True, gc=False, kw_only=True):
    """The status reporter has reported the outcome. Only the system sends this; people send `AttestReported`."""

    target: str | None = None
    """Where the outcome was read back. It must be the run's `vcs_target`: nothing else makes a run with a target REPORTED."""


class AttestReported(RunCommand, frozen=True, gc=False, kw_only=True):
    """A person states that the outcome was reported. The statement is recorded and changes no status."""


class SealRun(RunCommand, frozen=True, gc=False, kw_only=True):
    """Seal the history of a finished run, so that the run may be deleted. With `parts`, evidence covers all of it."""

    parts: tuple[SealedBundle, ...] = ()


class SealedBundle(msgspec.Struct, frozen=True, gc=False):
    """A bundle (0) or a supplement: its last event, that event's hash, and the SHA-256 of its zip."""

    no: int
    events: int
    head: str
    sha256: str


class UpdateMetadata(InvolvingCommand, frozen=True, gc=False, kw_only=True):
    """Change labels and metadata, also those of a finished run."""

    labels: str | None = None
    metadata: str | None = None
    merge: bool = False
    """Change only the named fields; a null removes a field."""


class InvolvePeople(RunCommand, frozen=True, gc=False, kw_only=True):
    """Record people who feed the run as involved. There is an event only if one of them is new."""

    involved: str
    """The people besides `context.actor`, as `id id`."""


class DeleteRun(RunCommand, frozen=True, gc=False, kw_only=True):
    """Delete a finished, sealed run and all of its rows."""


# ------------------------------------------------------------------------------------------- internal


class Tick(RunCommand, frozen=True, gc=False, kw_only=True):
    """The `wake_at` of the run, or of one step or wait, has passed."""

    entity: Literal["run", "step", "wait"]
    at: int = 0
    """The index of the step, or the number of the wait."""


class ExpireDeadLease(AttemptCommand, frozen=True, gc=False, kw_only=True):
    """The process that holds a lease is proven dead, so the lease need not expire. `context.cause` names the proof."""

    session: int


class FinishChild(RunCommand, frozen=True, gc=False, kw_only=True):
    """A child has ended. Settles the parent's wait for it."""

    child_id: int
    outcome: str
    successor: int | None = None
    """The run that the child restarted as; the parent then waits for that one."""
    involved: str = ""
    """The people involved in the child, as `id id`, because its outcome feeds the parent."""
