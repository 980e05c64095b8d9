"""Subscriptions to the feed, and their notices: what each subscriber is still to be told.

Laws:
1. The process that moves a subscription on from where it was read writes its notices, in that transaction: however many
   processes try, each notice is written once.
2. A notice is taken for a while. The process that took it reports the outcome under the number of the try, so that a late
   report changes nothing; when the process dies, another takes the notice.
"""

from __future__ import annotations

import msgspec

from tenure.kernel.run_rows import RunRow
from tenure.kernel.server_rows import NoticeRow, SubscriptionRow
from tenure.store.feed import FeedPosition
from tenure.store.identity import AdminChange, append_admin_event
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.transactions import run_transaction, write_row

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


class SubscriptionRepository:
    """The subscriptions of a database; see the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def now_us(self) -> int:
        now: int = (await self._store.read("now"))[0].now_us
        return now

    async def find(self, tenant: str, id_: str) -> SubscriptionRow | None:
        found: list[SubscriptionRow] = await self._store.read("subscription_named", tenant, id_)
        return found[0] if found else None

    async def list_page(self, tenant: str, before: tuple[int, str], limit: int) -> list[SubscriptionRow]:
        """A tenant's subscriptions, newest first, behind the last one seen (created, id)."""
        found: list[SubscriptionRow] = await self._store.read("subscriptions_of", tenant, *before, limit)
        return found

    async def list_active(self) -> list[SubscriptionRow]:
        """All subscriptions that are active."""
        found: list[SubscriptionRow] = await self._store.read("subscriptions_live")
        return found

    async def save(self, row: SubscriptionRow, change: AdminChange | None = None) -> SubscriptionRow | None:
        """Insert a subscription of revision 1, or change the one of the revision before. None: somebody else has changed it."""

        def work() -> Transaction[SubscriptionRow | None]:
            now = (yield Query("now"))[0].now_us
            written = yield Query("save_subscription", scalars=msgspec.structs.astuple(row))
            if written and change is not None:
                yield from append_admin_event(change, now)
            return written[0] if written else None

        return await run_transaction(self._store, work)

    async def delete(self, tenant: str, id_: str, change: AdminChange | None = None) -> bool:
        """Delete a subscription with its notices; False: there was none."""

        def work() -> Transaction[bool]:
            now = (yield Query("now"))[0].now_us
            gone = yield Query("delete_subscription", scalars=(tenant, id_))
            yield Query("delete_notices", scalars=(tenant, id_))
            if gone and change is not None:
                yield from append_admin_event(change, now)
            return bool(gone)

        return await run_transaction(self._store, work)

    async def advance(self, row: SubscriptionRow, pos: int, notices: list[NoticeRow]) -> bool:
        """Move a subscription on and write its notices; False: somebody else did."""

        def work() -> Transaction[bool]:
            moved = yield Query("advance_subscription", scalars=(row.tenant, row.id, row.pos, pos))
            if moved and notices:
                yield Query("save_notice", [msgspec.structs.astuple(notice) for notice in notices])
            return bool(moved)

        return await run_transaction(self._store, work)

    async def take_notices(self, limit: int, for_us: int) -> list[NoticeRow]:
        """Take notices that are due; nobody else takes them for `for_us`."""

        def work() -> Transaction[list[NoticeRow]]:
            now = (yield Query("now"))[0].now_us
            taken: list[NoticeRow] = yield Query("take_notices", scalars=(now, now + for_us, limit))
            return taken

        return await run_transaction(self._store, work)

    async def find_trace(self, notice: NoticeRow) -> str | None:
        """The trace context of the notice's run."""
        found: list[RunRow] = await self._store.read("get_run", notice.run_id)
        return found[0].trace if found else None

    async def delete_notice(self, notice: NoticeRow) -> None:
        """The notice was delivered."""
        await write_row(self._store, "done_notice", *_try_of(notice), timed=False)

    async def fail_notice(self, notice: NoticeRow, due_at: int | None, why: str) -> None:
        """The notice was not delivered. `due_at`: when to try again; None: never."""
        await write_row(self._store, "fail_notice", *_try_of(notice), due_at, why, timed=False)

    async def next_due_at(self) -> int | None:
        """When the next notice is due."""
        at: int | None = (await self._store.read("next_notice"))[0].at
        return at

    async def list_dead_notices(
        self, tenant: str, id_: str, before: tuple[int, int], limit: int
    ) -> list[NoticeRow]:
        """Notices that were given up, newest first, behind the last one seen (position, part)."""
        found: list[NoticeRow] = await self._store.read("dead_notices", tenant, id_, *before, limit)
        return found

    async def revive_notices(self, tenant: str, id_: str, which: str | None) -> int:
        """Try dead notices again, one (`pos-part`) or all; how many."""

        def work() -> Transaction[int]:
            now = (yield Query("now"))[0].now_us
            return len((yield Query("revive_notices", scalars=(tenant, id_, which, now))))

        return await run_transaction(self._store, work)

    async def delete_dead_notices(self, before_us: int, limit: int = DELETED_NOTICES_MAX) -> int:
        """Delete notices that have been dead for long; how many."""

        def work() -> Transaction[int]:
            return len((yield Query("delete_old_notices", scalars=(before_us, limit))))

        return await run_transaction(self._store, work)


def _try_of(notice: NoticeRow) -> tuple[str, str, int, int, int]:
    return (notice.tenant, notice.subscription, notice.pos, notice.part, notice.tries)
