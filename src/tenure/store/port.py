"""The contract of a store. Both databases answer the same named queries.

Laws:
1. A transaction is a generator that yields `Query` and `Save` and receives the answers. It does no I/O, so the same
   generator runs on SQLite, on PostgreSQL and in the simulator. It runs in the event loop's thread until it yields
   `LEAVE_EVENT_LOOP`.
2. The run row is the only lock for everything beneath it. Lock first, load in a later statement.
   Lock order: tenants, then runs by id, nothing else; a query that takes locks says so below.
3. Every save names the version it expects of every run. If a run has another version, neither the run nor its rows are
   written, and the answer does not name it.
4. A query takes `rows` (a list of equal tuples: in PostgreSQL one array per column $1..$k, in SQLite one
   execution per tuple, ?1..?k) and then scalars. Its result rows are of the type named in `QUERIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from tenure.kernel.act_rows import CostLineRow, ReceiptRow, RunSpendRow, VerdictRow
from tenure.kernel.feed import FeedLine
from tenure.kernel.governance_rows import GovernanceRow
from tenure.kernel.identity_rows import PersonRow, UnconfirmedPerson
from tenure.kernel.run_rows import (
    ApprovalRow,
    AttemptRow,
    Cap,
    CheckpointRow,
    ChildRow,
    EventRow,
    InboxRow,
    OutboxRow,
    PayloadRow,
    Row,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
)


class ClaimQueue(msgspec.Struct, gc=False):
    """A (tenant, workspace) with claimable work in a queue."""

    tenant: str
    workspace: str


class ClaimCandidate(msgspec.Struct, gc=False):
    """A step that looked claimable a moment ago."""

    run_id: int
    idx: int
    tenant: str
    workspace: str
    workflow: str
    priority: int = 0
    ready_at: int | None = None


class LeaseUsage(msgspec.Struct, gc=False):
    tenant: str
    workflow: str
    leases: int


class AdmissionRate(msgspec.Struct, gc=False):
    """Runs of one workflow that were admitted since a moment, and the first of them."""

    workflow: str
    runs: int
    first_at: int


class ConcurrencyKeyQueue(msgspec.Struct, gc=False):
    """Which run holds a concurrency key, and which has waited for it longest."""

    holder_id: int | None
    first_waiting_id: int | None


class RunId(msgspec.Struct, gc=False):
    run_id: int


class ConcurrencyKeyHolder(RunId, gc=False):
    """A run that has a concurrency key and is not finished."""

    admitted_at: int | None
    created_at: int = 0
    cancel_at: int | None = None


class DueTimer(msgspec.Struct, gc=False):
    """A run, step or wait whose timer has expired."""

    entity: str
    """run, step or wait."""
    run_id: int
    at: int
    """The step's index or the wait's number; 0 for a run."""
    tenant: str
    admitted: bool
    wake_at: int


class ExtendedLease(msgspec.Struct, gc=False):
    """A lease whose heartbeat was written, and its attempt's state: `canceling` tells the runner to stop."""

    run_id: int
    idx: int
    n: int
    state: str


class StoreTime(msgspec.Struct, gc=False):
    now_us: int


class EventHash(msgspec.Struct, gc=False):
    """The hash of one event: the proof that its commit happened."""

    run_id: int
    seq: int
    hash: bytes


class RunHead(msgspec.Struct, gc=False):
    """The version of a run and the hash of its newest event, which identifies its whole history. (The version does not: a
    run may have been deleted, and its id used again.)"""

    id: int
    version: int
    head: bytes


class TableSize(msgspec.Struct, gc=False):
    table: str
    rows: int


RowType = type[msgspec.Struct]

