"""The rows of runs, and the rows of a tenant that decisions about runs read.

Laws:
1. A row that was handed out is never changed: the kernel copies it, changes the copy, and the store saves the copy.
2. Times are whole microseconds, UTC, by the store's clock.
3. `unlogged` names the columns that are *not* history: they may change without an event. Folding a run's events gives
   every other column again.
4. `wake_at` is the earliest moment at which time alone must change an entity. The entity's state says what happens then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenure.kernel.act_rows import CostLineRow, ReceiptRow, RunSpendRow, VerdictRow
from tenure.kernel.row import NumberedRow, R, RunPartRow, table
from tenure.kernel.row import Row as Row  # noqa: PLC0414  # importers of rows take their base from here, too
from tenure.limits import STEPS_PER_RUN_MAX


@table("run", key=("id",), unlogged=("trace", "version", "head", "event_at", "wake_at"), fixed=13)
class RunRow(Row):
    """What every transition of a run reads and writes."""

    # Fixed at creation.
    id: int
    tenant: str
    workspace: str
    workflow: str
    code_version: str
    profile: str
    repo: str | None
    concurrency_key: str | None
    rated: bool
    """Whether a max_runs_per_min of its tenant or workflow counts it."""
    linked: bool
    """Whether its end owes something to other runs: it has a parent or a concurrency key."""
    timeout_us: int | None
    created_at: int
    trace: str | None
    """The W3C traceparent of the request that created it. Its steps continue that trace."""
    # Current state.
    status: str = "created"
    version: int = 0
    """The sequence number of its last event."""
    head: bytes = b""
    """The hash of its last event."""
    event_at: int = 0
    planned: bool = False
    admitted_at: int | None = None
    """When it was allowed to begin: no delay was left, its key was free, and its tenant's rate allowed it."""
    started_at: int | None = None
    finished_at: int | None = None
    duration_us: int | None = None
    reason: str | None = None
    """Why it ended: an error code, or `done`."""
    paused: bool = False
    parked: str | None = None
    """The first step that differs, if no worker's code matches the history."""
    cancel_at: int | None = None
    """When cancellation was requested."""
    cancel_reason: str | None = None
    deadline_at: int | None = None
    human_since: int | None = None
    """Since when it waits for a person. The deadline stands still meanwhile."""
    reported_at: int | None = None
    sealed_at: int | None = None
    wake_at: int | None = None
    # Counts of steps: the status is derived from them without reading the steps.
    steps_total: int = 0
    steps_open: int = 0
    steps_ready: int = 0
    steps_live: int = 0
    """Leased, or canceling under a lease."""
    steps_approval: int = 0
    steps_external: int = 0
    steps_retry: int = 0
    steps_bad: int = 0
    """Required steps that ended without success."""
    steps_done: int = 0
    """What people see as completed steps: succeeded steps (except a body) and done checkpoints."""
    checkpoints: int = 0
    waits_open: int = 0
    inbox_total: int = 0
    inbox_buffered: int = 0
    children_open: int = 0
    next_ref: int = 1
    next_no: int = 1
    output_ref: int | None = None
    error_ref: int | None = None
    receipts: int = 0
    """How many receipts it has. A run without any loads none."""
    steps_skipped: int = 0
    """Steps that succeeded without running, because their condition was false. `steps_done` includes them."""


@table("run_spec", key=("run_id",), unlogged=("labels", "metadata", "salt"))
class RunSpecRow(RunPartRow):
    """The request for a run. It is rarely read; labels, metadata and involved people change."""

    tenant: str
    source: str
    """The namespace of its idempotency key: api, github_webhook, slack, scheduler, child, cli."""
    idempotency_key: str | None
    request_hash: bytes
    trigger_type: str
    trigger_ref: str | None
    requester: str
    """The opaque id of the person or client that asked for it."""
    priority: int
    concurrency_mode: str
    """queue or supersede."""
    not_before: int | None
    wall_clock: bool
    """Whether its timeout also runs while it waits for a person."""
    input_ref: int | None
    parent_id: int | None
    parent_no: int | None
    """The wait of the parent that its end settles."""
    resumed_from: int | None
    resume_count: int
    rerun_of: int | None
    attempt_no: int
    labels: str
    metadata: str
    salt: bytes
    undo_of: int | None = None
    """The run whose effects this one undoes."""
    budget: int | None = None
    """What it may cost, in micro-units of `currency`."""
    currency: str = ""
    compensate: bool = False
    """Whether its cancellation starts a run that undoes its effects."""
    involved: str = ""
    """The people involved besides the requester, as `id id`. None of them can approve what it does."""
    vcs_target: str | None = None
    """The commit whose checks show the run, as the JSON of a `VcsTarget`. None: the run is not reported."""
    reported_stated_by: str | None = None
    """Who stated first that its outcome was reported. Only the status reporter sets `run.reported_at`."""
    reported_stated_at: int | None = None


