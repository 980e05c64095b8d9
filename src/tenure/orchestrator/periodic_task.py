"""A background task that looks at the database in rounds until it is stopped.

Law: a failed round is logged, and the next one follows. If a round fills its limit, the next round starts immediately.
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
    """Runs as long as its async context. `look` returns how much it found, and `most` is the limit of a round."""

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
                log.warning(
                    "periodic_task_failed", of=self._name, error=refused.code, message=refused.message
                )
            except Exception:
                log.error("periodic_task_failed", of=self._name, traceback=traceback.format_exc())
            if found < self._most:
                await asyncio.sleep(self._seconds)
