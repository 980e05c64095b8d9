"""The pauses of publishers: until something is new, and after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress


async def wait_until_set(event: asyncio.Event, seconds_max: float) -> None:
    """Wait for an event, or until the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds_max):
            await event.wait()


def delay_after(failures: int, delays_seconds: Sequence[float]) -> float:
    """The delay after one or more failures in a row. The last delay is used again and again."""
    return delays_seconds[min(failures, len(delays_seconds)) - 1]
