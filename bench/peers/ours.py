"""Tenure, measured like its peers: in its own process, by the same clock, through its public API.

A run is a workflow of five no-op steps, started and awaited in the process of its one worker. A job is a workflow
without steps, which is one leased step with its whole history. Submissions are such jobs without a worker.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Mapping
from importlib import metadata
from typing import Any, TypeVar

import uvloop

import tenure
from bench.checking import check
from bench.peers.protocol import Peer, Site, expect, run_concurrently, serve
from bench.plan import Plan
from bench.workloads import STEPS, Expected
from tenure import ids
from tenure.engine.entry_point import COLLECT_AFTER

T = TypeVar("T")

PLAN = Plan()
BATCH = 500
"""Concurrent submissions."""
CHECKED = 5


@tenure.step
async def nothing(order: dict[str, int]) -> dict[str, int]:
    return order


@tenure.workflow
async def five(order: dict[str, int]) -> dict[str, int]:
    for _ in range(STEPS):
        order = await nothing(order)
    return order


@tenure.workflow
async def job(order: dict[str, int]) -> None:
    """A job without steps."""


ORDER = {"order": 4711, "customer": 815}


class Ours(Peer):
    def __init__(self, site: Site) -> None:
        self._site = site
        self._in_flight = site.number("in_flight", PLAN.code_first_in_flight)
        self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._engine = tenure.Engine(site.dsn or f"sqlite:{site.folder / 'tenure.db'}")
        self._open = False

    def prepare(self) -> None:
        """Open the engine. The objects of the start-up are frozen, as an application may do, and the garbage collector runs as often as in
        `tenure worker`."""
        self._do(self._engine.__aenter__())
        self._open = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    # ------------------------------------------------------------------------------------------ runs

    def throughput(self, runs: int) -> int:
        self._runs(runs, self._in_flight)
        return runs * STEPS

    def lone(self, runs: int) -> list[float]:
        return self._runs(runs, 1)

    def _runs(self, runs: int, in_flight: int) -> list[float]:
        engine = self._engine
        made: list[Expected] = []

        async def one() -> float:
            started = time.perf_counter()
            run = await engine.start(five, ORDER)
            expect(await run.result(), ORDER, f"result of {run.id}")
            seconds = time.perf_counter() - started
            made.append(Expected(ids.run_int(run.id), STEPS + 1, STEPS))
            return seconds

        async def all_runs() -> list[float]:
            async with engine.worker(five, slots=5 * in_flight):
                with self._site.clock():
                    seconds = await run_concurrently(runs, in_flight, one)
            await check(engine.store, made, checked=CHECKED)
            return seconds

        gc.collect()
        return self._do(all_runs())

    # ----------------------------------------------------------------------------- jobs and submissions

    def figures(self) -> Mapping[str, Callable[[int], int]]:
        """The figures of a queue. Submissions come last, because their jobs remain."""
        return {"jobs": self.jobs, "single_enqueues": self.single, "batch_enqueues": self.batches}

    async def _submit_all(self, count: int, at_a_time: int) -> list[str]:
        made: list[str] = []
        while len(made) < count:
            some = min(at_a_time, count - len(made))
            runs = await asyncio.gather(*(self._engine.start(job, ORDER) for _ in range(some)))
            made += [run.id for run in runs]
        return made

    def jobs(self, count: int) -> int:
        """Process jobs that were submitted before the clock."""
        engine = self._engine

        async def work() -> None:
            runs = await self._submit_all(count, BATCH)
            worker = engine.worker(job, slots=PLAN.workers * PLAN.slots)
            with self._site.clock():
                async with worker:
                    while worker.counts["succeeded"] < count:  # noqa: ASYNC110 - polling costs less than a callback
                        await asyncio.sleep(0.001)
            await check(engine.store, [Expected(ids.run_int(run), 3, 0) for run in runs], checked=CHECKED)

        gc.collect()
        self._do(work())
        return count

    def single(self, count: int) -> int:
        return self._submissions(count, 1)

    def batches(self, count: int) -> int:
        return self._submissions(max(BATCH, count - count % BATCH), BATCH)

    def _submissions(self, count: int, at_a_time: int) -> int:
        async def work() -> None:
            with self._site.clock():
                runs = await self._submit_all(count, at_a_time)
            for run in runs:  # `check` needs runs that have ended; these have no worker
                expect((await self._engine.get(run)).status, "queued", f"status of {run}")

        gc.collect()
        self._do(work())
        return count

    def settings(self) -> Mapping[str, str]:
        return {
            "tenure": metadata.version("tenure"),
            "settings": f"one process with one worker, {self._in_flight} in flight; jobs: {PLAN.workers * PLAN.slots}"
            " slots",
        }

    def close(self) -> None:
        if self._open:
            self._do(self._engine.__aexit__(None, None, None))


if __name__ == "__main__":
    serve(Ours)
