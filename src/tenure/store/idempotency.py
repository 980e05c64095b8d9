"""Records of idempotency keys: who may process a request, and how it was answered.

Laws:
1. A record is taken by one statement with compare-and-set: of any number of processes one processes a key.
2. A record in process is locked for a while; another process may take it over when the lock has expired. The lock of a server
   that has been silent for WORKER_SILENT_SECONDS counts as expired. Only the holder of the lock writes the outcome.
3. An expired record counts as absent. Each sweep deletes a bounded number of expired records.
4. A request that creates a run may write its record in the same commit (`Save.rows`); such a record is never in process.
5. A change of a record's status is an edge of `IDEMPOTENCY`, taken here. A dropped or expired record is deleted: no row
   has those states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from tenure.clock import us
from tenure.kernel.machines import IDEMPOTENCY
from tenure.kernel.registry_rows import WorkerRow
from tenure.kernel.run_rows import IdempotencyRow
from tenure.limits import (
    IDEMPOTENCY_DONE_SECONDS,
    IDEMPOTENCY_FAILED_SECONDS,
    IDEMPOTENCY_LOCK_SECONDS,
    IDEMPOTENCY_TRIES_MAX,
    WORKER_SILENT_SECONDS,
)
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.transactions import (
    Repository,
    read_first,
    run_transaction,
    timed_transaction,
    write_rows,
)


class MismatchedRecord(msgspec.Struct, gc=False):
    """A record that does not belong to the request that created the run with its key."""

    run_id: int
    name: str
    other_request: int
    other_answer: int


READS: dict[str, RowType] = {
    "key_record": IdempotencyRow,  # () ; tenant, source, name
    "key_records": IdempotencyRow,  # (tenant, source, name)
    "records_amiss": MismatchedRecord,  # () -> over all of them, for the doctor
}

WRITES: dict[str, RowType] = {
    "begin_key": IdempotencyRow,  # a whole row; nothing if the key exists
    "put_key": IdempotencyRow,  # key, what it was found as (status, updated_at, attempts), then the rest of the new row
    "drop_key": IdempotencyRow,  # key, the lock it is held by
    "drop_past_keys": IdempotencyRow,  # (tenant, source, name) ; now -> those past their time
    "delete_expired_keys": IdempotencyRow,  # status, now, limit
}

EXPIRING_STATUSES = tuple(state for state in IDEMPOTENCY.states if state not in IDEMPOTENCY.terminal)
SWEEP_RECORDS_MAX = 500


def encode_response(status: int, body: bytes, location: str | None = None) -> bytes:
    """A response as a record stores it: a line with status and Location, then the body."""
    head = str(status) if location is None else f"{status} {location}"
    return head.encode() + b"\n" + body


def decode_response(stored: bytes) -> tuple[int, str | None, bytes]:
    """Status, Location and body of a stored response."""
    head, _, body = stored.partition(b"\n")
    status, _, location = head.decode().partition(" ")
    return int(status), location or None, body


RequestEnd = Literal["complete", "fail"]
"""How a request ended: an event of `IDEMPOTENCY`."""


class KeyedRequest(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    source: str
    """The namespace of the key: api, github_webhook, slack, scheduler."""
    name: str
    """The whole key, as its record and its run store it."""
    hash: bytes
    run_id: int | None = None
    """The run that the request is about, if it is known beforehand."""
    done_seconds: float = IDEMPOTENCY_DONE_SECONDS
    """How long the answer is stored."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.tenant, self.source, self.name


class HeldRecord(msgspec.Struct, frozen=True):
    """A record whose lock the caller holds."""

    record: IdempotencyRow

    @property
    def first(self) -> bool:
        """Whether this is the first try: work that is found done was then done under an earlier, expired record."""
        return self.record.attempts == 1


