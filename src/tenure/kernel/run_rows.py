"""The rows of the kernel. A row's fields are its table's columns, in order.

Laws:
1. A row that has been handed out is never changed: the kernel copies it, changes the copy, and the
   store saves the copy.
2. Times are whole microseconds, UTC, by the store's clock.
3. `beside` names, per table, the columns that are *not* history: what they hold may change without an
   event. Every other column can be had again by folding a run's events.
4. `wake_at` is the earliest moment at which time alone must change an entity; the kernel knows from the
   state what that moment means.
"""

from __future__ import annotations

from typing import ClassVar

from tenure.kernel.act_rows import CostLineRow, ReceiptRow, RunSpendRow, VerdictRow
from tenure.kernel.row import Row as Row  # noqa: PLC0414  # what all rows are is imported from here
from tenure.kernel.tenant_rows import Cap as Cap  # noqa: PLC0414  # rows are imported from here
from tenure.kernel.tenant_rows import IdempotencyRow as IdempotencyRow  # noqa: PLC0414  # likewise


class RunRow(Row, gc=False):
    """A run: what every transition of it reads and writes."""

    table: ClassVar[str] = "run"
    key: ClassVar[tuple[str, ...]] = ("id",)
    unlogged: ClassVar[frozenset[str]] = frozenset({"id", "trace", "version", "head", "event_at", "wake_at"})
    fixed: ClassVar[int] = 13

    # What it is, for good.
    id: int
    tenant: str
    workspace: str
    workflow: str
    code_version: str
    profile: str
    repo: str | None
    concurrency_key: str | None
    rated: bool
    """Whether the tenant's or the workflow's max_runs_per_min counts it."""
    linked: bool
    """Whether its end owes something to another run (a parent, a concurrency key, children)."""
    timeout_us: int | None
    created_at: int
    trace: str | None
    """The W3C trace context (traceparent) of the request that made it: what its steps go on with."""
    # How it is.
    status: str = "created"
    version: int = 0
    """The sequence number of its last event."""
    head: bytes = b""
    """The hash of its last event."""
    event_at: int = 0
    planned: bool = False
    admitted_at: int | None = None
    """When it may begin: its start was not delayed, its key was free, its tenant's rate allowed it."""
    started_at: int | None = None
    finished_at: int | None = None
    duration_us: int | None = None
    reason: str | None = None
    """Why it ended as it did: an error code, or `done`."""
    paused: bool = False
    parked: str | None = None
    """What no longer fits, when no worker's code does."""
    cancel_at: int | None = None
    """When cancellation was requested."""
    cancel_reason: str | None = None
    deadline_at: int | None = None
    human_since: int | None = None
    """Since when it waits for a person: the deadline does not tick meanwhile."""
    reported_at: int | None = None
    sealed_at: int | None = None
    wake_at: int | None = None
    # Its steps, counted, so that its status is derived without reading them.
    steps_total: int = 0
    steps_open: int = 0
    steps_ready: int = 0
    steps_live: int = 0
    """Leased, or canceling under a lease."""
    steps_approval: int = 0
    steps_external: int = 0
    steps_retry: int = 0
    steps_bad: int = 0
    """Required steps that ended otherwise than succeeded."""
    steps_done: int = 0
    """What people see as steps completed: succeeded steps and finished checkpoints, the body apart."""
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
    """How many receipts it has made: a run without any never looks for them."""
    steps_skipped: int = 0
    """Steps that succeeded without being done, because their condition was false. They are among steps_done."""


class RunSpecRow(Row, gc=False):
    """What a run was asked to be; read seldom, and only its labels and metadata change."""

    table: ClassVar[str] = "run_spec"
    key: ClassVar[tuple[str, ...]] = ("run_id",)
    unlogged: ClassVar[frozenset[str]] = frozenset({"run_id", "labels", "metadata", "salt"})

    run_id: int
    tenant: str
    source: str
    """Which namespace its idempotency key lives in: api, github_webhook, slack, scheduler, child, cli."""
    idempotency_key: str | None
    request_hash: bytes
    trigger_type: str
    trigger_ref: str | None
    requester: str
    """The opaque id of whoever asked for it."""
    priority: int
    concurrency_mode: str
    """queue or supersede."""
    not_before: int | None
    wall_clock: bool
    """Whether its timeout also ticks while it waits for a person."""
    input_ref: int | None
    parent_id: int | None
    parent_no: int | None
    """The parent's wait that its end settles."""
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
    """Whether its cancellation starts a run that undoes what it did."""
    involved: str = ""
    """Who stands behind it besides the requester, as `id id`: none of them counts as an approver of what it does."""
    reported_stated_by: str | None = None
    """Who said first that its end was reported. That is their word: `run.reported_at` is the reporter's."""
    reported_stated_at: int | None = None


