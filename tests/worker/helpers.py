"""Shared by the tests of workers: an engine for inspection, conditions to wait for, and the doctor at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tenure import ids
from tenure.doctor.examination import examine_database
from tenure.engine import Engine
from tenure.kernel.run_rows import AttemptRow, StepRow

WAIT_SECONDS = 50.0


async def until(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Wait for a condition, plain or async. The result is what it returned."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still waiting for: {what}"
        await asyncio.sleep(0.02)


class Watched(Engine):
    """An engine with more queries."""

    async def attempts(self, run_id: str) -> list[str]:
        """The states of all attempts of a run's only step."""
        return [row.state for row in await self.leases(run_id)]

    async def leases(self, run_id: str) -> list[AttemptRow]:
        """All attempts of a run's only step."""
        rows: list[AttemptRow] = await self.store.read("attempts_of", ids.run_int(run_id))
        return rows

    async def step(self, run_id: str) -> StepRow:
        """A run's only step."""
        (row,) = await self.store.read("steps_of", ids.run_int(run_id))
        step: StepRow = row
        return step

    async def see_end(self, run_id: str, status: str = "succeeded", seconds: float = WAIT_SECONDS) -> None:
        """Wait for a run's end, and check its status."""

        async def ended() -> bool:
            return (await self.get(run_id)).finished_at is not None

        await until(ended, f"the end of {run_id}", seconds)
        run = await self.get(run_id)
        assert run.status == status, (run.status, run.reason, run.error)


@asynccontextmanager
async def watching(url: str, **how: Any) -> AsyncIterator[Watched]:
    """An engine with a fast sweeper. At the end, the doctor examines the database."""
    async with Watched(url, sweep_seconds=0.1, **how) as engine:
        yield engine
        report = await examine_database(engine.store)
        assert report.clean, [str(v) for v in report.violations]
