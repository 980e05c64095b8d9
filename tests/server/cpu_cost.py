"""The cost of a function as its input grows, in CPU time of this thread. The load of the machine does not matter."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tenure.errors import TenureError

CHEAP_SECONDS = 0.004
"""A cost below this is noise."""
RATIO_MAX = 9.0
"""The largest allowed ratio for four times the input. Linear work takes 4 times as long, quadratic work 16 times."""


REFUSALS = (TenureError, ValueError, LookupError, msgspec.MsgspecError, RecursionError)


def seconds_of(work: Callable[[int], Callable[[], Any]], size: int, tries: int = 3) -> float:
    """The least CPU time of a few tries at about this size. Each try has its own input, so that no cache helps.
    Errors that the work raises are ignored."""
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
    """Why the cost grows faster than the input, or an empty text if it does not. `work(size)` prepares a call."""
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