@table("step", key=("run_id", "idx"), unlogged=("wake_at", "tenant", "workspace", "workflow"), fixed=11)
class StepRow(RunPartRow):
    """A unit that is leased, or a gate that never is."""

    idx: int
    name: str
    """Its key in the workflow, the same in every run."""
    kind: str
    """work, body (of a code-first workflow), approval, wait, or plan (which the run's counts leave out)."""
    tool: str
    queue: str
    tenant: str
    workspace: str
    workflow: str
    priority: int
    required: bool
    dependents: str
    """Indexes of the steps that need this one, as `1,2,3`."""
    max_attempts: int
    timeout_us: int | None
    lease_us: int
    idempotency_key: str
    input_ref: int | None
    spec: str | None
    """For a gate: what it waits for, as JSON. For work: its own backoff, if it has one."""
    created_at: int
    state: str = "pending"
    needs_left: int = 0
    attempt: int = 0
    """The number of its newest leased attempt, which is the fence."""
    charged: int = 0
    """Claims that count against max_attempts since the last progress."""
    claimable: bool = False
    ready_at: int | None = None
    cancel_by: int | None = None
    wait_no: int | None = None
    waits_on: str = ""
    """For a suspended step: the waits it suspended on, as `1,2`. For a step that is done and waits for its children to
    end: WAITS_AT_END and the waits that are still open, as `end,1,2`."""
    recorded: bool = False
    """Whether it has checkpoints."""
    unsafe: int = 0
    """How many of its checkpoints can be neither skipped nor repeated."""
    finished_at: int | None = None
    reason: str | None = None
    output_ref: int | None = None
    error_ref: int | None = None
    last_error: str | None = None
    """The code of the newest failed attempt."""
    eligible_at: int | None = None
    """When the backoff ends."""
    wake_at: int | None = None
    template_ref: int | None = None
    """The payload with the expressions of the workflow file from which its input is made."""
    condition: str | None = None
    """The expression of the workflow file that decides whether it runs."""
    resolution: str = ""
    """What has to be resolved before it can be claimed: nothing (empty), its input or an earlier result (`due`), or a new
    input for each attempt (`each`: there is one for this attempt). `skip`: its condition is known to be false."""
    reuse: str | None = None
    """When its result may be used again, as JSON (`ReuseTerms`)."""
    reuse_key: bytes | None = None
    """The digest of all that its result depends on, known when its needs have ended. A step that succeeded with the same
    key has the same result."""
    reused_run: int | None = None
    """For a step that has the result of an earlier one: the run that made the result. It may have been deleted since."""
    reused_step: str | None = None
    """The name of the step in that run."""


@table(
    "attempt",
    key=("run_id", "idx", "n"),
    unlogged=(
        "tenant",
        "workflow",
        "session",
        "expires_at",
        "beat_at",
        "seq",
        "last_message",
        "answer",
        "progress",
    ),
    fixed=9,
)
class AttemptRow(RunPartRow):
    """One attempt of a step, with its lease. The claim creates the row: a ready step stands for its queued attempt."""

    idx: int
    n: int
    tenant: str
    workflow: str
    owner: str
    granted_at: int
    timeout_at: int | None
    session: int | None
    """The process of its holder (`worker_process`), if its death can be proven."""
    state: str
    lease: str
    expires_at: int
    beat_at: int
    seq: int = 0
    """The highest sequence number that was accepted from its runner."""
    last_message: str = ""
    """The type and sequence number of the last message that was not a heartbeat."""
    answer: bytes = b""
    """The answer to that message, for a repeat."""
    progress: str = ""
    ended_at: int | None = None
    reason: str | None = None
    cost: str | None = None