class StepRow(Row, gc=False):
    """A unit that is leased, or a gate that is not."""

    table: ClassVar[str] = "step"
    key: ClassVar[tuple[str, ...]] = ("run_id", "idx")
    unlogged: ClassVar[frozenset[str]] = frozenset(
        {"run_id", "idx", "wake_at", "tenant", "workspace", "workflow"}
    )
    fixed: ClassVar[int] = 11

    run_id: int
    idx: int
    name: str
    """Its key in the workflow, stable over runs."""
    kind: str
    """work, body (of a code-first workflow), approval, wait."""
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
    """Of a gate: what is asked, as JSON. Of work: its own backoff, if it has one."""
    created_at: int
    state: str = "pending"
    needs_left: int = 0
    attempt: int = 0
    """The number of its newest leased attempt; also the fence."""
    charged: int = 0
    """Claims that count against max_attempts since the last progress."""
    claimable: bool = False
    ready_at: int | None = None
    cancel_by: int | None = None
    wait_no: int | None = None
    """Of a gate: the wait it opened."""
    waits_on: str = ""
    """Of a suspended step: the waits it suspended on, as `1,2`. Of one that is done and waits for its children's
    ends: the mark AT_END and the waits for those that are still open, as `end,1,2`."""
    recorded: bool = False
    """Whether it has checkpoints."""
    unsafe: int = 0
    """Checkpoints that can be neither skipped nor repeated."""
    finished_at: int | None = None
    reason: str | None = None
    output_ref: int | None = None
    error_ref: int | None = None
    last_error: str | None = None
    """The code of the newest failed try."""
    eligible_at: int | None = None
    """When the backoff ends."""
    wake_at: int | None = None
    template_ref: int | None = None
    """What its input is made from: the payload with the expressions of its workflow file."""
    condition: str | None = None
    """The expression that says whether it is done at all, as its workflow file has it."""
    resolution: str = ""
    """What has to be made from its template before it is handed out: nothing (empty), its input (`due`), its input for
    each try (`each`: made for this one, due again for the next), or nothing ever, because its condition is known to be
    false (`skip`)."""


class AttemptRow(Row, gc=False):
    """One try of a step, with its lease. The row is made by the claim; until then a ready step *is* its
    queued attempt."""

    table: ClassVar[str] = "attempt"
    key: ClassVar[tuple[str, ...]] = ("run_id", "idx", "n")
    unlogged: ClassVar[frozenset[str]] = frozenset(
        {
            "run_id",
            "idx",
            "n",
            "tenant",
            "workflow",
            "session",
            "expires_at",
            "beat_at",
            "seq",
            "last_message",
            "answer",
            "progress",
        }
    )
    fixed: ClassVar[int] = 9

    run_id: int
    idx: int
    n: int
    tenant: str
    workflow: str
    owner: str
    granted_at: int
    timeout_at: int | None
    session: int | None
    """The process of its holder, where that can be proven dead (`worker_process`)."""
    state: str
    lease: str
    expires_at: int
    beat_at: int
    seq: int = 0
    """The highest sequence number accepted from its runner."""
    last_message: str = ""
    """The type and sequence number of the last message that was no heartbeat."""
    answer: bytes = b""
    """What it was answered, for a repeat."""
    progress: str = ""
    ended_at: int | None = None
    reason: str | None = None
    cost: str | None = None


class CheckpointRow(Row, gc=False):
    """A durable sub-result inside a step. What it returned lies in `output`, with its salt, where that is short and for good."""

    table: ClassVar[str] = "checkpoint"
    key: ClassVar[tuple[str, ...]] = ("run_id", "idx", "name")
    unlogged: ClassVar[frozenset[str]] = frozenset({"run_id", "idx", "name", "seq", "meta", "salt", "output"})

    run_id: int
    idx: int
    name: str
    """Its key: scope path, step name, n-th call."""
    no: int
    """Its place in the order of recording."""
    state: str
    """started, done or failed."""
    n: int
    """The attempt that recorded it."""
    seq: int
    resumable: bool
    idempotent: bool
    arguments: bytes
    """The digest of its arguments, checked at replay."""
    at: int
    tries: int = 1
    next_at: int | None = None
    output_ref: int | None = None
    """What it returned; of a failed one what went wrong, in words."""
    error: str | None = None
    meta: str | None = None
    """Agent, tokens, duration and cost, as JSON; the user's words, so they are not history."""
    input_ref: int | None = None
    """What it was called with, where its profile keeps that."""
    salt: bytes | None = None
    output: bytes | None = None

    @property
    def unsafe(self) -> bool:
        """Neither to be skipped nor to be repeated: begun and not known to have ended, or done but not reusable."""
        return not self.idempotent and (
            self.state == "started" or (self.state == "done" and not self.resumable)
        )