IN_TRANSACTION: dict[str, RowType] = {
    # name: answer          rows -> ; scalars
    "now": StoreTime,  # -
    "lock_tenants": RunId,  # (tenant) -> PG: advisory transaction locks in sorted order; no answer rows
    "lock_runs": RunRow,  # (id) -> locked in id order, waiting
    "lock_free_runs": RunRow,  # (id) -> locked in id order, those locked by others are left out
    "lock_free_heads": RunHead,  # (id) -> the same, for runs that the caller may have cached
    "load_specs": RunSpecRow,  # (run_id)
    "load_steps": StepRow,  # (run_id, idx)
    "load_named_steps": StepRow,  # (run_id, name)
    "load_open_steps": StepRow,  # (run_id) -> steps that are not closed
    "load_attempts": AttemptRow,  # (run_id, idx, n) -> also locked (PG: for update, in key order)
    "load_checkpoints": CheckpointRow,  # (run_id, idx, name)
    "load_step_checkpoints": CheckpointRow,  # (run_id, idx) -> all of a step, in order of `no`
    "load_open_waits": WaitRow,  # (run_id)
    "load_waits": WaitRow,  # (run_id, no)
    "load_event_waits": WaitRow,  # (run_id, name) -> open waits for an event, oldest first
    "load_labeled_waits": WaitRow,  # (run_id, idx, label)
    "load_approvals": ApprovalRow,  # (run_id, no)
    "load_buffered": InboxRow,  # (run_id, name) -> those no wait has taken, in order of `no`
    "load_inbox_ids": InboxRow,  # (run_id, event_id)
    "load_open_children": ChildRow,  # (run_id)
    "load_children": ChildRow,  # (run_id, child_id)
    "load_payloads": PayloadRow,  # (run_id, ref)
    "load_acts": ReceiptRow,  # (run_id, idx, label) -> all receipts of an act, in order
    "load_receipts": ReceiptRow,  # (run_id, no)
    "load_open_receipts": ReceiptRow,  # (run_id) -> those that are intended or unknown
    "load_run_spends": RunSpendRow,  # (run_id)
    "load_cost_lines": CostLineRow,  # (run_id)
    "load_key_holders": ReceiptRow,  # (tenant, name) -> the receipt that holds the key, of any run
    "load_governance": GovernanceRow,  # (tenant) -> PG: for share, so that freezing and activating wait for this commit
    "load_people": PersonRow,  # (tenant, id)
    "load_unconfirmed": UnconfirmedPerson,  # (tenant) -> people who count as one with others
    "load_event_hashes": EventHash,  # (run_id, seq)
    "find_keys": RunSpecRow,  # (tenant, source, idempotency_key)
    "caps": Cap,  # (tenant)
    "claim_queues": ClaimQueue,  # (queue) ; after_tenant, after_workspace, limit -> distinct, in order, after the given one
    "tenant_claim_queues": ClaimQueue,  # (queue) ; tenant, after_workspace, limit -> likewise of one tenant
    "usage": LeaseUsage,  # (tenant) -> live leases, grouped by tenant and workflow, no row if there are none
    "candidates": ClaimCandidate,  # (queue, tenant, workspace, limit) -> best priority, then oldest, per row
    "candidates_behind": ClaimCandidate,  # (queue, tenant, workspace, priority, ready_at, run_id, idx, limit) -> likewise,
    # behind this one
    "key_queue": ConcurrencyKeyQueue,  # () ; tenant, concurrency_key, horizon -> exactly one row; waiting: wake_at <= horizon
    "live_keys": ConcurrencyKeyHolder,  # () ; tenant, concurrency_key, except_run_id
    "rates": AdmissionRate,  # () ; tenant, since -> rated runs admitted after `since`
    "beat": ExtendedLease,  # (run_id, idx, n, seq, expires_at, progress) ; now -> see below
}
"""Queries used inside a transaction. `beat` writes `beat_at = now, expires_at, seq, progress` if the lease
is active, its expiry is after `now`, its seq is lower and the new expiry is not earlier; it answers the keys it wrote, with the attempt's state.
(PG locks those rows in key order first.)"""

READS: dict[str, RowType] = {
    "due": DueTimer,  # () ; now, limit -> run, step and wait timers with wake_at <= now, earliest first
    "next_wake": StoreTime,  # () -> the earliest wake_at of all, no row if there is none
    "outbox_pending": OutboxRow,  # () ; created_before, limit -> oldest first
    "get_run": RunRow,  # () ; id
    "get_spec": RunSpecRow,  # () ; run_id
    "runs_by_status": RunRow,  # () ; tenant, status, before_created_at, limit -> newest first
    "approvals_open": ApprovalRow,  # () ; tenant, limit -> oldest first
    "run_ids_after": RunId,  # () ; after_id, limit -> by id
    "reusable_steps": StepRow,  # () ; tenant, reuse_key, limit -> those that ran and succeeded, newest first
    "reused_steps_of": StepRow,  # () ; run_id -> those that have the result of an earlier step
    "steps_of": StepRow,  # () ; run_id    (these: all rows of one run, in key order)
    "attempts_of": AttemptRow,
    "checkpoints_of": CheckpointRow,
    "waits_of": WaitRow,
    "approvals_of": ApprovalRow,
    "inbox_of": InboxRow,
    "children_of": ChildRow,
    "payloads_of": PayloadRow,
    "verdicts_of": VerdictRow,
    "receipts_of": ReceiptRow,
    "run_spends_of": RunSpendRow,
    "cost_lines_of": CostLineRow,
    "events_of": EventRow,
    "outbox_of": OutboxRow,
    "events_after": EventRow,  # () ; run_id, after_seq, limit
    "payload": PayloadRow,  # () ; run_id, ref
    "all_caps": Cap,  # ()
    "live_usage": LeaseUsage,  # () -> live leases of all tenants, grouped by tenant and workflow
    "key_holders_twice": RunId,  # () -> runs that share a concurrency key while both are admitted and open
    "orphan_rows": RunId,  # () -> run ids that rows beneath a run name but no run has
    "lost_specs": RunId,  # () -> runs without a spec, or with a spec of another tenant
    "sizes": TableSize,  # () -> each table and its number of rows
}

