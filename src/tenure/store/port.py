"""What the orchestrator asks of a store. Both databases answer the same named queries.

Laws:
1. A transaction is a generator that yields `Query` and `Save` and is sent the answers. It does no I/O,
   so the same generator runs on SQLite's writer thread, on PostgreSQL's connection and in the simulator. It runs in the
   event loop's thread until it yields `ASIDE`.
2. The run row is the only lock for everything beneath it. Lock first, load in a later statement.
   Lock order: tenants, then runs by id, nothing else; a query that takes locks says so below.
3. Every save names the version it expects of every run. A run that has moved on is left alone, with all
   its rows, and is missing from the answer: a normal, named outcome.
4. A query takes `rows` (a list of equal tuples: in PostgreSQL one array per column $1..$k, in SQLite one
   execution per tuple, ?1..?k) and then scalars. Its result rows are of the type named in `QUERIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from tenure.kernel.beside import LogLine, RegisteredWorkflow, Schedule, WorkerProcess
from tenure.kernel.feed import Line
from tenure.kernel.governance import Governance
from tenure.kernel.governed import CostLine, Purse, Receipt, Verdict
from tenure.kernel.model import (
    Approval,
    Attempt,
    Cap,
    Checkpoint,
    Child,
    Event,
    Inbox,
    Outbox,
    Payload,
    Row,
    Run,
    RunSpec,
    Step,
    Wait,
)
from tenure.kernel.service import Person, UnconfirmedPerson


class Lane(msgspec.Struct, gc=False):
    """A (tenant, workspace) with claimable work in a queue."""

    tenant: str
    workspace: str


class Candidate(msgspec.Struct, gc=False):
    """A step that looked claimable a moment ago."""

    run_id: int
    idx: int
    tenant: str
    workspace: str
    workflow: str
    priority: int = 0
    ready_at: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Live leases of one workflow of a tenant."""

    tenant: str
    workflow: str
    leases: int


class Rate(msgspec.Struct, gc=False):
    """Runs of one workflow that were admitted since a moment, and the first of them."""

    workflow: str
    runs: int
    first_at: int


class KeyQueue(msgspec.Struct, gc=False):
    """Who holds a concurrency key, and who waits for it longest."""

    holder_id: int | None
    first_waiting_id: int | None


class LiveKey(msgspec.Struct, gc=False):
    """A run that has a concurrency key and is not finished."""

    run_id: int
    admitted_at: int | None
    created_at: int = 0
    cancel_at: int | None = None


class Timer(msgspec.Struct, gc=False):
    """Something whose moment has come."""

    entity: str
    """run, step or wait."""
    run_id: int
    at: int
    """The step's index or the wait's number; 0 for a run."""
    tenant: str
    admitted: bool
    wake_at: int


class BeatKey(msgspec.Struct, gc=False):
    """A lease whose heartbeat was written, and its attempt's state: `canceling` tells the runner to stop."""

    run_id: int
    idx: int
    n: int
    state: str


class Moment(msgspec.Struct, gc=False):
    """The store's time."""

    now_us: int


class EventHash(msgspec.Struct, gc=False):
    """The hash of one event: the proof that its commit happened."""

    run_id: int
    seq: int
    hash: bytes


class RunHead(msgspec.Struct, gc=False):
    """Where a run is: the hash of its newest event names all that it is made of. (Its version does not: a run may have
    been deleted, and its id used again.)"""

    id: int
    version: int
    head: bytes


class RunId(msgspec.Struct, gc=False):
    """Just an id."""

    run_id: int


class Recorded(msgspec.Struct, gc=False):
    """A checkpoint with what it put aside, for whoever goes on with its step."""

    name: str
    no: int
    state: str
    n: int
    resumable: bool
    idempotent: bool
    arguments: bytes
    at: int
    tries: int
    next_at: int | None
    error: str | None
    meta: str | None
    output_ref: int | None
    output: bytes | None
    """None also where it has been erased (there is an output_ref). Of a failed one: its message."""


