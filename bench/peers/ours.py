"""Tenure, measured as its peers are: in its own process, by the same clock, through what its users write.

A run is a workflow of five no-op steps, started and awaited in the process of its one worker. A job is a workflow
without steps, which is one leased step with its whole history; submissions are such jobs that nobody works off.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Mapping
from importlib import metadata
from typing import Any

import uvloop

import tenure
from bench.checking import check
from bench.peers.protocol import Site, expect, serve
from bench.plan import Plan
from bench.workloads import STEPS, Expected
from tenure import ids
from tenure.engine.entry_point import COLLECT_AFTER

PLAN = Plan()
BATCH = 500
"""Submissions at a time."""
CHECKED = 5


@tenure.step
async def nothing(order: dict[str, int]) -> dict[str, int]:
    """A step that does nothing."""
    return order


@tenure.workflow
async def five(order: dict[str, int]) -> dict[str, int]:
    """Five durable steps, one after another."""
    for _ in range(STEPS):
        order = await nothing(order)
    return order


@tenure.workflow
async def job(order: dict[str, int]) -> None:
    """A plain job."""


ORDER = {"order": 4711, "customer": 815}


class Ours:
    """See `Peer`."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._in_flight = site.number("in_flight", PLAN.code_first_in_flight)
        self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._engine = tenure.Engine(site.dsn or f"sqlite:{site.folder / 'tenure.db'}")
        self._open = False

    def prepare(self) -> None:
        """Tables, connections; what start-up left is frozen, as an application may do, and the garbage collector looks as
        often as in `tenure worker`."""
        self._do(self._prepare())
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])

    async def _prepare(self) -> None:
        await self._engine.__aenter__()
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
        engine = self._engine
        made: list[Expected] = []
        seconds: list[float] = []
        left = iter(range(runs))

        async def lane() -> None:
            for _ in left:
                started = time.perf_counter()
                run = await engine.start(five, ORDER)
                expect(await run.result(), ORDER, f"result of {run.id}")
                seconds.append(time.perf_counter() - started)
                made.append(Expected(ids.run_int(run.id), STEPS + 1, STEPS))

        async def lanes() -> None:
            async with engine.worker(five, slots=5 * in_flight):
                with self._site.clock():
                    async with asyncio.TaskGroup() as group:
                        for _ in range(min(in_flight, runs)):
                            group.create_task(lane())
            await check(engine.store, made, checked=CHECKED)

        gc.collect()
        self._do(lanes())
        return seconds

    # ----------------------------------------------------------------------------- jobs and submissions

    def figures(self) -> Mapping[str, Callable[[int], int]]:
        """What a queue is compared by. Submissions come last: what they submit stays."""
        return {"jobs": self.jobs, "single_enqueues": self.single, "batch_enqueues": self.batches}

    async def _submit_all(self, count: int, at_a_time: int) -> list[str]:
        made: list[str] = []
        while len(made) < count:
            some = min(at_a_time, count - len(made))
            runs = await asyncio.gather(*(self._engine.start(job, ORDER) for _ in range(some)))
            made += [run.id for run in runs]
        return made

    def jobs(self, count: int) -> int:
        """Jobs submitted before the clock, worked off by one worker."""
        engine = self._engine

        async def work() -> None:
            runs = await self._submit_all(count, BATCH)
            worker = engine.worker(job, slots=PLAN.workers * PLAN.slots)
            with self._site.clock():
                async with worker:
                    while worker.counts["succeeded"] < count:  # noqa: ASYNC110 - a look costs less than being told
                        await asyncio.sleep(0.001)
            await check(engine.store, [Expected(ids.run_int(run), 3, 0) for run in runs], checked=CHECKED)

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
            for run in runs:  # the doctor wants settled runs; these wait for a worker that never comes
                expect((await self._engine.get(run)).status, "queued", f"status of {run}")

        gc.collect()
        self._do(work())
        return count

    def settings(self) -> Mapping[str, str]:
        """See `Peer`."""
        return {
            "tenure": metadata.version("tenure"),
            "settings": f"one process with one worker, {self._in_flight} in flight; jobs: {PLAN.workers * PLAN.slots}"
            " slots",
        }

    def close(self) -> None:
        """Let go of the database."""
        if self._open:
            self._do(self._close())

    async def _close(self) -> None:
        await self._engine.__aexit__(None, None, None)


if __name__ == "__main__":
    serve(Ours)
