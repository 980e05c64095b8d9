"""A thread that carries out blocking calls in order, for an event loop that must not block.

Laws:
1. Calls are carried out one at a time, in the order they were given.
2. What a call answered comes back through one `call_soon_threadsafe`, however many answers there are by then.
3. A call that was begun is finished, also when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from tenure.futures import fail, finish

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Courier:
    """One thread and its queue."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def send(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Have a call carried out; the future is of the running loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((call, future))
        return future

    async def run(self, call: Callable[[], T]) -> T:
        """Have a call carried out and wait for it, also when cancelled meanwhile."""
        return await finish(self.send(call))

    def stop(self) -> None:
        """Finish what was given and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, future = job
            try:
                self._done.append((future, call(), None))
            except BaseException as error:  # whatever it is, it belongs to whoever asked
                self._done.append((future, None, error))
            if len(self._done) == 1:  # else a delivery is on its way and will take this one along
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                    future.get_loop().call_soon_threadsafe(self._deliver)
            del job, call, future  # nothing is kept alive while the next call is waited for

    def _deliver(self) -> None:
        while self._done:
            future, answer, error = self._done.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(answer)
            else:
                fail(future, error)