class WaitRow(Row, gc=False):
    """Something a step waits for: an approval, an event, a time, a child, or a person who says how an unknown action ended (kind
    `receipt`); or a proposal, which nobody waits for."""

    table: ClassVar[str] = "wait"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")
    unlogged: ClassVar[frozenset[str]] = frozenset({"run_id", "no", "wake_at"})

    run_id: int
    no: int
    idx: int
    kind: str
    name: str
    """The event's name, the approval's action, the child's id; its key at replay is `label`."""
    label: str
    gate: bool
    fatal: bool
    """Whether a refusal or an expiry fails the step instead of waking it."""
    opened_at: int
    expires_at: int | None
    state: str = "open"
    """open, settled or closed."""
    outcome: str | None = None
    """approved, rejected, received, elapsed, finished, expired, resumed."""
    settled_at: int | None = None
    result_ref: int | None = None
    wake_at: int | None = None


class ApprovalRow(Row, gc=False):
    """The question behind an approval or a proposal; it shares that wait's number."""

    table: ClassVar[str] = "approval"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")
    unlogged: ClassVar[frozenset[str]] = frozenset({"run_id", "no", "tenant"})

    run_id: int
    no: int
    tenant: str
    tier: str
    people: int
    requester: str
    digest: bytes
    """The digest of what is proposed; empty where nothing is bound."""
    revision: int
    requested_at: int
    expires_at: int | None
    question_ref: int | None
    status: str = "requested"
    votes: str = ""
    """Who said yes to this revision, as `id id`; opaque ids have no blanks."""
    decided_at: int | None = None
    decided_by: str | None = None
    reason_ref: int | None = None
    people_in: str = ""
    """The group that those who say yes must belong to; empty: anybody who may approve."""
    reminded_at: int | None = None
    used_no: int | None = None
    """The receipt that used it up: an approval is good for one action."""


class InboxRow(Row, gc=False):
    """An event delivered to a run, until a wait takes it; afterwards its id is kept for deduplication."""

    table: ClassVar[str] = "inbox"
    key: ClassVar[tuple[str, ...]] = ("run_id", "no")
    unlogged: ClassVar[frozenset[str]] = frozenset({"run_id", "no"})

    run_id: int
    no: int
    name: str
    event_id: str
    source: str
    payload_ref: int | None
    received_at: int
    wait_no: int | None = None
    senders: str = ""
    """The people who have sent it, as `id id`: they stand behind the run once a wait has taken it."""


class ChildRow(Row, gc=False):
    """A run that another one started."""

    table: ClassVar[str] = "child"
    key: ClassVar[tuple[str, ...]] = ("run_id", "child_id")
    unlogged: ClassVar[frozenset[str]] = frozenset({"run_id", "child_id"})

    run_id: int
    child_id: int
    idx: int
    on_close: str
    """cancel, leave or wait: what the parent's end means to it."""
    wait_no: int
    state: str = "open"
    outcome: str | None = None


class PayloadRow(Row, gc=False):
    """Bytes of the user's, out of the history so that they can be erased."""

    table: ClassVar[str] = "payload"
    key: ClassVar[tuple[str, ...]] = ("run_id", "ref")

    run_id: int
    ref: int
    salt: bytes
    body: bytes


class EventRow(Row, gc=False):
    """One line of a run's history, as the exact bytes that were hashed."""

    table: ClassVar[str] = "event"
    key: ClassVar[tuple[str, ...]] = ("run_id", "seq")

    run_id: int
    seq: int
    kind: str
    at: int
    actor: str
    initiator: str
    cause: str
    body: bytes
    hash: bytes


class OutboxRow(Row, gc=False):
    """Something a commit owes to another run; deleted in the commit that delivers it."""

    table: ClassVar[str] = "outbox"
    key: ClassVar[tuple[str, ...]] = ("run_id", "seq", "part")

    run_id: int
    seq: int
    part: int
    topic: str
    target_id: int | None
    body: bytes
    created_at: int


class StaleMessageRow(Row, gc=False):
    """A message from a lease that had ended; recorded once per lease and type, and nothing else."""

    table: ClassVar[str] = "stale_message"
    key: ClassVar[tuple[str, ...]] = ("run_id", "idx", "n", "message")

    run_id: int
    idx: int
    n: int
    message: str
    seq: int
    owner: str
    at: int


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
CONDITION_FALSE = "CONDITION_FALSE"
"""The reason of a step that succeeded without being done."""
QUESTIONS = frozenset({"approval", "proposal"})
"""Kinds of waits with a question to people behind them."""
ASKS_PEOPLE = frozenset({"approval", "receipt"})
"""Kinds of waits whose end is up to a person: an approval, and how an unknown action ended."""
