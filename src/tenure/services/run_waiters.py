"""Callers in this process that wait for runs. A worker of this process wakes them when it ends the run; otherwise they poll."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

POLL_SECONDS_MIN = 0.005
POLL_SECONDS_MAX = 0.25
"""The longest pause between two polls of a run that ends in another process."""
POLL_SECONDS_LOCAL = 1.0
"""The pause if a worker of this process holds the run and wakes the callers."""


class RunWaiter:
    """The callers that wait for one run, and the output if a worker of this process has completed it."""

    __slots__ = ("_futures", "_notified", "count", "output", "succeeded")

    def __init__(self) -> None:
        self.count = 0
        self.succeeded = False
        self.output: bytes | None = None
        self._notified = False
        self._futures: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        self._notified = True
        for future in self._futures:
            _set_done(future)

    async def wait(self, seconds: float) -> None:
        """Wait for `notify`, or until the time has passed."""
        if not self._notified:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._futures.append(future)
            timer = loop.call_later(seconds, _set_done, future)
            try:
                await future
            finally:
                timer.cancel()
                self._futures.remove(future)
        self._notified = False


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class RunWaiters:
    def __init__(self) -> None:
        self._by_run: dict[int, RunWaiter] = {}

    def succeeded(self, run_id: int, output: bytes | None) -> None:
        """A worker of this process has completed the run."""
        if (waiter := self._by_run.get(run_id)) is not None:
            waiter.succeeded, waiter.output = True, output
            waiter.notify()

    def ended(self, run_id: int) -> None:
        """A worker of this process has stopped working on the run."""
        if (waiter := self._by_run.get(run_id)) is not None:
            waiter.notify()

    @contextmanager
    def waiting(self, run_id: int) -> Iterator[RunWaiter]:
        waiter = self._by_run.setdefault(run_id, RunWaiter())
        waiter.count += 1
        try:
            yield waiter
        finally:
            waiter.count -= 1
            if not waiter.count:
                del self._by_run[run_id]