class IdempotencyRecords(Repository):
    """The idempotency records of a store; see the laws above."""

    def __init__(self, store: Store, holder: str | None = None) -> None:
        """`holder`: the server that takes keys here; it is registered with `workers.register_worker`."""
        super().__init__(store)
        self._holder = holder

    async def find(self, tenant: str, source: str, name: str) -> IdempotencyRow | None:
        """The record of a key, also an expired one."""
        return await read_first(self._store, IdempotencyRow, "key_record", tenant, source, name)

    async def begin(self, request: KeyedRequest) -> HeldRecord | IdempotencyRow:
        """Take a key; if another process has it, return that record."""
        while True:  # ends: the key is either taken or free
            taken = await run_transaction(self._store, lambda: begin_record(request, self._holder))
            if taken is not None:
                return taken

    async def complete(
        self, held: HeldRecord, request: KeyedRequest, response: bytes, run_id: int | None
    ) -> None:
        """Record the response to a request."""
        await self._finish(held, "complete", response, None, run_id, request.done_seconds)

    async def fail(self, held: HeldRecord, response: bytes, error: str) -> None:
        """Record that the request failed for a temporary reason and may be tried again."""
        await self._finish(held, "fail", response, error, held.record.run_id, IDEMPOTENCY_FAILED_SECONDS)

    async def drop(self, held: HeldRecord) -> None:
        """Free the key of a request that was refused."""
        row = held.record
        IDEMPOTENCY.take(row.status, "drop")
        await write_rows(self._store, "drop_key", row.tenant, row.source, row.name, row.lock_expires_at)

    @timed_transaction
    def sweep(self, now: int, limit: int = SWEEP_RECORDS_MAX) -> Transaction[int]:
        """Delete some expired records; how many."""
        deleted = 0
        for status in EXPIRING_STATUSES:
            gone = yield Query("delete_expired_keys", scalars=(status, now, limit))
            expire_records(gone)
            deleted += len(gone)
        return deleted

    @timed_transaction
    def _finish(
        self,
        now: int,
        held: HeldRecord,
        how: RequestEnd,
        response: bytes,
        error: str | None,
        run_id: int | None,
        kept: float,
    ) -> Transaction[None]:
        yield finish_record(held, how, response, error, run_id, now, kept)


def replace_record(found: IdempotencyRow, new: IdempotencyRow) -> Query:
    """Change a record, unless it has changed since it was read."""
    key, was = (found.tenant, found.source, found.name), (found.status, found.updated_at, found.attempts)
    return Query("put_key", scalars=(*key, *was, *msgspec.structs.astuple(new)[len(key) :]))


def finish_record(
    held: HeldRecord,
    how: RequestEnd,
    response: bytes | None,
    error: str | None,
    run_id: int | None,
    now: int,
    kept: float,
) -> Query:
    """Write the outcome of a request, if the caller still holds its record."""
    return replace_record(
        held.record,
        msgspec.structs.replace(
            held.record,
            status=IDEMPOTENCY.take(held.record.status, how).next,
            response=response,
            error=error,
            run_id=run_id,
            updated_at=now,
            expires_at=now + us(kept),
            lock_expires_at=None,
            holder=None,
        ),
    )


def begin_record(
    request: KeyedRequest, holder: str | None = None
) -> Transaction[HeldRecord | IdempotencyRow | None]:
    """Take a key, or return the record of its holder. None: another process was faster; try again."""
    now = (yield Query("now"))[0].now_us
    expires, lock = now + us(request.done_seconds), now + us(IDEMPOTENCY_LOCK_SECONDS)
    new = IdempotencyRow(
        *request.key,
        request.run_id,
        IDEMPOTENCY.first,
        request.hash,
        None,
        None,
        now,
        now,
        expires,
        lock,
        holder=holder,
    )
    made = yield Query("begin_key", scalars=msgspec.structs.astuple(new))
    if made:
        return HeldRecord(made[0])
    found = yield Query("key_record", scalars=request.key)
    if not found:
        return None
    record: IdempotencyRow = found[0]
    past = record.expires_at <= now
    if not past and not _may_take(record, request, now):
        others = record.status == "processing" and record.holder != holder
        if (
            not others
            or record.request_hash != request.hash
            or not (yield from _is_silent(record.holder, now))
        ):
            return record
    if past:
        expire_records([record])
    else:
        edge = IDEMPOTENCY.take(record.status, "retry" if record.status == "failed" else "take_over")
        new = msgspec.structs.replace(
            new, status=edge.next, created_at=record.created_at, attempts=record.attempts + 1
        )
    taken = yield replace_record(record, new)
    return HeldRecord(taken[0]) if taken else None


def expire_records(records: Iterable[IdempotencyRow]) -> None:
    """Check that these records, which are deleted, may expire."""
    for record in records:
        IDEMPOTENCY.take(record.status, "expire")


def server_silent_since(now: int) -> int:
    """A server last seen at or before this time counts as dead."""
    return now - us(WORKER_SILENT_SECONDS)


def _is_silent(holder: str | None, now: int) -> Transaction[bool]:
    """Whether the holder of a lock is a dead server (law 2)."""
    if holder is None:
        return False
    seen: list[WorkerRow] = yield Query("worker_named", scalars=(holder,))
    return not seen or seen[0].seen_at <= server_silent_since(now)


def _may_take(record: IdempotencyRow, request: KeyedRequest, now: int) -> bool:
    if record.request_hash != request.hash:
        return False
    if record.status == "processing":
        return record.lock_expires_at is not None and record.lock_expires_at <= now
    return record.status == "failed" and record.attempts < IDEMPOTENCY_TRIES_MAX
