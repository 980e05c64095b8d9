"""The feed, its subscribers and what they are still to be told, read and written.

Laws:
1. Rows of the feed are written by saves only (`Save.feed`), and by those only once somebody has opened it: an empty row says
   so, in the database, and from its position on nothing is missing. Here they are read in their order, and trimmed from the
   oldest on; the last one that was trimmed stays, empty, so that it is known up to where, and the feed stays open.
2. A reader is shown a position only when no lower one can appear any more.
3. Notices are made by whoever moves their subscription on from where it was read, in that transaction: however many
   processes try, each is made once.
4. A notice is taken for a while. Whoever took it says how it went under the number of the try, so that one who is late
   changes nothing; one who dies leaves it to be taken again.
"""

from __future__ import annotations

from secrets import token_bytes

import msgspec

from tenure.kernel.model import Run
from tenure.kernel.service import Feed, Notice, Subscription
from tenure.store.beside import settled
from tenure.store.feed_places import KEY_BYTES, FeedPlaces
from tenure.store.identity import Change, told
from tenure.store.port import Answer, Query, Store, Transaction


class Bounds(msgspec.Struct, gc=False):
    """What there is of the feed."""

    trimmed: int
    """Positions up to this one are gone; 0: none."""
    head: int
    """What commits from now on has a higher position."""


class Place(msgspec.Struct, gc=False):
    """A position, or a moment, if there is one."""

    at: int | None


class FeedKey(msgspec.Struct, gc=False):
    """What places in the feed are enciphered with."""

    key: bytes


