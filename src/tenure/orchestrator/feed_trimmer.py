"""The feed trimmer: keeps the feed for a day, and within a limit.

Law: the oldest rows are deleted first, and the feed records how far. Any number of processes may trim at once.
"""

from __future__ import annotations

from tenure.clock import us
from tenure.limits import FEED_ROWS_MAX, FEED_SECONDS, NOTICE_DEAD_SECONDS
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.store.feed import TRIM_ROWS, FeedRepository
from tenure.store.port import Store
from tenure.store.subscriptions import SubscriptionRepository

TRIM_SECONDS = 60.0
EXCESS_EVERY = 10
"""The rows are counted once in this many rounds."""


class FeedTrimmer(PeriodicTask):
    def __init__(self, store: Store, *, seconds: float = TRIM_SECONDS) -> None:
        super().__init__("feed-trimmer", self.once, seconds, TRIM_ROWS)
        self._store = store
        self._feed = FeedRepository(store)
        self._subscriptions = SubscriptionRepository(store)
        self._rounds = 0

    async def once(self) -> int:
        """Delete rows that are too old or too many; how many."""
        now = (await self._store.read("now"))[0].now_us
        if self._rounds == 0:
            await self._feed.delete_foreign_rows()
        gone = await self._feed.trim(now - us(FEED_SECONDS))
        self._rounds += 1
        if self._rounds % EXCESS_EVERY == 0:
            gone += await self._feed.trim_excess(FEED_ROWS_MAX)
            gone += await self._subscriptions.delete_dead_notices(now - us(NOTICE_DEAD_SECONDS))
        return gone
