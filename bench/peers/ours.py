"""Tenure, measured as its peers are: in its own process, by the same clock.

The runs are driven as `bench/workloads.py` drives them, on the orchestrator itself. A workflow of the SDK comes in as
one more entry of `WAYS`, and is what the comparison takes from then on.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from importlib import metadata
from typing import Any

import uvloop

from bench import workloads
from bench.checking import check
from bench.peers.protocol import Site, expect, serve
from bench.plan import Plan
from bench.workloads import INPUT, STEPS, Expected, Workers
from tenure.kernel.commands import CreateRun, StepSpec
from tenure.kernel.decide.leases import Lease
from tenure.orchestrator import Orchestrator
from tenure.store.postgres.store import PostgresStore
from tenure.store.sqlite.store import SqliteStore

PLAN = Plan()
BATCH = 500
"""Submissions at a time."""
JOB = (StepSpec(name="job"),)
CHECKED = 5

Way = Callable[[Orchestrator], Awaitable[Expected]]
"""One run of five durable steps from submit to done."""
WAYS: dict[str, Way] = {"kernel": workloads.code_first_run}


class Ours:
    """See `Peer`."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._way = site.text("way", "kernel")
        self._in_flight = site.number("in_flight", PLAN.code_first_in_flight)
        self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._store: PostgresStore | SqliteStore = (
            PostgresStore(site.dsn) if site.dsn else SqliteStore(site.folder / "tenure.db")
        )
        self._orchestrator = Orchestrator(self._store)
        self._open = False

    def prepare(self) -> None:
        """Tables, connections; what start-up left is frozen, as an application may do."""
        self._do(self._prepare())
        gc.collect()
        gc.freeze()

    async def _prepare(self) -> None:
        await self._store.migrate()
        await self._store.open()
        await self._orchestrator.__aenter__()
        self._open = True

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(work)

    # ------------------------------------------------------------------------------------------ runs

    def throughput(self, runs: int) -> int:
        """Many at a time."""
        self._runs(runs, self._in_flight)
        return runs * STEPS

    def lone(self, runs: int) -> list[float]:
        """One after another."""
        return self._runs(runs, 1)

    def _runs(self, runs: int, in_flight: int) -> list[float]:
        made: list[Expected] = []
        seconds: list[float] = []
        left = iter(range(runs))
        way = WAYS[self._way]

        async def lane() -> None:
            for _ in left:
                started = time.perf_counter()
                made.append(await way(self._orchestrator))
                seconds.append(time.perf_counter() - started)

        async def lanes() -> None:
            with self._site.clock():
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(in_flight, runs)):
                        group.create_task(lane())
            await check(self._store, made, checked=CHECKED)

        gc.collect()
        self._do(lanes())
        return seconds

    # ----------------------------------------------------------------------------- jobs and submissions

    def figures(self) -> Mapping[str, Callable[[int], int]]:
        """What a queue is compared by. Submissions come last: what they submit stays."""
        return {"jobs": self.jobs, "single_enqueues": self.single, "batch_enqueues": self.batches}

    async def _submit(self, count: int) -> list[int]:
        """Leased one-step runs, all of them asked for at once."""
        commands = [
            CreateRun(run_id=self._orchestrator.new_id(), tenant="tenant-1", workflow="job", input=INPUT, plan=JOB)
            for _ in range(count)
        ]  # fmt: skip
        created = await asyncio.gather(*map(self._orchestrator.create, commands))
        return [one.run_id for one in created]

    async def _submit_all(self, count: int, at_a_time: int) -> list[int]:
        made: list[int] = []
        while len(made) < count:
            made += await self._submit(min(at_a_time, count - len(made)))
        return made

    def jobs(self, count: int) -> int:
        """Runs of one leased step, submitted before the clock, worked off by workers with slots."""

        async def work() -> None:
            runs = await self._submit_all(count, BATCH)
            workers = Workers(self._orchestrator, PLAN.workers, PLAN.slots)
            ended = self._loop.create_future()
            left = count

            def on_step(lease: Lease) -> None:
                nonlocal left
                del lease
                left -= 1
                if not left:
                    clock.stop()
                    ended.set_result(None)

            async def wait() -> None:
                await ended

            workers.on_step = on_step
            with self._site.clock() as clock:
                await workers.during(wait())
            await check(self._store, [Expected(run, 3, 1) for run in runs], checked=CHECKED)

        gc.collect()
        self._do(work())
        return count

    def single(self, count: int) -> int:
        """One after another, each awaited."""
        return self._submissions(count, 1)

    def batches(self, count: int) -> int:
        """In batches of 500, one after another."""
        return self._submissions(max(BATCH, count - count % BATCH), BATCH)

    def _submissions(self, count: int, at_a_time: int) -> int:
        async def work() -> None:
            with self._site.clock():
                runs = await self._submit_all(count, at_a_time)
            for run_id in runs:  # the doctor wants settled runs; these wait for a worker that never comes
                found = await self._store.read("get_run", run_id)
                expect([run.status for run in found], ["queued"], f"status of run {run_id}")

        gc.collect()
        self._do(work())
        return count

    def settings(self) -> Mapping[str, str]:
        """See `Peer`."""
        return {
            "tenure": metadata.version("tenure"),
            "settings": f"one process, {self._way}, {self._in_flight} in flight; jobs: {PLAN.workers} workers with"
            f" {PLAN.slots} slots each",
        }

    def close(self) -> None:
        """Let go of the database."""
        if self._open:
            self._do(self._close())

    async def _close(self) -> None:
        await self._orchestrator.__aexit__(None, None, None)
        await self._store.close()


if __name__ == "__main__":
    serve(Ours)
