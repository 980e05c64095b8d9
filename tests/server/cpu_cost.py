"""What a function costs as its input grows, in CPU time of this thread: how busy the machine is does not matter."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tenure.errors import TenureError

CHEAP_SECONDS = 0.004
"""Below this a cost is noise, and no harm at its size."""
RATIO_MAX = 9.0
"""For four times the input; linear work takes 4 times, quadratic work 16 times as long."""


REFUSALS = (TenureError, ValueError, LookupError, msgspec.MsgspecError, RecursionError)


def seconds_of(work: Callable[[int], Callable[[], Any]], size: int, tries: int = 3) -> float:
    """The least CPU time of some tries at about a size; no two have the same input, so that nothing is remembered.
    Whatever it refuses, it refuses."""
    best = float("inf")
    for number in range(tries):
        prepared = work(size + 16 * number)
        began = time.thread_time()
        with contextlib.suppress(*REFUSALS):
            prepared()
        best = min(best, time.thread_time() - began)
        if best < CHEAP_SECONDS:
            break
    return best


def grows_too_fast(work: Callable[[int], Callable[[], Any]], largest: int) -> str:
    """Why a cost grows faster than its input up to the largest size; nothing where it does not. `work(size)` prepares it."""
    if seconds_of(work, largest) < CHEAP_SECONDS:
        return ""
    size = max(largest // 64, 256)
    cost = seconds_of(work, size)
    while size * 4 <= largest:
        size *= 4
        before, cost = cost, seconds_of(work, size)
        if cost > CHEAP_SECONDS and cost > RATIO_MAX * max(before, CHEAP_SECONDS / 16):
            return f"{size // 4} cost {before:.4f} s, {size} cost {cost:.4f} s"
    return ""
