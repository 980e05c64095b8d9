"""Answers, given one after the other in the order in which they first came: live and in every replay.

Laws:
1. Of all answers that strands of a body wait for, the earliest is given first; the strand that got it runs as far as it
   can before the next one is given. So what was won the first time is won in every replay, and nobody sees two at once.
2. Nobody waits for an answer that is not asked for: the order is among those that are.
3. The loop is watched for some rounds, because one cannot see whether somebody is still on the way to its call.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count

ROUNDS = 5
"""Rounds of the loop without a new call after which whoever is on the way has arrived: through a task, a gather and a
shield it takes that many."""

Place = tuple[int, int]
"""The moment at which an answer was recorded, and its number."""
NEW: Place = (1 << 62, 0)
"""Of an answer that has just come: after all that were recorded before."""


class Turns:
    """See the laws above."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[Place, int, asyncio.Future[None]]] = []
        self._arrivals = count()
        self._rounds = 0
        self._looking = False

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for a turn."""
        return self._looking

    async def take(self, place: Place) -> None:
        """Wait for one's turn."""
        turn: asyncio.Future[None] = self._loop.create_future()
        heappush(self._waiting, (place, next(self._arrivals), turn))
        self._rounds = 0
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)
        await turn

    def _look(self) -> None:
        self._rounds += 1
        if self._rounds > ROUNDS:
            self._rounds = 0
            while self._waiting:
                turn = heappop(self._waiting)[2]
                if not turn.done():
                    turn.set_result(None)
                    break
        self._looking = bool(self._waiting)
        if self._looking:
            self._loop.call_soon(self._look)
