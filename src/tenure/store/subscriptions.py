"""Subscriptions to the feed, and their notices: what is still to be sent to each subscriber.

Laws:
1. The transaction that advances a subscription from the position at which it was read writes its notices: however many
   processes try, each notice is written once.
2. A process takes a notice for a while. It reports the outcome under the number of the try, so that a late
   report changes nothing; when the process dies, another takes the notice.
"""

from __future__ import annotations

from msgspec.structs import astuple

from tenure.kernel.run_rows import RunRow
from tenure.kernel.server_rows import NoticeRow, SubscriptionRow
from tenure.store.feed import FeedPosition
from tenure.store.identity import AdminChange, append_admin_event
from tenure.store.port import Query, RowType, StoreTime, Transaction
from tenure.store.transactions import (
    Repository,
    read_first,
    read_rows,
    run_transaction,
    timed_transaction,
    write_rows,
)

READS: dict[str, RowType] = {
    "subscriptions_of": SubscriptionRow,  # () ; tenant, before_created_at, before_id, limit -> newest first
    "subscription_named": SubscriptionRow,  # () ; tenant, id
    "subscriptions_live": SubscriptionRow,  # ()
    "next_notice": FeedPosition,  # () -> exactly one
    "dead_notices": NoticeRow,  # () ; tenant, subscription, before_pos, before_part, limit -> newest first
}
WRITES: dict[str, RowType] = {
    "save_subscription": SubscriptionRow,
    "advance_subscription": SubscriptionRow,
    "delete_subscription": SubscriptionRow,
    "save_notice": NoticeRow,
    "take_notices": NoticeRow,
    "done_notice": NoticeRow,
    "fail_notice": NoticeRow,
    "revive_notices": NoticeRow,
    "delete_notices": NoticeRow,
    "delete_old_notices": NoticeRow,
}

DELETED_NOTICES_MAX = 2_000
"""Notices that one transaction deletes."""


class SubscriptionRepository(Repository):
    """The subscriptions of a database; see the laws above."""

    async def now_us(self) -> int:
        return (await read_rows(self._store, StoreTime, "now"))[0].now_us

    async def find(self, tenant: str, id_: str) -> SubscriptionRow | None:
        return await read_first(self._store, SubscriptionRow, "subscription_named", tenant, id_)

    async def list_page(self, tenant: str, before: tuple[int, str], limit: int) -> list[SubscriptionRow]:
        """A tenant's subscriptions, newest first, behind the last one seen (created, id)."""
        return await self._store.read("subscriptions_of", tenant, *before, limit)

    async def list_active(self) -> list[SubscriptionRow]:
        return await self._store.read("subscriptions_live")

    @timed_transaction
    def save(
        self, now: int, row: SubscriptionRow, change: AdminChange | None = None
    ) -> Transaction[SubscriptionRow | None]:
        """Insert a subscription of revision 1, or change the one of the revision before. None: another process has changed it."""
        written = yield Query("save_subscription", scalars=astuple(row))
        if written and change is not None:
            yield from append_admin_event(change, now)
        return written[0] if written else None

    @timed_transaction
    def delete(self, now: int, tenant: str, id_: str, change: AdminChange | None = None) -> Transaction[bool]:
        """Delete a subscription with its notices; False: it did not exist."""
        gone = yield Query("delete_subscription", scalars=(tenant, id_))
        yield Query("delete_notices", scalars=(tenant, id_))
        if gone and change is not None:
            yield from append_admin_event(change, now)
        return bool(gone)

    async def advance(self, row: SubscriptionRow, pos: int, notices: list[NoticeRow]) -> bool:
        """Advance a subscription and write its notices; False: another process did."""

        def work() -> Transaction[bool]:
            moved = yield Query("advance_subscription", scalars=(row.tenant, row.id, row.pos, pos))
            if moved and notices:
                yield Query("save_notice", [astuple(notice) for notice in notices])
            return bool(moved)

        return await run_transaction(self._store, work)

    @timed_transaction
    def take_notices(self, now: int, limit: int, for_us: int) -> Transaction[list[NoticeRow]]:
        """Take notices that are due; no other process takes them for `for_us`."""
        taken: list[NoticeRow] = yield Query("take_notices", scalars=(now, now + for_us, limit))
        return taken

    async def find_trace(self, notice: NoticeRow) -> str | None:
        """The trace context of the notice's run."""
        run = await read_first(self._store, RunRow, "get_run", notice.run_id)
        return run.trace if run else None

    async def delete_notice(self, notice: NoticeRow) -> None:
        await write_rows(self._store, "done_notice", *_try_of(notice))

    async def fail_notice(self, notice: NoticeRow, due_at: int | None, why: str) -> None:
        """Record that a notice was not delivered. `due_at`: when to try again; None: never."""
        await write_rows(self._store, "fail_notice", *_try_of(notice), due_at, why)

    async def next_due_at(self) -> int | None:
        return (await read_rows(self._store, FeedPosition, "next_notice"))[0].at

    async def list_dead_notices(
        self, tenant: str, id_: str, before: tuple[int, int], limit: int
    ) -> list[NoticeRow]:
        """Notices that were given up, newest first, behind the last one seen (position, part)."""
        return await self._store.read("dead_notices", tenant, id_, *before, limit)

    async def revive_notices(self, tenant: str, id_: str, which: str | None) -> int:
        """Try dead notices again, one (`pos-part`) or all; how many."""
        return len(await write_rows(self._store, "revive_notices", tenant, id_, which, timed=True))

    async def delete_dead_notices(self, before_us: int) -> int:
        """Delete notices that have been dead for long; how many."""
        return len(await write_rows(self._store, "delete_old_notices", before_us, DELETED_NOTICES_MAX))


def _try_of(notice: NoticeRow) -> tuple[str, str, int, int, int]:
    return (notice.tenant, notice.subscription, notice.pos, notice.part, notice.tries)