@table("checkpoint", key=("run_id", "idx", "name"), unlogged=("seq", "meta", "salt", "output"))
class CheckpointRow(RunPartRow):
    """A durable result inside a step. A short result that never changes is stored in `output`, with its salt."""

    idx: int
    name: str
    """Its key: scope path, step name, number of the call."""
    no: int
    """Its place in the order of recording."""
    state: str
    """started, done or failed."""
    n: int
    seq: int
    resumable: bool
    idempotent: bool
    arguments: bytes
    """The digest of its arguments, compared at replay."""
    at: int
    tries: int = 1
    next_at: int | None = None
    output_ref: int | None = None
    """The result; for a failed checkpoint the error message."""
    error: str | None = None
    meta: str | None = None
    """Agent, tokens, duration and cost, as JSON. The user wrote it, so it is not history."""
    input_ref: int | None = None
    """Its arguments, if its profile stores them."""
    salt: bytes | None = None
    output: bytes | None = None

    @property
    def unsafe(self) -> bool:
        """Whether it can be neither skipped nor repeated: its end is not known, or its result is not reusable."""
        return not self.idempotent and (
            self.state == "started" or (self.state == "done" and not self.resumable)
        )


@table("wait", key=("run_id", "no"), unlogged=("wake_at",))
class WaitRow(NumberedRow):
    """Something a step waits for: an approval, an event, a time, a child, or a person who settles an unknown receipt. A
    proposal is a wait, too, although no step waits for it."""

    idx: int
    kind: str
    name: str
    """The event's name, the approval's action, or the child's id. At replay, the wait is found by `label`."""
    label: str
    gate: bool
    fatal: bool
    """Whether a refusal or an expiry fails the step instead of resuming it."""
    opened_at: int
    expires_at: int | None
    state: str = "open"
    """open, settled or closed."""
    outcome: str | None = None
    """approved, rejected, received, elapsed, finished, expired, resumed."""
    settled_at: int | None = None
    result_ref: int | None = None
    wake_at: int | None = None


@table("approval", key=("run_id", "no"), unlogged=("tenant",))
class ApprovalRow(NumberedRow):
    """The question of an approval or a proposal. It has the number of its wait."""

    tenant: str
    tier: str
    people: int
    requester: str
    digest: bytes
    """The digest of the proposal. Empty: the question binds nothing."""
    revision: int
    requested_at: int
    expires_at: int | None
    question_ref: int | None
    status: str = "requested"
    votes: str = ""
    """Who has approved this revision, as `id id`. Ids have no blanks."""
    decided_at: int | None = None
    decided_by: str | None = None
    reason_ref: int | None = None
    people_in: str = ""
    """The group of the approvers. Empty: any approver."""
    reminded_at: int | None = None
    used_no: int | None = None
    """The receipt that used it: an approval is good for one act."""


@table("inbox", key=("run_id", "no"))
class InboxRow(NumberedRow):
    """An event delivered to a run. After a wait has taken it, its row remains so that its id never counts twice."""

    name: str
    event_id: str
    source: str
    payload_ref: int | None
    received_at: int
    wait_no: int | None = None
    senders: str = ""
    """The people who sent it, as `id id`. They become involved in the run when a wait takes it."""


@table("child", key=("run_id", "child_id"))
class ChildRow(RunPartRow):
    """A run that another run started."""

    child_id: int
    idx: int
    on_close: str
    """cancel, leave or wait: what happens to it when its parent ends."""
    wait_no: int
    state: str = "open"
    outcome: str | None = None


@table("payload", key=("run_id", "ref"))
class PayloadRow(RunPartRow):
    """The user's bytes, outside of the history so that they can be erased."""

    ref: int
    salt: bytes
    body: bytes


@table("event", key=("run_id", "seq"))
class EventRow(RunPartRow):
    """One entry of a run's history. `body` has the exact bytes that were hashed."""

    seq: int
    kind: str
    at: int
    actor: str
    initiator: str
    cause: str
    body: bytes
    hash: bytes


