"""Results are handed to the branches of an execution one at a time, in the order in which they first came, live and in every replay.

Laws:
1. Of all results that branches wait for, the earliest is handed out first, and its branch runs as far as it can before the next one is
   handed out. So a race has the same winner in every replay.
2. Only results that branches ask for are ordered: no branch waits for a result that was not asked for.
3. The loop runs some rounds before each result is handed out, because a branch may still be on its way to its call.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count

ROUNDS = 5
"""Rounds of the loop without a new call after which every branch has arrived at its call: a task, a gather and a shield take that many."""

Place = tuple[int, int]
"""When a result was recorded, and its number."""
NEW: Place = (1 << 62, 0)
"""A new result: after all recorded ones."""


class ReplayOrder:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[Place, int, asyncio.Future[None]]] = []
        self._arrivals = count()
        self._rounds = 0
        self.awaited = False
        """Whether a branch waits for its turn."""

    async def take(self, place: Place) -> None:
        """Wait for the turn of a result."""
        turn: asyncio.Future[None] = self._loop.create_future()
        heappush(self._waiting, (place, next(self._arrivals), turn))
        self._rounds = 0
        if not self.awaited:
            self.awaited = True
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
        self.awaited = bool(self._waiting)
        if self.awaited:
            self._loop.call_soon(self._look)
