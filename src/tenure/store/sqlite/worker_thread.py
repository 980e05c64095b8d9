"""A thread that carries out blocking calls in order, for an event loop that must not block.

Laws:
1. Calls are carried out one at a time, in the order they were given.
2. Results come back through one `call_soon_threadsafe`, however many there are by then.
3. A call that has begun is finished, also when its caller is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from tenure.futures import fail_future, wait_uninterrupted

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class WorkerThread:
    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def send(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a call; the future belongs to the running loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((call, future))
        return future

    async def run(self, call: Callable[[], T]) -> T:
        """Queue a call and wait for it, also when cancelled meanwhile."""
        return await wait_uninterrupted(self.send(call))

    def stop(self) -> None:
        """Finish the queued calls and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, future = job
            try:
                self._done.append((future, call(), None))
            except BaseException as error:  # any error is raised to the caller
                self._done.append((future, None, error))
            if len(self._done) == 1:  # else a scheduled delivery includes this one
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    future.get_loop().call_soon_threadsafe(self._deliver)
            del job, call, future  # keep nothing alive while waiting for the next call

    def _deliver(self) -> None:
        while self._done:
            future, answer, error = self._done.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(answer)
            else:
                fail_future(future, error)
