"""The records of idempotency keys, read and written: who may go on with a request, and what it was answered.

Laws:
1. A record is taken by one statement and compare-and-set: of any number of processes one goes on with a key.
2. A record that is being processed is locked for a while; whoever finds the lock expired takes it over. A lock whose holder is a
   server that nobody has heard of for WORKER_SILENT_SECONDS counts as expired. Only whoever holds the lock writes what became of it.
3. A record past its time is as good as none; a bounded number of them is deleted at a time.
4. What makes a run may have its record in the commit that makes it (`Save.rows`); then it is never seen in process.
5. A change of a record's status is an edge of `IDEMPOTENCY`, taken here. One that is dropped or expired is deleted: no row
   has those states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from tenure.clock import us
from tenure.kernel.beside import SeenWorker
from tenure.kernel.machines import IDEMPOTENCY
from tenure.kernel.model import Idempotency
from tenure.limits import (
    IDEMPOTENCY_DONE_SECONDS,
    IDEMPOTENCY_FAILED_SECONDS,
    IDEMPOTENCY_LOCK_SECONDS,
    IDEMPOTENCY_TRIES_MAX,
    WORKER_SILENT_SECONDS,
)
from tenure.store.beside import settled
from tenure.store.port import Answer, Query, Store, Transaction


class Amiss(msgspec.Struct, gc=False):
    """A record that is not of the request that made the run with its key."""

    run_id: int
    name: str
    other_request: int
    other_answer: int


READS: dict[str, Answer] = {
    "key_record": Idempotency,  # () ; tenant, source, name
    "key_records": Idempotency,  # (tenant, source, name)
    "records_amiss": Amiss,  # () -> over all of them, for the doctor
}
"""Queries used on their own; `keys.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "begin_key": Idempotency,  # a whole row; nothing where there is one
    "put_key": Idempotency,  # key, what it was found as (status, updated_at, attempts), then the rest of the new row
    "drop_key": Idempotency,  # key, the lock it is held by
    "drop_past_keys": Idempotency,  # (tenant, source, name) ; now -> those past their time
    "delete_expired_keys": Idempotency,  # status, now, limit
}
"""Statements of small transactions of their own."""

STATUSES = tuple(state for state in IDEMPOTENCY.states if state not in IDEMPOTENCY.terminal)
SWEEP_RECORDS_MAX = 500


End = Literal["complete", "fail"]
"""How a request ended, as `IDEMPOTENCY` says it."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request under a key."""

    tenant: str
    source: str
    """Whose keys they are: api, github_webhook, slack, scheduler."""
    name: str
    """The key's whole text, as the record and the run it makes have it."""
    hash: bytes
    """Of what was asked."""
    run_id: int | None = None
    """The run it is about, where that is known beforehand."""
    done_seconds: float = IDEMPOTENCY_DONE_SECONDS
    """How long its answer is kept."""

    @property
    def key(self) -> tuple[str, str, str]:
        """By which its record is found."""
        return self.tenant, self.source, self.name


class Held(msgspec.Struct, frozen=True):
    """A record that is ours to go on with."""

    record: Idempotency

    @property
    def first(self) -> bool:
        """Whether nobody has tried before: what is then found done was done before the record's time had passed."""
        return self.record.attempts == 1


class Keys:
    """See the laws above."""

    def __init__(self, store: Store, holder: str | None = None) -> None:
        """`holder`: the server that takes keys here, which says that it is there with `put_worker`."""
        self._store = store
        self._holder = holder

    async def find(self, tenant: str, source: str, name: str) -> Idempotency | None:
        """The record of a key, also one past its time."""
        found: list[Idempotency] = await self._store.read("key_record", tenant, source, name)
        return found[0] if found else None

    async def begin(self, request: Request) -> Held | Idempotency:
        """Take a key, or the record of whoever has it."""
        while True:  # ends: it is somebody's, or free to be taken
            taken = await settled(self._store, lambda: begun(request, self._holder))
            if taken is not None:
                return taken

    async def complete(self, held: Held, request: Request, response: bytes, run_id: int | None) -> None:
        """It was answered."""
        await self._finish(held, "complete", response, None, run_id, request.done_seconds)

    async def fail(self, held: Held, response: bytes, error: str) -> None:
        """It failed by no fault of its own, and may be tried again."""
        run_id = held.record.run_id
        await self._finish(held, "fail", response, error, run_id, IDEMPOTENCY_FAILED_SECONDS)

    async def drop(self, held: Held) -> None:
        """It was refused: the key is as unused as before."""

        def work() -> Transaction[None]:
            yield dropped(held)

        await settled(self._store, work)

    async def sweep(self, limit: int = SWEEP_RECORDS_MAX) -> int:
        """Delete some of the records past their time; how many those were."""

        def work() -> Transaction[int]:
            now = (yield Query("now"))[0].now_us
            deleted = 0
            for status in STATUSES:
                gone = yield Query("delete_expired_keys", scalars=(status, now, limit))
                expired(gone)
                deleted += len(gone)
            return deleted

        return await settled(self._store, work)

    async def _finish(
        self, held: Held, how: End, response: bytes, error: str | None, run_id: int | None, kept: float
    ) -> None:
        def work() -> Transaction[None]:
            now = (yield Query("now"))[0].now_us
            yield finished(held, how, response, error, run_id, now, kept)

        await settled(self._store, work)


def put(found: Idempotency, new: Idempotency) -> Query:
    """Change a record, if it is still as it was found."""
    key, was = (found.tenant, found.source, found.name), (found.status, found.updated_at, found.attempts)
    return Query("put_key", scalars=(*key, *was, *msgspec.structs.astuple(new)[len(key) :]))


def finished(
    held: Held,
    how: End,
    response: bytes | None,
    error: str | None,
    run_id: int | None,
    now: int,
    kept: float,
) -> Query:
    """Write what became of a request, if its record is still ours."""
    status = IDEMPOTENCY.take(held.record.status, how).next
    new = msgspec.structs.replace(
        held.record,
        status=status,
        response=response,
        error=error,
        run_id=run_id,
        updated_at=now,
        expires_at=now + us(kept),
        lock_expires_at=None,
        holder=None,
    )
    return put(held.record, new)


def begun(request: Request, holder: str | None = None) -> Transaction[Held | Idempotency | None]:
    """None: somebody was quicker, look again."""
    now = (yield Query("now"))[0].now_us
    expires, lock = now + us(request.done_seconds), now + us(IDEMPOTENCY_LOCK_SECONDS)
    new = Idempotency(
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
        return Held(made[0])
    found = yield Query("key_record", scalars=request.key)
    if not found:
        return None
    record: Idempotency = found[0]
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
        expired([record])
    else:
        edge = IDEMPOTENCY.take(record.status, "retry" if record.status == "failed" else "take_over")
        new = msgspec.structs.replace(
            new, status=edge.next, created_at=record.created_at, attempts=record.attempts + 1
        )
    taken = yield put(record, new)
    return Held(taken[0]) if taken else None


def dropped(held: Held) -> Query:
    """Forget a request, if its record is still ours."""
    row = held.record
    IDEMPOTENCY.take(row.status, "drop")
    return Query("drop_key", scalars=(row.tenant, row.source, row.name, row.lock_expires_at))


def expired(records: Iterable[Idempotency]) -> None:
    """Records were found past their time, and are no more."""
    for record in records:
        IDEMPOTENCY.take(record.status, "expire")


def silent_since(now: int) -> int:
    """A server that was last heard of at this moment, or before, counts as dead."""
    return now - us(WORKER_SILENT_SECONDS)


def _is_silent(holder: str | None, now: int) -> Transaction[bool]:
    """Whether a lock's holder is a server that is not there any more (law 2)."""
    if holder is None:
        return False
    seen: list[SeenWorker] = yield Query("worker_named", scalars=(holder,))
    return not seen or seen[0].seen_at <= silent_since(now)


def _may_take(record: Idempotency, request: Request, now: int) -> bool:
    if record.request_hash != request.hash:
        return False
    if record.status == "processing":
        return record.lock_expires_at is not None and record.lock_expires_at <= now
    return record.status == "failed" and record.attempts < IDEMPOTENCY_TRIES_MAX