class Waited(msgspec.Struct, gc=False):
    """A wait with its answer, for whoever goes on with its step."""

    no: int
    label: str
    kind: str
    name: str
    state: str
    outcome: str | None
    opened_at: int
    expires_at: int | None
    settled_at: int | None
    result: bytes | None
    """What the event brought."""
    revision: int | None
    decided_by: str | None
    reason: bytes | None
    """Of an approval or a proposal: which revision was decided, by whom and why."""
    child_id: int | None
    child_outcome: str | None
    child_code: str | None
    child_output: bytes | None
    child_error: bytes | None
    """Of a child: how it ended, why (a code, or `done`), what it returned and what it said went wrong."""


class Size(msgspec.Struct, gc=False):
    """A table and how many rows it holds."""

    table: str
    rows: int


Answer = type[msgspec.Struct]

IN_TRANSACTION: dict[str, Answer] = {
    # name: answer          rows -> ; scalars
    "now": Moment,  # -
    "lock_tenants": RunId,  # (tenant) -> PG: advisory transaction locks in sorted order; no answer rows
    "lock_runs": Run,  # (id) -> locked in id order, waiting
    "lock_free_runs": Run,  # (id) -> locked in id order, those locked by others are left out
    "lock_free_heads": RunHead,  # (id) -> the same, of runs whose rows may be known
    "load_specs": RunSpec,  # (run_id)
    "load_steps": Step,  # (run_id, idx)
    "load_named_steps": Step,  # (run_id, name)
    "load_open_steps": Step,  # (run_id) -> steps that are not closed
    "load_attempts": Attempt,  # (run_id, idx, n) -> also locked (PG: for update, in key order)
    "load_checkpoints": Checkpoint,  # (run_id, idx, name)
    "load_step_checkpoints": Checkpoint,  # (run_id, idx) -> all of a step, in order of `no`
    "load_open_waits": Wait,  # (run_id)
    "load_waits": Wait,  # (run_id, no)
    "load_event_waits": Wait,  # (run_id, name) -> open waits for an event, oldest first
    "load_labeled_waits": Wait,  # (run_id, idx, label)
    "load_approvals": Approval,  # (run_id, no)
    "load_buffered": Inbox,  # (run_id, name) -> those no wait has taken, in order of `no`
    "load_inbox_ids": Inbox,  # (run_id, event_id)
    "load_open_children": Child,  # (run_id)
    "load_children": Child,  # (run_id, child_id)
    "load_payloads": Payload,  # (run_id, ref)
    "load_acts": Receipt,  # (run_id, idx, label) -> all receipts of an act, in order
    "load_receipts": Receipt,  # (run_id, no)
    "load_open_receipts": Receipt,  # (run_id) -> those that are intended or unknown
    "load_purses": Purse,  # (run_id)
    "load_cost_lines": CostLine,  # (run_id)
    "load_key_holders": Receipt,  # (tenant, name) -> the receipt that holds the key, of whichever run
    "load_governance": Governance,  # (tenant) -> PG: for share, so that freezing and activating wait for this commit
    "load_people": Person,  # (tenant, id)
    "load_unconfirmed": UnconfirmedPerson,  # (tenant) -> people who count as one with others
    "load_event_hashes": EventHash,  # (run_id, seq)
    "find_keys": RunSpec,  # (tenant, source, idempotency_key)
    "caps": Cap,  # (tenant)
    "lanes": Lane,  # (queue) ; after_tenant, after_workspace, limit -> distinct, in order, after the given one
    "lanes_of": Lane,  # (queue) ; tenant, after_workspace, limit -> likewise of one tenant
    "usage": Usage,  # (tenant) -> live leases, grouped by tenant and workflow, zero rows where none
    "candidates": Candidate,  # (queue, tenant, workspace, limit) -> best priority, then oldest, per row
    "candidates_behind": Candidate,  # (queue, tenant, workspace, priority, ready_at, run_id, idx, limit) -> likewise,
    # behind this one
    "key_queue": KeyQueue,  # () ; tenant, concurrency_key, horizon -> exactly one row; waiting: wake_at <= horizon
    "live_keys": LiveKey,  # () ; tenant, concurrency_key, except_run_id
    "rates": Rate,  # () ; tenant, since -> rated runs admitted after `since`
    "beat": BeatKey,  # (run_id, idx, n, seq, expires_at, progress) ; now -> see below
}
"""Queries used inside a transaction. `beat` writes `beat_at = now, expires_at, seq, progress` where the lease
is active, its expiry is after `now`, its seq is lower and the new expiry is not earlier; it answers the keys it wrote, with the attempt's state.
(PG locks those rows in key order first.)"""

