"""Long runs: the first and the last steps of runs of ten thousand against the steps of short ones.

Both sides do the same thing at the same time of day: so many runs side by side, each so many steps further. At the
beginning a declared run has all its steps open, at the end it has most of them behind it.
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
"""Checkpoints sent at once while a run is being brought forward."""
FAN_CLAIM = 100
"""Steps taken by one claim from runs that have many ready at once."""
CLAIM_SECONDS = 5.0


class CheckpointRuns:
    """Code-first runs; a step is a checkpoint."""

    def __init__(self, orchestrator: Orchestrator, leases: list[Lease]) -> None:
        self._orchestrator = orchestrator
        self._leases = leases
        self._done = 0

    @classmethod
    async def made(cls, orchestrator: Orchestrator, plan: Plan, steps: int) -> CheckpointRuns:
        """New runs. Their number of steps is only known when they end."""
        del steps
        return cls(orchestrator, [await start(orchestrator) for _ in range(plan.long_runs)])

    async def forward(self, steps: int) -> None:
        """Do steps without measuring, many per commit."""
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
        """Do steps, each durable before the next; steps a second over all the runs."""

        async def one(lease: Lease) -> None:
            for seq in range(self._done + 1, self._done + steps + 1):
                await checkpoint(self._orchestrator, lease, seq, f"step-{seq}")

        started = time.perf_counter()
        await asyncio.gather(*map(one, self._leases))
        seconds = time.perf_counter() - started
        self._done += steps
        return steps * len(self._leases) / seconds

    async def end(self) -> list[Expected]:
        """Complete the runs."""
        for lease in self._leases:
            await complete(self._orchestrator, lease, self._done + 1)
        return [Expected(lease.run_id, self._done + 2, self._done) for lease in self._leases]


class LeasedRuns:
    """Declared runs; a step is claimed and completed. In a chain each step needs the one before it, in a fan
    all are ready from the beginning."""

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
        """New runs of so many steps in sequence."""
        return await cls._made(orchestrator, plan, steps, None, limit=plan.long_runs)

    @classmethod
    async def fans(cls, orchestrator: Orchestrator, plan: Plan, steps: int) -> LeasedRuns:
        """New runs of so many steps at once."""
        return await cls._made(orchestrator, plan, steps, (), limit=FAN_CLAIM)

    @classmethod
    async def _made(
        cls, orchestrator: Orchestrator, plan: Plan, steps: int, needs: tuple[str, ...] | None, limit: int
    ) -> LeasedRuns:
        queue = f"q{orchestrator.new_id('default')}"  # its own, so that its steps are not taken for another's
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
        """Do steps without measuring."""
        await self.segment(steps)

    async def segment(self, steps: int) -> float:
        """Do so many steps per run, each claimed and completed; steps a second over all the runs."""
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
        """Do what is left."""
        await self.segment(self._left)
        return [Expected(run_id, 1 + 2 * self._steps, self._steps) for run_id in self._run_ids]


class LongRuns(Protocol):
    """Some runs side by side."""

    async def forward(self, steps: int) -> None:
        """Do steps without measuring."""
        ...

    async def segment(self, steps: int) -> float:
        """Do so many steps per run; steps a second over all the runs."""
        ...

    async def end(self) -> list[Expected]:
        """Bring the runs to their end."""
        ...


Maker = Callable[[Orchestrator, Plan, int], Awaitable[LongRuns]]
"""Makes runs that will have so many steps."""
