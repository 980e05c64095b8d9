"""Sleeps and timeouts of the code under a lease: by the host's clock, or by one that a test moves.

Law: everything that is waited for in a worker's memory (a short sleep, a backoff, the timeout of a step) uses these timers.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

QUIET_SECONDS = 1.0


class Timers(Protocol):
    quiet_seconds: float
    """How long code may await something the SDK cannot see before its run suspends; always in real time."""

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """Raises TimeoutError after `seconds`; None is no limit."""


class HostTimers:
    quiet_seconds = QUIET_SECONDS

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        return asyncio.timeout(seconds)


HOST_TIMERS = HostTimers()