READS: dict[str, Answer] = {
    "due": Timer,  # () ; now, limit -> run, step and wait timers with wake_at <= now, earliest first
    "next_wake": Moment,  # () -> the earliest wake_at of all, no row when there is none
    "outbox_pending": Outbox,  # () ; created_before, limit -> oldest first
    "get_run": Run,  # () ; id
    "get_spec": RunSpec,  # () ; run_id
    "runs_by_status": Run,  # () ; tenant, status, before_created_at, limit -> newest first
    "approvals_open": Approval,  # () ; tenant, limit -> oldest first
    "run_ids_after": RunId,  # () ; after_id, limit -> by id
    "steps_of": Step,  # () ; run_id    (these: all rows of one run, in key order)
    "attempts_of": Attempt,
    "checkpoints_of": Checkpoint,
    "waits_of": Wait,
    "approvals_of": Approval,
    "inbox_of": Inbox,
    "children_of": Child,
    "payloads_of": Payload,
    "verdicts_of": Verdict,
    "receipts_of": Receipt,
    "purses_of": Purse,
    "cost_lines_of": CostLine,
    "events_of": Event,
    "outbox_of": Outbox,
    "events_after": Event,  # () ; run_id, after_seq, limit
    "payload": Payload,  # () ; run_id, ref
    "resume_checkpoints": Recorded,  # () ; run_id, idx -> all of a step with their outputs, in order of `no`
    "resume_waits": Waited,  # () ; run_id, idx, first_no, last_no -> those of a step with their answers, in order of `no`
    "all_caps": Cap,  # ()
    "live_usage": Usage,  # () -> live leases of everybody, grouped by tenant and workflow
    "key_holders_twice": RunId,  # () -> runs that share a concurrency key while both are admitted and open
    "orphan_rows": RunId,  # () -> run ids that rows beneath a run name but no run has
    "lost_specs": RunId,  # () -> runs without a spec, or with a spec of another tenant
    "sizes": Size,  # () -> each table and its number of rows
}
"""Queries used on their own."""

QUERIES: dict[str, Answer] = {**IN_TRANSACTION, **READS}


class Query(msgspec.Struct, gc=False):
    """Ask a named query."""

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
    """The head that a run must have besides its version: a run that was deleted and made anew under its id may have come
    to the same version."""
    runs: list[Run] = []
    new_runs: list[Run] = []
    new_specs: list[RunSpec] = []
    rows: dict[str, list[Row]] = {}
    """By table: run_spec (changed ones), step, attempt, checkpoint, wait, approval, inbox, child, payload, event,
    outbox, stale, idempotency, remote_lease. Events, payloads, outbox, stale, idempotency and remote_lease rows
    are only ever inserted (stale: on conflict do nothing; idempotency: a key that is there refuses the save); the
    others are inserted or, by primary key, updated.
    attempt.expires_at and attempt.seq never go down."""
    light: set[int] = set()
    """Runs that have changed in their light columns only: the others are as they were at the version expected, so
    they need not be written."""
    delivered: list[tuple[int, int, int]] = []
    """Keys of outbox rows to delete; one whose target this save leaves out stays owed."""
    feed: list[tuple[int, list[Line]]] = []
    """(run id, what it tells): strung together as this commit's row of the feed, without those of runs left out. At
    most one save of a transaction has it."""
    delete_runs: list[int] = []
    """Finished runs to delete with everything beneath them, but for what they owe and for a spec with a key."""
    estimate_us: int | None = None
    """The time the decisions were made at, when it was an estimate: refused (nothing is written) when the
    store's clock differs from it by more than a second."""


class Aside(msgspec.Struct, frozen=True, gc=False):
    """What follows is long: from here on the transaction is carried out outside of the event loop's thread. The answer is
    None. It has no effect where there is no other thread, nor when it is asked for again."""


