"""How time passes for the code under a lease: by the host's clock, or by one that a test moves.

Law: whatever is waited for in a worker's memory (a short sleep, a backoff, the timeout of a step) goes through here.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

QUIET_SECONDS = 1.0


class Pace(Protocol):
    """See the law above."""

    quiet_seconds: float
    """How long code that awaits something we cannot see may take before its run is let go; always the host's."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """TimeoutError for what takes longer; None is no limit."""
        ...


class HostPace:
    """The machine's time."""

    quiet_seconds = QUIET_SECONDS

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """TimeoutError for what takes longer."""
        return asyncio.timeout(seconds)


HOST_PACE = HostPace()
