"""A handle on a run of an engine: wait for it, look at it, cancel it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from tenure.errors import TenureError
from tenure.kernel.machines import RUN
from tenure.kernel.run_rows import CLOSED_RUN
from tenure.sdk.definitions import Workflow
from tenure.services.run_waiters import POLL_SECONDS_MAX, POLL_SECONDS_MIN

if TYPE_CHECKING:
    from tenure.engine.engine import Engine

R = TypeVar("R")


class RunHandle(Generic[R]):
    """A run that was started, or that exists."""

    def __init__(self, engine: Engine, run_id: str, workflow: Workflow[..., Any] | None = None) -> None:
        self._engine = engine
        self._workflow = workflow
        self.id = run_id

    async def result(self, *, wait: float | None = None) -> R:
        """What the workflow returned, or its error raised. Waits for the run to end, at most `wait` seconds."""
        body = await self._engine.runs.output(self.id, wait=wait)
        if self._workflow is not None:
            return cast("R", self._workflow.codec.decode(body))
        return cast("R", None if body is None else msgspec.json.decode(body))

    async def status(self) -> str:
        return (await self._engine.get(self.id)).status

    async def reaches(self, *statuses: str, wait: float | None = None) -> str:
        """Wait until the run has one of these statuses, at most `wait` seconds, and return it. RUN_TERMINAL_STATE if the
        run ended in another."""
        wanted = " or ".join(statuses)
        if not statuses or not set(statuses) <= set(RUN.states):
            raise TenureError("INVALID_INPUT", f"{wanted!r} is not among {', '.join(RUN.states)}")
        loop, pause = asyncio.get_running_loop(), POLL_SECONDS_MIN
        deadline = None if wait is None else loop.time() + wait
        while (status := await self.status()) not in statuses:
            if status in CLOSED_RUN:
                raise TenureError("RUN_TERMINAL_STATE", f"{self.id} is {status} and will not be {wanted}")
            left = pause if deadline is None else min(pause, deadline - loop.time())
            if left <= 0:
                raise TenureError("COMMAND_DEADLINE", f"{self.id} is still {status}", status=status)
            await asyncio.sleep(left)
            pause = min(pause * 1.5, POLL_SECONDS_MAX)
        return status

    async def cancel(self) -> str:
        """Request cancellation. Returns the status it led to."""
        return await self._engine.cancel(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id}>"
