"""A lab's time: a clock that stands still until it is moved, and its timers.

Laws:
1. Time does not pass by itself. (With PostgreSQL the database's own clock counts, and the lab's clock runs along with it.)
2. Timers fire in the order of their times, when the clock is moved.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tenure.clock import HostClock, us

QUIET_SECONDS = 0.03

_host = HostClock()


class LabClock:
    def __init__(self, start_us: int, *, runs_on: bool = False) -> None:
        self._us = start_us
        self._begun_us = _host.monotonic_us()
        self._runs_on = runs_on

    def now_us(self) -> int:
        return self._us + (_host.monotonic_us() - self._begun_us if self._runs_on else 0)

    def monotonic_us(self) -> int:
        """The same: the clock only moves forward."""
        return self.now_us()

    def move(self, to_us: int) -> None:
        """Move to a time, unless the clock is past it."""
        self._us += max(0, to_us - self.now_us())

    @property
    def ahead_us(self) -> int:
        """How far it is ahead of the host's clock."""
        return self.now_us() - _host.now_us()


class LabTimers:
    quiet_seconds = QUIET_SECONDS

    def __init__(self, clock: LabClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int]] = []
        self._callbacks: dict[int, Callable[[], object]] = {}
        """By number; a canceled timer has none."""
        self._count = itertools.count()
        self.fired = 0

    def at(self, moment_us: int, callback: Callable[[], object]) -> Callable[[], object]:
        """Call back at a time. Returns a function that cancels the timer."""
        number = next(self._count)
        self._callbacks[number] = callback
        heapq.heappush(self._heap, (moment_us, number))
        return lambda: self._callbacks.pop(number, None)

    def next_us(self) -> int | None:
        while self._heap and self._heap[0][1] not in self._callbacks:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire(self) -> None:
        while (at := self.next_us()) is not None and at <= self._clock.now_us():
            self.fired += 1
            self._callbacks.pop(heapq.heappop(self._heap)[1])()

    # ---------------------------------------------------------------------------------------- as `Timers`

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        cancel = self.at(self._clock.now_us() + us(seconds), wake)
        try:
            await woken
        finally:
            cancel()

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as limit:
            if seconds is None:
                yield
                return
            loop = asyncio.get_running_loop()
            cancel = self.at(self._clock.now_us() + us(seconds), lambda: limit.reschedule(loop.time()))
            try:
                yield
            finally:
                cancel()
