"""Long runs: the first and last steps of runs with ten thousand steps, compared with the steps of short runs.

Both sides do the same number of steps in the same number of concurrent runs, one side directly after the other. At the
beginning of a declared run all its steps are open; at its end most are closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from bench.plan import Plan
from bench.workloads import HERE, INPUT, OUTPUT, Expected, checkpoint, complete, start
from tenure.kernel.commands import CreateRun, RecordCheckpoint, StepSpec
from tenure.kernel.lease_types import Lease
from tenure.orchestrator import Orchestrator

BURST = 50
"""Checkpoints of each run that `forward` sends at once."""
FAN_CLAIM = 100
"""Steps per claim, for runs with many ready steps."""
CLAIM_SECONDS = 5.0


class LongRuns(Protocol):
    """Some concurrent runs."""

    async def forward(self, steps: int) -> None:
        """Do steps without measuring."""

    async def segment(self, steps: int) -> float:
        """Do `steps` steps of each run, each durable before the next. The result is the steps per second over all runs."""

    async def end(self) -> list[Expected]:
        """Bring the runs to their end."""


Maker = Callable[[Orchestrator, Plan, int], Awaitable[LongRuns]]
"""Makes runs with a number of steps."""


class CheckpointRuns:
    """Code-first runs. A step is a checkpoint."""

    def __init__(self, orchestrator: Orchestrator, leases: list[Lease]) -> None:
        self._orchestrator = orchestrator
        self._leases = leases
        self._done = 0

    @classmethod
    async def create(cls, orchestrator: Orchestrator, plan: Plan, steps: int) -> CheckpointRuns:
        del steps  # a code-first run can have any number
        return cls(orchestrator, [await start(orchestrator) for _ in range(plan.long_runs)])

    async def forward(self, steps: int) -> None:
        for first in range(self._done + 1, self._done + steps + 1, BURST):
            last = min(first + BURST, self._done + steps + 1)
            await asyncio.gather(
                *(
                    self._orchestrator.submit(
                        RecordCheckpoint(
                            run_id=lease.run_id, idx=0, n=lease.n, seq=seq, name=f"step-{seq}", output=OUTPUT
                        )
                    )
                    for lease in self._leases
                    for seq in range(first, last)
                )
            )
        self._done += steps

    async def segment(self, steps: int) -> float:
        async def one(lease: Lease) -> None:
            for seq in range(self._done + 1, self._done + steps + 1):
                await checkpoint(self._orchestrator, lease, seq, f"step-{seq}")

        started = time.perf_counter()
        await asyncio.gather(*map(one, self._leases))
        seconds = time.perf_counter() - started
        self._done += steps
        return steps * len(self._leases) / seconds

    async def end(self) -> list[Expected]:
        for lease in self._leases:
            await complete(self._orchestrator, lease, self._done + 1)
        return [Expected(lease.run_id, self._done + 2, self._done) for lease in self._leases]


class LeasedRuns:
    """Declared runs. A step is claimed and completed. In a chain each step needs the one before it; in a fan all steps are ready from the
    beginning."""

    def __init__(
        self, orchestrator: Orchestrator, run_ids: list[int], queue: str, steps: int, limit: int
    ) -> None:
        self._orchestrator = orchestrator
        self._run_ids = run_ids
        self._queue = queue
        self._steps = steps
        self._limit = limit
        self._left = steps * len(run_ids)

    @classmethod
    async def chains(cls, orchestrator: Orchestrator, plan: Plan, steps: int) -> LeasedRuns:
        return await cls._create(orchestrator, plan, steps, None, limit=plan.long_runs)

    @classmethod
    async def fans(cls, orchestrator: Orchestrator, plan: Plan, steps: int) -> LeasedRuns:
        return await cls._create(orchestrator, plan, steps, (), limit=FAN_CLAIM)

    @classmethod
    async def _create(
        cls, orchestrator: Orchestrator, plan: Plan, steps: int, needs: tuple[str, ...] | None, limit: int
    ) -> LeasedRuns:
        queue = f"q{orchestrator.new_id('default')}"  # a new queue, so that claims find only these steps
        specs = tuple(StepSpec(name=f"step-{i}", queue=queue, needs=needs) for i in range(steps))
        ids = []
        for _ in range(plan.long_runs):
            command = CreateRun(
                run_id=orchestrator.new_id("default"),
                tenant="tenant-1",
                workflow="bench",
                input=INPUT,
                plan=specs,
            )
            ids.append((await orchestrator.create(command)).run_id)
        return cls(orchestrator, ids, queue, steps, limit)

    async def forward(self, steps: int) -> None:
        await self.segment(steps)

    async def segment(self, steps: int) -> float:
        todo = left = min(steps * len(self._run_ids), self._left)
        started = time.perf_counter()
        while left:
            leases = await self._orchestrator.claim(
                HERE.worker, queues=(self._queue,), limit=min(self._limit, left), wait_seconds=CLAIM_SECONDS
            )
            assert leases, "a step that is ready was not claimed"
            await asyncio.gather(*(complete(self._orchestrator, lease, 1) for lease in leases))
            left -= len(leases)
        seconds = time.perf_counter() - started
        self._left -= todo
        return todo / seconds if todo else 0.0

    async def end(self) -> list[Expected]:
        await self.segment(self._left)
        return [Expected(run_id, 1 + 2 * self._steps, self._steps) for run_id in self._run_ids]
