"""The feed is kept for a day, and not without bound: whoever sweeps trims it.

Law: what is trimmed is gone from the oldest on, and it is known up to where. It may be done everywhere at once.
"""

from __future__ import annotations

from tenure.clock import us
from tenure.limits import FEED_ROWS_MAX, FEED_SECONDS, NOTICE_DEAD_SECONDS
from tenure.orchestrator.rounds import Rounds
from tenure.store.feeding import TRIM_ROWS, Feeding
from tenure.store.port import Store

TRIM_SECONDS = 60.0
EXCESS_EVERY = 10
"""Rounds between two counts of the rows."""


class Trimmer(Rounds):
    """See the law above. An async context manager."""

    def __init__(self, store: Store, *, seconds: float = TRIM_SECONDS) -> None:
        super().__init__("feed-trimmer", self.once, seconds, TRIM_ROWS)
        self._feeding = Feeding(store)
        self._rounds = 0

    async def once(self) -> int:
        """Trim what is too old or too much; how many rows went."""
        now = await self._feeding.now_us()
        if self._rounds == 0:
            await self._feeding.drop_foreign()
        gone = await self._feeding.trim(now - us(FEED_SECONDS))
        self._rounds += 1
        if self._rounds % EXCESS_EVERY == 0:
            gone += await self._feeding.trim_excess(FEED_ROWS_MAX)
            gone += await self._feeding.forget_dead(now - us(NOTICE_DEAD_SECONDS))
        return gone
