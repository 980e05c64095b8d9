"""A worker's presence: it says that it is there, so that others can say when nobody is.

Laws:
1. Nothing depends on it but what people are told: a worker that cannot say it is there still works.
2. One that stops in peace is gone at once; one that dies is not counted on after WORKER_SILENT_SECONDS.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import structlog

from tenure.errors import TenureError
from tenure.limits import WORKER_BEAT_SECONDS
from tenure.store.port import Store

log = structlog.get_logger(__name__)


class Presence:
    """Says every few seconds that a worker is there, from `start` to `stop` (in peace) or `kill` (not)."""

    def __init__(
        self,
        store: Store,
        name: str,
        queues: Sequence[str],
        slots: int,
        version: str = "",
        *,
        seconds: float = WORKER_BEAT_SECONDS,
    ) -> None:
        self._store = store
        self._name = name
        self._what = (tuple(queues), slots, version)
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Say it now and from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"tenure-presence-{self._name}")

    async def stop(self) -> None:
        """Say goodbye."""
        self.kill()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            with contextlib.suppress(TenureError):  # it is forgotten by itself
                await self._store.drop_worker(self._name)

    def kill(self) -> None:
        """Say nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._store.put_worker(self._name, *self._what)
            except TenureError as refused:
                log.warning("presence_failed", worker=self._name, error=refused.code, message=refused.message)
            await asyncio.sleep(self._seconds)
