"""The time for which callbacks hold the event loop: the CPU time of every turn of the loop, independent of the machine's load.

    with watched_turns() as turns:
        ...
    assert turns.longest() < 0.05, turns.describe()

Law: a turn is one callback of the loop. Its cost is CPU time of the loop's thread, so neither waiting nor other threads count.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HELD_SECONDS_MAX = 0.05
"""The most CPU time that one turn may take."""


class Turns:
    """The longest turns so far, and their callbacks."""

    def __init__(self) -> None:
        self.found: list[tuple[float, str]] = []

    def longest(self) -> float:
        """The CPU time of the longest turn."""
        return max((seconds for seconds, _ in self.found), default=0.0)

    def describe(self) -> str:
        """The longest turns as text."""
        worst = sorted(self.found, reverse=True)[:5]
        return "; ".join(f"{seconds * 1000:.0f} ms: {what}" for seconds, what in worst)

    def forget(self) -> None:
        """Drop the recorded turns."""
        self.found.clear()


@contextmanager
def watched_turns(least: float = 0.01) -> Iterator[Turns]:
    """Record the turns of all event loops of this thread that take at least `least` seconds. The garbage collector is off,
    because a collection could fall into any turn."""
    turns = Turns()
    original = asyncio.Handle._run

    def run(self: asyncio.Handle) -> None:
        began = time.thread_time()
        original(self)
        seconds = time.thread_time() - began
        if seconds >= least:
            turns.found.append((seconds, _describe_callback(self)))

    gc.collect()
    gc.disable()
    asyncio.Handle._run = run  # type: ignore[method-assign]  # the loop finds it by this name
    try:
        yield turns
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]  # restored
        gc.enable()


def _describe_callback(handle: Any) -> str:
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    return repr(task)[:200] if isinstance(task, asyncio.Task) else repr(callback)[:200]