QUERIES: dict[str, RowType] = {**IN_TRANSACTION, **READS}
BY_ROW = frozenset(IN_TRANSACTION) - {"now", "key_queue", "live_keys", "rates"}
"""Queries that are asked about rows: without rows they have nothing to answer."""


class Query(msgspec.Struct, gc=False):
    name: str
    rows: Sequence[tuple[Any, ...]] = ()
    scalars: tuple[Any, ...] = ()


class Save(msgspec.Struct, gc=False):
    """Write the rows of some runs, each only if it is still at the version expected.

    `expect` holds (run id, version, valid until): a run is written only while the store's clock is below
    `valid until` (None: always). `new` are runs to be inserted, with their specs; one whose id or
    idempotency key exists already is left out. Rows of runs left out are not written.
    The answer is the set of ids that were written.
    """

    expect: list[tuple[int, int, int | None]] = []
    heads: dict[int, bytes] = {}
    """The head that a run must have in addition to its version: a run that was deleted and created again under its id may
    have the same version."""
    runs: list[RunRow] = []
    new_runs: list[RunRow] = []
    new_specs: list[RunSpecRow] = []
    rows: dict[str, list[Row]] = {}
    """By table: run_spec (changed ones), step, attempt, checkpoint, wait, approval, inbox, child, payload, event,
    outbox, stale, idempotency, remote_lease. Events, payloads, outbox, stale, idempotency and remote_lease rows
    are only ever inserted (stale: on conflict do nothing; idempotency: an existing key refuses the save); the
    others are inserted or, by primary key, updated.
    attempt.expires_at and attempt.seq never decrease."""
    light: set[int] = set()
    """Runs of which only the light columns have changed: their other columns need not be written."""
    delivered: list[tuple[int, int, int]] = []
    """Keys of outbox rows to delete. The row of a target that this save leaves out is kept."""
    feed: list[tuple[int, list[FeedLine]]] = []
    """(run id, its lines): joined to this commit's row of the feed, without those of runs left out. At most one save of a
    transaction has it."""
    delete_runs: list[int] = []
    """Finished runs to delete with all their rows, except outbox rows and a spec with an idempotency key."""
    estimate_us: int | None = None
    """The time of the decisions, if it was an estimate. If the store's clock differs from it by more than a second, nothing
    is written."""


class LeaveEventLoop(msgspec.Struct, frozen=True, gc=False):
    """The rest of the transaction takes long, and runs outside of the event loop's thread. The answer is None. It has no
    effect if there is no other thread, or if it is yielded again."""


LEAVE_EVENT_LOOP = LeaveEventLoop()
ESTIMATE_ERROR_US_MAX = 1_000_000
"""The largest error of an estimated time with which a save is written."""


class Saved(msgspec.Struct, gc=False):
    ids: set[int]
    now_us: int


T = TypeVar("T")
StoreRequest = Query | Save | LeaveEventLoop
Transaction = Generator[StoreRequest, Any, T]
"""A transaction: it yields requests, is sent their answers, and returns the result."""


class AmbiguousCommit(Exception):
    """The connection was lost during COMMIT: the outcome is not known yet."""


class WriteConflict(Exception):
    """Deadlock or serialization failure: nothing was written, the batch may be tried again."""


class DataRejected(Exception):
    """The database refused the data of something in the batch; the rest may be fine."""


class QueryReader(Protocol):
    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Ask one named query on its own."""


class Store(QueryReader, Protocol):
    """A database. Errors: TenureError STORE_* (nothing was written), AmbiguousCommit, WriteConflict, DataRejected."""

    name: str
    """sqlite or postgres."""
    lanes_max: int
    """How many transactions it is worth running at the same time."""

    async def open(self) -> None:
        """Connect and check the schema's version (STORE_NOT_MIGRATED, STORE_TOO_NEW)."""

    async def close(self) -> None:
        """Disconnect, after the transactions that are under way."""

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        """Run one transaction and commit it. `single` promises that the generator yields one Save and nothing
        else, so that one round trip suffices. `make` may be called again after a lost connection."""

    @property
    def commits_inline(self) -> bool:
        """Whether to try `commit_inline`: small commits are fast, and no other process is writing."""

    def commit_inline(self, decide: Callable[[int], Save | None]) -> Saved | None:
        """Run a transaction of one save in the caller's thread; it is committed on return. `decide` makes the save from the
        store's time, under the write lock; None: nothing is written. WriteConflict if another transaction is under way."""

    async def put_caps(self, caps: list[Cap]) -> None:
        """Insert or replace caps."""

    async def wait_for_work(self, timeout_s: float) -> bool:
        """Wait until another process announces that work became ready (True), or until the timeout (False)."""

    async def notify_work(self) -> None:
        """Tell other processes, after the commit, that work became ready. Calls are coalesced; delivery is best effort."""

    def estimate_us(self) -> int | None:
        """The store's time without a query, by the last commit and the monotonic clock; None: not known well enough. A save
        that was decided at an estimate names it (`Save.estimate_us`) and is checked against the real time."""

    def shift_clock(self, offset_us: int) -> None:
        """Move this store's clock, for tests."""