READS: dict[str, Answer] = {
    "feed_key": FeedKey,  # () -> at most one
    "feed_bounds": Bounds,  # () -> exactly one
    "feed_after": Feed,  # () ; after_pos, limit -> in order, as far as law 2 allows
    "feed_rows_after": Feed,  # () ; after_pos, limit -> in order, all that is there: for the doctor
    "feed_old": Place,  # () ; before_at, limit -> exactly one
    "feed_excess": Place,  # () ; rows_max -> exactly one
    "subscriptions_of": Subscription,  # () ; tenant, before_created_at, before_id, limit -> newest first
    "subscription_named": Subscription,  # () ; tenant, id
    "subscriptions_live": Subscription,  # ()
    "next_notice": Place,  # () -> exactly one
    "dead_notices": Notice,  # () ; tenant, subscription, before_pos, before_part, limit -> newest first
}
"""Queries used on their own; `feeding.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "hold_saves": Feed,  # () -> none: from here to the commit nobody saves
    "open_feed": Feed,  # () ; at
    "make_feed_key": FeedKey,  # () ; key
    "drop_foreign_feed": Feed,
    "empty_feed": Feed,
    "trim_feed": Feed,
    "save_subscription": Subscription,
    "advance_subscription": Subscription,
    "delete_subscription": Subscription,
    "save_notice": Notice,
    "take_notices": Notice,
    "done_notice": Notice,
    "fail_notice": Notice,
    "revive_notices": Notice,
    "delete_notices": Notice,
    "delete_old_notices": Notice,
}
"""Statements of small transactions of their own."""

TRIM_ROWS = 2_000
"""Rows of the feed that one transaction trims."""


class Feeding:
    """See the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._places: FeedPlaces | None = None

    async def places(self) -> FeedPlaces:
        """How tenants see places in this database's feed; the key is made by whoever first needs it."""
        if self._places is None:
            if not (rows := await self._store.read("feed_key")):
                made = token_bytes(KEY_BYTES)

                def work() -> Transaction[None]:
                    yield Query("make_feed_key", scalars=(made,))

                await settled(self._store, work)
                rows = await self._store.read("feed_key")
            self._places = FeedPlaces(rows[0].key)
        return self._places

    async def now_us(self) -> int:
        """The store's time."""
        now: int = (await self._store.read("now"))[0].now_us
        return now

    # --------------------------------------------------------------------------------------------- the feed

    async def open(self) -> None:
        """From here on commits tell. Until somebody wants that (a server does, when it starts) they write nothing: it
        would be a page more in every one of them. No save is under way at that moment, so none is half told."""
        if await self._store.read("feed_rows_after", 0, 1):
            return

        def work() -> Transaction[None]:
            yield Query("hold_saves")
            now = (yield Query("now"))[0].now_us
            yield Query("open_feed", scalars=(now,))

        await settled(self._store, work)

    async def bounds(self) -> Bounds:
        """What there is."""
        found: Bounds = (await self._store.read("feed_bounds"))[0]
        return found

    async def after(self, pos: int, limit: int) -> list[Feed]:
        """The rows behind a position."""
        rows: list[Feed] = await self._store.read("feed_after", pos, limit)
        return rows

    async def trim(self, before_us: int) -> int:
        """Let go of what is older; how many rows went."""
        gone = 0
        while (place := (await self._store.read("feed_old", before_us, TRIM_ROWS))[0].at) is not None:
            went = await self._trim_to(place)
            gone += went
            if went < TRIM_ROWS // 2:
                break
        return gone

    async def drop_foreign(self) -> int:
        """Let go of what another server's transactions told; how many rows went."""

        def work() -> Transaction[int]:
            gone = len((yield Query("drop_foreign_feed")))
            if gone:  # it was open, and it stays open
                now = (yield Query("now"))[0].now_us
                yield Query("open_feed", scalars=(now,))
            return gone

        return await settled(self._store, work)

    async def trim_excess(self, rows_max: int) -> int:
        """Let go of all but the newest rows; how many went."""
        place = (await self._store.read("feed_excess", rows_max))[0].at
        if place is None or place <= 0:
            return 0
        gone = 0
        while (went := await self._trim_to(place)) > 1:
            gone += went
        return gone

    async def _trim_to(self, pos: int) -> int:
        def work() -> Transaction[int]:
            emptied = yield Query("empty_feed", scalars=(pos,))
            gone = yield Query("trim_feed", scalars=(pos, TRIM_ROWS))
            return len(emptied) + len(gone)

        return await settled(self._store, work)

    # ---------------------------------------------------------------------------------------- subscriptions

    async def subscription(self, tenant: str, id_: str) -> Subscription | None:
        """One of them."""
        found: list[Subscription] = await self._store.read("subscription_named", tenant, id_)
        return found[0] if found else None

    async def subscriptions(self, tenant: str, before: tuple[int, str], limit: int) -> list[Subscription]:
        """A tenant's, newest first, behind the last one seen (created, id)."""
        found: list[Subscription] = await self._store.read("subscriptions_of", tenant, *before, limit)
        return found

    async def live(self) -> list[Subscription]:
        """All that are told something."""
        found: list[Subscription] = await self._store.read("subscriptions_live")
        return found

    async def put(self, row: Subscription, change: Change | None = None) -> Subscription | None:
        """Insert one of revision 1, or change the one whose revision is the one before; None: somebody was quicker."""

        def work() -> Transaction[Subscription | None]:
            now = (yield Query("now"))[0].now_us
            written = yield Query("save_subscription", scalars=msgspec.structs.astuple(row))
            if written and change is not None:
                yield from told(change, now)
            return written[0] if written else None

        return await settled(self._store, work)

    async def drop(self, tenant: str, id_: str, change: Change | None = None) -> bool:
        """Delete one, with what it was still to be told; whether there was one."""

        def work() -> Transaction[bool]:
            now = (yield Query("now"))[0].now_us
            gone = yield Query("delete_subscription", scalars=(tenant, id_))
            yield Query("delete_notices", scalars=(tenant, id_))
            if gone and change is not None:
                yield from told(change, now)
            return bool(gone)

        return await settled(self._store, work)

    # --------------------------------------------------------------------------------------------- notices

    async def advance(self, row: Subscription, pos: int, notices: list[Notice]) -> bool:
        """Move a subscription on, with its notices; False: somebody else did."""

        def work() -> Transaction[bool]:
            moved = yield Query("advance_subscription", scalars=(row.tenant, row.id, row.pos, pos))
            if moved and notices:
                yield Query("save_notice", [msgspec.structs.astuple(notice) for notice in notices])
            return bool(moved)

        return await settled(self._store, work)

    async def take(self, limit: int, for_us: int) -> list[Notice]:
        """Notices to be told now; they are the caller's for so long."""

        def work() -> Transaction[list[Notice]]:
            now = (yield Query("now"))[0].now_us
            taken: list[Notice] = yield Query("take_notices", scalars=(now, now + for_us, limit))
            return taken

        return await settled(self._store, work)

    async def trace_of(self, notice: Notice) -> str | None:
        """The trace context that its run was asked for in."""
        found: list[Run] = await self._store.read("get_run", notice.run_id)
        return found[0].trace if found else None

    async def done(self, notice: Notice) -> None:
        """It was told."""
        key = (notice.tenant, notice.subscription, notice.pos, notice.part, notice.tries)

        def work() -> Transaction[None]:
            yield Query("done_notice", scalars=key)

        await settled(self._store, work)

    async def failed(self, notice: Notice, due_at: int | None, why: str) -> None:
        """It could not be told: when to try again, or None: never."""
        key = (notice.tenant, notice.subscription, notice.pos, notice.part, notice.tries)

        def work() -> Transaction[None]:
            yield Query("fail_notice", scalars=(*key, due_at, why))

        await settled(self._store, work)

    async def next_due(self) -> int | None:
        """When the next notice is to be told."""
        at: int | None = (await self._store.read("next_notice"))[0].at
        return at

    async def dead(self, tenant: str, id_: str, before: tuple[int, int], limit: int) -> list[Notice]:
        """Notices that were given up, newest first, behind the last one seen (position, part)."""
        found: list[Notice] = await self._store.read("dead_notices", tenant, id_, *before, limit)
        return found

    async def revive(self, tenant: str, id_: str, which: str | None) -> int:
        """Try dead ones again, one (`pos-part`) or all of them; how many."""

        def work() -> Transaction[int]:
            now = (yield Query("now"))[0].now_us
            return len((yield Query("revive_notices", scalars=(tenant, id_, which, now))))

        return await settled(self._store, work)

    async def forget_dead(self, before_us: int, limit: int = TRIM_ROWS) -> int:
        """Let go of notices that have been dead for long; how many."""

        def work() -> Transaction[int]:
            return len((yield Query("delete_old_notices", scalars=(before_us, limit))))

        return await settled(self._store, work)