@table("outbox", key=("run_id", "seq", "part"))
class OutboxRow(RunPartRow):
    """A command that a run owes another run. The commit that carries it out deletes the row."""

    seq: int
    part: int
    topic: str
    target_id: int | None
    body: bytes
    created_at: int


@table("stale_message", key=("run_id", "idx", "n", "message"))
class StaleMessageRow(RunPartRow):
    """A message of a lease that had ended. It is recorded once per lease and type, and changes nothing else."""

    idx: int
    n: int
    message: str
    seq: int
    owner: str
    at: int


@table("cap", key=("tenant", "scope"))
class Cap(Row):
    """Limits and weight of a tenant (scope ''), a workspace ('ws:NAME') or a workflow ('wf:NAME')."""

    tenant: str
    scope: str
    weight: int = 1
    max_concurrency: int | None = None
    max_runs_per_min: int | None = None
    max_writes_per_run: int | None = None


@table("idempotency", key=("tenant", "source", "name"))
class IdempotencyRow(Row):
    """The record of an idempotency key, with the stored answer, until it expires."""

    tenant: str
    source: str
    name: str
    run_id: int | None
    status: str
    request_hash: bytes
    response: bytes | None
    error: str | None
    created_at: int
    updated_at: int
    expires_at: int
    lock_expires_at: int | None
    attempts: int = 1
    holder: str | None = None
    """The server that processes the request, by its name among the workers. None: a process without such a name."""


ROWS: dict[str, type[Row]] = {
    r.table: r
    for r in (
        RunRow,
        RunSpecRow,
        StepRow,
        AttemptRow,
        CheckpointRow,
        WaitRow,
        ApprovalRow,
        InboxRow,
        ChildRow,
        PayloadRow,
        EventRow,
        OutboxRow,
        StaleMessageRow,
        Cap,
        IdempotencyRow,
        VerdictRow,
        ReceiptRow,
        RunSpendRow,
        CostLineRow,
    )
}

CLOSED_STEP = frozenset({"succeeded", "failed", "canceled", "timed_out", "skipped"})
CLOSED_RUN = frozenset({"succeeded", "failed", "canceled", "timed_out"})
WAITS_AT_END = "end"
"""The first word of `step.waits_on` if the step only waits for its children."""
PLAN_IDX = STEPS_PER_RUN_MAX
"""The index of a plan step. Other steps have lower ones, so that they are numbered from 0 in every run."""
CONDITION_FALSE = "CONDITION_FALSE"
"""The reason of a step that succeeded without running."""
REUSED = "REUSED"
"""The reason of a step that has the result of an earlier step."""
QUESTIONS = frozenset({"approval", "proposal"})
"""The kinds of waits that have an `ApprovalRow`."""
ASKS_PEOPLE = frozenset({"approval", "receipt"})
"""The kinds of waits that a person ends."""

LIGHT_COLUMNS = ("version", "head", "event_at", "steps_done", "checkpoints", "next_ref")
"""The columns of its run that a checkpoint changes. It is by far the most frequent command, so stores have a fast
statement for just these columns (`Save.light`)."""

ROW_KEYS: dict[type[Row], Callable[[Any], tuple[Any, ...]]] = {
    StepRow: lambda row: ("step", row.idx),
    AttemptRow: lambda row: ("attempt", row.idx, row.n),
    CheckpointRow: lambda row: ("checkpoint", row.idx, row.name),
    PayloadRow: lambda row: ("payload", row.ref),
    RunSpecRow: lambda _: ("run_spec",),
    WaitRow: lambda row: ("wait", row.no),
    ApprovalRow: lambda row: ("approval", row.no),
    InboxRow: lambda row: ("inbox", row.no),
    ChildRow: lambda row: ("child", row.child_id),
    VerdictRow: lambda row: ("verdict", row.no),
    ReceiptRow: lambda row: ("receipt", row.no),
    RunSpendRow: lambda _: ("run_spend",),
    CostLineRow: lambda row: ("cost_line", row.no),
}
"""Row type -> a row's key in its run: (table, *key without the run)."""

copy_row: Callable[[R], R] = Row.__copy__  # type: ignore[attr-defined]  # the stubs of Struct lack it
"""Three times as fast as `copy.copy`."""
