"""A lab's time: a clock that stands still until it is moved, and what waits for its moments.

Laws:
1. Time does not pass by itself. (Over PostgreSQL, whose own clock counts, it runs on as it does there.)
2. What waits in memory is woken in the order of its moments, by whoever moves the clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from tenure.clock import HostClock, us

QUIET_SECONDS = 0.03

_host = HostClock()


class LabClock:
    """See law 1."""

    def __init__(self, start_us: int, *, runs_on: bool = False) -> None:
        self._us = start_us
        self._begun_us = _host.monotonic_us()
        self._runs_on = runs_on

    def now_us(self) -> int:
        """The lab's time."""
        return self._us + (_host.monotonic_us() - self._begun_us if self._runs_on else 0)

    def monotonic_us(self) -> int:
        """The same: it is only ever moved ahead."""
        return self.now_us()

    def move(self, to_us: int) -> None:
        """Go to a moment, or stay where time has come to."""
        self._us += max(0, to_us - self.now_us())

    @property
    def ahead_us(self) -> int:
        """How far it is ahead of the host's clock."""
        return self.now_us() - _host.now_us()


class Alarm:
    """A callback at a moment, until it is called off."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def call_off(self) -> None:
        """Not any more."""
        self.callback = None


class Alarms:
    """What waits in memory for moments of a lab's clock. It is the `Pace` of the lab's workers."""

    quiet_seconds = QUIET_SECONDS

    def __init__(self, clock: LabClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Alarm]] = []
        self._count = itertools.count()
        self.rung = 0
        """How many there were."""

    def at(self, moment_us: int, callback: Callable[[], object]) -> Alarm:
        """Have something done at a moment."""
        alarm = Alarm(callback)
        heapq.heappush(self._heap, (moment_us, next(self._count), alarm))
        return alarm

    def next_us(self) -> int | None:
        """The next moment that somebody waits for."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def ring(self) -> None:
        """Wake whoever's moment has come."""
        while (at := self.next_us()) is not None and at <= self._clock.now_us():
            callback = heapq.heappop(self._heap)[2].callback
            if callback is not None:
                self.rung += 1
                callback()

    # ---------------------------------------------------------------------------------------- as a pace

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        alarm = self.at(self._clock.now_us() + us(seconds), wake)
        try:
            await woken
        finally:
            alarm.call_off()

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """TimeoutError for what takes longer, by the lab's time."""
        return self._timeout(seconds)

    @asynccontextmanager
    async def _timeout(self, seconds: float | None) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as limit:
            if seconds is None:
                yield
                return
            loop = asyncio.get_running_loop()
            alarm = self.at(self._clock.now_us() + us(seconds), lambda: limit.reschedule(loop.time()))
            try:
                yield
            finally:
                alarm.call_off()
