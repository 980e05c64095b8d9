"""Threads for plain code.

Laws:
1. The threads are daemons: code that never returns does not keep the process alive.
2. There are as many threads as slots, and one more for each stuck job: a retry does not wait for the attempt it replaces.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

_Job = tuple["Future[Any]", Callable[[], Any]]


class ThreadPool:
    """It is used from the loop's thread only."""

    def __init__(self, most: int, name: str) -> None:
        self.most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._alive = 0
        self._unfinished = 0

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in the next free thread. Until it begins, it can be canceled."""
        future: Future[Any] = Future()
        with self._lock:
            self._unfinished += 1
            new = self._alive < min(self._unfinished, self.most)
            self._alive += new
        self._jobs.put((future, function))
        if new:
            threading.Thread(target=self._run, name=f"{self._name}-{self._alive}", daemon=True).start()
        return future

    def close(self) -> None:
        """End idle threads now, and busy ones after their job."""
        for _ in range(self._alive):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            del job  # keep nothing alive while the thread waits
        with self._lock:
            self._alive -= 1

    def _do(self, future: Future[Any], function: Callable[[], Any]) -> None:
        begun = future.set_running_or_notify_cancel()
        value, fault = None, None
        try:
            if begun:
                value = function()
        except BaseException as raised:
            fault = raised
        with self._lock:
            self._unfinished -= 1
        if not begun:
            return
        if fault is not None:
            future.set_exception(fault)
        else:
            future.set_result(value)