ASIDE = Aside()
ESTIMATE_OFF_US_MAX = 1_000_000
"""How far an estimate of the time may be off for a save to be written."""


class Saved(msgspec.Struct, gc=False):
    """What a save wrote, and when by the store's clock."""

    ids: set[int]
    now_us: int


T = TypeVar("T")
Request = Query | Save | Aside
Transaction = Generator[Request, Any, T]
"""A transaction as the store runs it: yields what it wants, is sent the answer, returns the result."""


class Ambiguous(Exception):
    """The connection was lost during COMMIT: whether it happened is not known yet."""


class Conflict(Exception):
    """Deadlock or serialization failure: nothing was written, the batch may be tried again."""


class Rejected(Exception):
    """The database refused the data: something in the batch is at fault, the rest is not."""


class Store(Protocol):
    """A database. Errors: TenureError STORE_* (nothing was written), Ambiguous, Conflict, Rejected."""

    name: str
    """sqlite or postgres."""
    lanes_max: int
    """How many transactions it runs at the same time with profit."""

    async def open(self) -> None:
        """Connect and check the schema's version (STORE_NOT_MIGRATED, STORE_TOO_NEW)."""
        ...

    async def close(self) -> None:
        """Let go of everything; under way transactions are finished first."""
        ...

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        """Run one transaction and commit it. `single` promises that the generator yields one Save and nothing
        else, so that one round trip suffices. `make` may be called again after a Conflict."""
        ...

    @property
    def at_once(self) -> bool:
        """Whether `save_now` is worth a try: a small commit takes no time to speak of, and others do not write just now."""
        ...

    def save_now(self, decide: Callable[[int], Save | None]) -> Saved | None:
        """A transaction of one save, committed when it returns. `decide` makes it when nobody else can write any more, of
        the store's time; None: nothing is done. Conflict, and nothing done, where somebody is in the way."""
        ...

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Ask one named query on its own."""
        ...

    async def put_caps(self, caps: list[Cap]) -> None:
        """Insert or replace caps."""
        ...

    # Beside the runs: see tenure.store.beside, which has these for every store.

    async def put_schedule(self, schedule: Schedule) -> Schedule | None:
        """Insert a schedule (revision 1) or change it (the next revision); None: not in the state it expects."""
        ...

    async def advance_schedule(self, schedule: Schedule, next_at: int | None, last_slot: int | None) -> bool:
        """Go on from the slot a schedule was read with, if nobody else did."""
        ...

    async def drop_schedule(self, tenant: str, name: str) -> bool:
        """Delete a schedule; whether there was one."""
        ...

    async def put_worker(
        self,
        name: str,
        queues: Sequence[str],
        slots: int,
        version: str,
        process: WorkerProcess | None = None,
    ) -> None:
        """Say that a worker is there, and in which process: when it starts, and every few seconds."""
        ...

    async def drop_worker_process(self, session: int) -> None:
        """Nothing has to be proven about a process any more."""
        ...

    async def drop_worker(self, name: str) -> None:
        """A worker stops in peace."""
        ...

    async def put_workflow(
        self,
        tenant: str,
        name: str,
        version: str,
        kind: str,
        definition: str,
        digest: str,
        *,
        registered_by: str = "",
        unconfirmed: str = "",
    ) -> RegisteredWorkflow:
        """Register a version of a workflow; WORKFLOW_CHANGED where it is registered as something else. The people in `unconfirmed`
        (`id id`) stand behind its runs until a second person confirms it."""
        ...

    async def put_log_lines(self, lines: Sequence[LogLine]) -> None:
        """Append lines to the logs of runs."""
        ...

    async def wait_for_work(self, timeout_s: float) -> bool:
        """Return early (True) when another process says that work became ready."""
        ...

    async def tell_work(self) -> None:
        """Tell other processes that work became ready; coalesced, after the commit, best effort."""
        ...

    def estimate_us(self) -> int | None:
        """The store's time without asking it, if it is known well enough (by the last commit and a clock that
        never goes back); a save made on an estimate says so and is checked against the real time."""
        ...

    def shift(self, offset_us: int) -> None:
        """Move this store's clock, for tests; PostgreSQL's too."""
        ...
