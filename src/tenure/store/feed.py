"""The feed: what commits report to subscribers, in order.

Laws:
1. Only saves write rows of the feed (`Save.feed`), and only after it was opened: an empty row in the database marks that it
   is open, and nothing is missing after its position. Rows are read in order, and the oldest are deleted first. The last
   deleted row stays as an empty row, so that readers know which rows were deleted, and the feed stays open.
2. A reader sees a position only when no lower one can appear any more.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b
from secrets import token_bytes

import msgspec

from tenure.kernel.server_rows import FeedRow
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.transactions import Repository, read_rows, run_transaction, write_rows


class FeedBounds(msgspec.Struct, gc=False):
    trimmed: int
    """Rows up to this position have been deleted; 0: none."""
    head: int
    """Commits from now on have higher positions."""

    def has_all_after(self, pos: int) -> bool:
        """Whether a reader at `pos` can read on without missing a row. False: STREAM_RESET."""
        return self.trimmed <= pos <= self.head


class FeedPosition(msgspec.Struct, gc=False):
    """A position in the feed, or a time; None: there is none."""

    at: int | None


class FeedKey(msgspec.Struct, gc=False):
    """The key that cursors are encrypted with."""

    key: bytes


READS: dict[str, RowType] = {
    "feed_key": FeedKey,  # () -> at most one
    "feed_bounds": FeedBounds,  # () -> exactly one
    "feed_after": FeedRow,  # () ; after_pos, limit -> in order, as far as law 2 allows
    "feed_rows_after": FeedRow,  # () ; after_pos, limit -> in order, all rows: for the doctor
    "feed_old": FeedPosition,  # () ; before_at, limit -> exactly one
    "feed_excess": FeedPosition,  # () ; rows_max -> exactly one
}

WRITES: dict[str, RowType] = {
    "hold_saves": FeedRow,  # () -> none: from here to the commit nobody saves
    "open_feed": FeedRow,  # () ; at
    "make_feed_key": FeedKey,  # () ; key
    "drop_foreign_feed": FeedRow,
    "empty_feed": FeedRow,
    "trim_feed": FeedRow,
}

TRIM_ROWS = 2_000
"""Rows of the feed that one transaction trims."""


class FeedRepository(Repository):
    """The feed of a database; see the laws above."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._cursors: FeedCursors | None = None

    async def cursors(self) -> FeedCursors:
        """The cursors of this database's feed; the first caller makes their key."""
        if self._cursors is None:
            if not (rows := await self._store.read("feed_key")):
                await write_rows(self._store, "make_feed_key", token_bytes(KEY_BYTES))
                rows = await self._store.read("feed_key")
            self._cursors = FeedCursors(rows[0].key)
        return self._cursors

    async def open(self) -> None:
        """Make commits write to the feed from now on. Before the first server starts they do not: that would cost a page in
        each commit. No save is under way at this moment, so no commit is in the feed in part."""
        if await self._store.read("feed_rows_after", 0, 1):
            return

        def work() -> Transaction[None]:
            yield Query("hold_saves")
            yield Query("open_feed", scalars=((yield Query("now"))[0].now_us,))

        await run_transaction(self._store, work)

    async def bounds(self) -> FeedBounds:
        return (await read_rows(self._store, FeedBounds, "feed_bounds"))[0]

    async def after(self, pos: int, limit: int) -> list[FeedRow]:
        return await self._store.read("feed_after", pos, limit)

    async def trim(self, before_us: int) -> int:
        """Delete older rows; how many."""
        gone = 0
        while (place := (await self._store.read("feed_old", before_us, TRIM_ROWS))[0].at) is not None:
            deleted = await self._trim_to(place)
            gone += deleted
            if deleted < TRIM_ROWS // 2:
                break
        return gone

    async def delete_foreign_rows(self) -> int:
        """Delete the rows that another server's transactions wrote; how many."""

        def work() -> Transaction[int]:
            gone = len((yield Query("drop_foreign_feed")))
            if gone:  # the feed was open, and stays open
                yield Query("open_feed", scalars=((yield Query("now"))[0].now_us,))
            return gone

        return await run_transaction(self._store, work)

    async def trim_excess(self, rows_max: int) -> int:
        """Delete all but the newest rows; how many."""
        place = (await self._store.read("feed_excess", rows_max))[0].at
        if place is None or place <= 0:
            return 0
        gone = 0
        while (deleted := await self._trim_to(place)) > 1:
            gone += deleted
        return gone

    async def _trim_to(self, pos: int) -> int:
        def work() -> Transaction[int]:
            emptied = yield Query("empty_feed", scalars=(pos,))
            return len(emptied) + len((yield Query("trim_feed", scalars=(pos, TRIM_ROWS))))

        return await run_transaction(self._store, work)


# -------------------------------------------------------------------------------------------- cursors

KEY_BYTES = 32
CURSOR_PATTERN = r"[A-Za-z0-9_-]{22}"
_TEXT = re.compile(CURSOR_PATTERN)
_ROUNDS = (b"0", b"1", b"2", b"3")


class FeedCursors:
    """Positions in the feed as tenants see them: ids of events in a stream, and of notices that could not be delivered.

    The feed is shared by all tenants, so a plain position would tell a tenant how much others do. A cursor is encrypted
    under a key of the database and the tenant; every server of the database can decode it. A text that is not one of the
    tenant's cursors decodes to a position that does not exist, so a caller cannot tell the difference. With a random
    `chance`, two cursors of one position differ, so that equal cursors do not show that nothing has happened.

    The cipher is a Feistel network of four rounds over 128 bits with keyed BLAKE2b, a pseudorandom permutation (Luby and
    Rackoff).
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._key_of = lru_cache(maxsize=1024)(self._tenant_key)

    def _tenant_key(self, tenant: str) -> bytes:
        return blake2b(tenant.encode(), key=self._key, digest_size=KEY_BYTES).digest()

    def encode(self, tenant: str, pos: int, part: int, chance: int = 0) -> str:
        """A position and a part as the tenant sees them; `chance` is 32 random bits."""
        key = self._key_of(tenant)
        left, right = pos, part << 32 | chance
        for number in _ROUNDS:
            left, right = right, left ^ _mix(key, number, right)
        return urlsafe_b64encode(left.to_bytes(8, "big") + right.to_bytes(8, "big"))[:22].decode()

    def decode(self, tenant: str, text: str) -> tuple[int, int] | None:
        """The position and the part of a cursor; None: the text does not have the form of one."""
        if _TEXT.fullmatch(text) is None:
            return None
        body = urlsafe_b64decode(text + "==")
        key = self._key_of(tenant)
        left, right = int.from_bytes(body[:8], "big"), int.from_bytes(body[8:], "big")
        for number in reversed(_ROUNDS):
            left, right = right ^ _mix(key, number, left), left
        return left, right >> 32


def _mix(key: bytes, number: bytes, half: int) -> int:
    return int.from_bytes(
        blake2b(half.to_bytes(8, "big"), key=key, digest_size=8, person=number).digest(), "big"
    )
