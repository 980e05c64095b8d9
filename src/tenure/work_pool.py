"""Threads for work that would block the event loop, such as parsing a large body, a workflow file or a policy.

Laws:
1. No request blocks the event loop for more than 50 ms of CPU time (`tests/server/test_event_loop_budget.py` checks every route). Work
   that may take longer is done here, in a few threads.
2. The work that runs or waits for a thread is bounded. Beyond the limit it is refused with SERVER_BUSY, and nothing is done.
3. Small work is done on the event loop: a thread would cost more than it saves.
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
"""Calls that run or wait for a thread."""
LARGE_BYTES = 32 * 1024
"""A body of this size is large."""
LARGE_STEPS = 100
"""A workflow with this many steps is large."""


class WorkPool:
    def __init__(self, threads: int = THREADS, waiting_max: int = WAITING_MAX) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tenure-work")
        self._waiting_max = waiting_max
        self._lock = threading.Lock()
        self.under_way = 0
        self.refused: dict[str, int] = {"work": 0}
        """The counter of refusals. A server replaces it by its own."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread; SERVER_BUSY if too many calls are waiting."""
        with self._lock:
            if self.under_way >= self._waiting_max:
                self.refused["work"] += 1
                raise TenureError(
                    "SERVER_BUSY",
                    f"{self.under_way} calls are running or waiting for a thread, which is the limit",
                    retry_after=1,
                )
            self.under_way += 1
        try:
            work = self._threads.submit(function, *args, **kwargs)
        except BaseException:
            self._count_down()
            raise
        work.add_done_callback(self._count_down)  # also if the caller is canceled before a thread takes it
        return await asyncio.wrap_future(work)

    def _count_down(self, _work: Future[Any] | None = None) -> None:
        with self._lock:
            self.under_way -= 1


POOL = WorkPool()
"""The pool of this process. Its threads are started when they are first needed."""


async def run_in_pool(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    return await POOL.run(function, *args, **kwargs)
