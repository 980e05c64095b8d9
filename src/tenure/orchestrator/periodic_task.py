"""Something that looks at the database again and again until it is stopped.

Law: a round that fails is told in the log and followed by the next one; one that found as much as it may take is
followed at once.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Self

from tenure.errors import TenureError
from tenure.logs import get_logger

log = get_logger(__name__)


class PeriodicTask:
    """See the law above. An async context manager."""

    def __init__(self, name: str, look: Callable[[], Awaitable[int]], seconds: float, most: int) -> None:
        self._name = name
        self._look = look
        self._seconds = seconds
        self._most = most
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"tenure-{self._name}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            found = 0
            try:
                found = await self._look()
            except TenureError as refused:
                log.warning("round_failed", of=self._name, error=refused.code, message=refused.message)
            except Exception:
                log.error("round_failed", of=self._name, traceback=traceback.format_exc())
            if found < self._most:
                await asyncio.sleep(self._seconds)
