"""How long the event loop's thread is held: the CPU time of every turn of the loop, whatever else the machine does.

    with watched_turns() as turns:
        ...
    assert turns.longest() < 0.05, turns.told()

Law: a turn is one callback of the loop. Its cost is CPU time of the loop's thread, so neither waiting nor other threads count.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HELD_SECONDS_MAX = 0.05
"""What one turn may take."""


class Turns:
    """The longest turns so far, and what they did."""

    def __init__(self) -> None:
        self.found: list[tuple[float, str]] = []

    def longest(self) -> float:
        """The CPU time of the longest turn."""
        return max((seconds for seconds, _ in self.found), default=0.0)

    def told(self) -> str:
        """The longest turns, for people."""
        worst = sorted(self.found, reverse=True)[:5]
        return "; ".join(f"{seconds * 1000:.0f} ms: {what}" for seconds, what in worst)

    def forget(self) -> None:
        """Begin anew."""
        self.found.clear()


@contextmanager
def watched_turns(least: float = 0.01) -> Iterator[Turns]:
    """Watch every turn of every loop of this thread; those of less than `least` seconds are not kept. The garbage collector
    rests: when it runs is nobody's doing."""
    turns = Turns()
    original = asyncio.Handle._run

    def run(self: asyncio.Handle) -> None:
        began = time.thread_time()
        original(self)
        seconds = time.thread_time() - began
        if seconds >= least:
            turns.found.append((seconds, _what(self)))

    gc.collect()
    gc.disable()
    asyncio.Handle._run = run  # type: ignore[method-assign]  # the loop calls it by its name
    try:
        yield turns
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]  # as it was
        gc.enable()


def _what(handle: Any) -> str:
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    return repr(task)[:200] if isinstance(task, asyncio.Task) else repr(callback)[:200]
