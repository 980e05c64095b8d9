"""Work that would hold the event loop: reading a large body, a workflow's file, a policy.

Laws:
1. No request holds the event loop for longer than 50 ms of CPU time (`tests/server/test_event_loop_budget.py` drives every route). What may take
   longer is done here, in a few threads of this process.
2. What runs or waits for a thread is bounded. Whoever comes when that is full is refused: 503 SERVER_BUSY, and nothing was done.
3. What is small is done at once: a thread would cost more than it saves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from tenure.errors import TenureError

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 2
WAITING_MAX = 64
"""Pieces of work running or waiting for a thread."""
LARGE_BYTES = 32 * 1024
"""From here on a body is large."""
LARGE_STEPS = 100
"""From here on a workflow is."""


class WorkPool:
    """See the laws above."""

    def __init__(self, threads: int = THREADS, waiting_max: int = WAITING_MAX) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tenure-work")
        self._waiting_max = waiting_max
        self._lock = threading.Lock()
        self.under_way = 0
        self.refused: dict[str, int] = {"work": 0}
        """Where refusals are counted; a service has it count among its own."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What a function answers, from a thread."""
        with self._lock:
            if self.under_way >= self._waiting_max:
                self.refused["work"] += 1
                raise TenureError(
                    "SERVER_BUSY",
                    f"{self.under_way} pieces of heavy work are under way, which is the limit",
                    retry_after=1,
                )
            self.under_way += 1
        try:
            work = self._threads.submit(function, *args, **kwargs)
        except BaseException:
            self._count_down()
            raise
        work.add_done_callback(self._count_down)  # also where the caller is canceled before a thread takes it
        return await asyncio.wrap_future(work)

    def _count_down(self, _work: Future[Any] | None = None) -> None:
        with self._lock:
            self.under_way -= 1


POOL = WorkPool()
"""The one of this process: its threads are made when they are first needed."""


async def run_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Do something heavy in a thread (law 2)."""
    return await POOL.run(function, *args, **kwargs)
