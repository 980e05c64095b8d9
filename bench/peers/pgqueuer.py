"""PgQueuer: plain jobs on PostgreSQL, enqueued one at a time or in batches, and processed by one process.

Its tables are durable, which is its default. The bar is stated for batches of 100. Tried settings, in jobs per second at
load 5 on two CPUs (batches of 100 at load 2: 12,800), by turns, the best of each: batches of 50, 100, 200, 500: 4,160,
11,800, 6,680, 5,630; a pool of four connections instead of one: 11,300. CPU seconds per 1,000 jobs: 0.11, 0.08, 0.085,
0.08, 0.09.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from importlib import metadata
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer  # type: ignore[import-not-found]  # lives in the peer's own environment
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver  # type: ignore[import-not-found]  # the same
from pgqueuer.queries import Queries  # type: ignore[import-not-found]  # the same
from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found]  # the same

from bench.peers.protocol import Clock, Peer, Site, expect, serve

ENTRYPOINT = "bench"
PAYLOAD = b'{"order": 4711, "customer": "c-0815", "lines": [1, 2, 3]}'
BATCH = 500


async def no_op(job: object) -> None:
    del job


class PgQueuerJobs(Peer):
    def __init__(self, site: Site) -> None:
        self._site = site
        self._batch = site.number("batch", 100)
        self._driver = site.text("driver", "connection")

    def prepare(self) -> None:
        uvloop.run(self._with_queries(lambda queries: queries.install()))

    async def _with_queries(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        connection = await asyncpg.connect(self._site.dsn)
        try:
            await work(Queries(AsyncpgDriver(connection)))
        finally:
            await connection.close()

    def throughput(self, runs: int) -> int:
        """Process jobs that were enqueued before the clock."""
        uvloop.run(self._throughput(runs))
        return runs

    async def _throughput(self, jobs: int) -> None:
        await self._with_queries(lambda queries: self._fill(queries, jobs))
        pool = None
        if self._driver == "pool":
            pool = await asyncpg.create_pool(self._site.dsn, min_size=4, max_size=4)
            queue = PgQueuer(AsyncpgPoolDriver(pool))
        else:
            queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(self._site.dsn)))
        queue.entrypoint(ENTRYPOINT)(no_op)
        with self._site.clock() as clock:
            logged = _stop_when_logged(queue.qm.queries, clock, jobs)
            await queue.qm.run(batch_size=self._batch, mode=QueueExecutionMode.drain)
        if pool is not None:
            await pool.close()
        expect(logged(), jobs, "jobs logged as done")
        await self._with_queries(_expect_empty)

    async def _fill(self, queries: Any, jobs: int) -> None:
        for first in range(0, jobs, BATCH):
            count = min(BATCH, jobs - first)
            await queries.enqueue([ENTRYPOINT] * count, [PAYLOAD] * count, [0] * count)

    def figures(self) -> Mapping[str, Callable[[int], int]]:
        return {"single_enqueues": self.single, "batch_enqueues": self.batches}

    def single(self, count: int) -> int:
        async def one_by_one(queries: Any) -> None:
            with self._site.clock():
                for _ in range(count):
                    await queries.enqueue(ENTRYPOINT, PAYLOAD)

        uvloop.run(self._emptied(one_by_one))
        return count

    def batches(self, count: int) -> int:
        count = max(BATCH, count - count % BATCH)

        async def batch_by_batch(queries: Any) -> None:
            with self._site.clock():
                await self._fill(queries, count)

        uvloop.run(self._emptied(batch_by_batch))
        return count

    async def _emptied(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        await self._with_queries(work)
        await self._with_queries(lambda queries: queries.clear_queue())

    def settings(self) -> Mapping[str, str]:
        return {
            "pgqueuer": metadata.version("pgqueuer"),
            "settings": f"one process, asyncpg {self._driver}, uvloop, batch {self._batch}",
        }


def _stop_when_logged(queries: Any, clock: Clock, jobs: int) -> Callable[[], int]:
    """Stop the clock when the last job's end is durable, so that the shutdown is not measured. The result returns the number of logged
    jobs."""
    original = queries.log_jobs
    logged = 0

    async def log_jobs(entries: list[Any]) -> None:
        nonlocal logged
        await original(entries)
        logged += sum(status == "successful" for _, status, _ in entries)
        if logged == jobs:
            clock.stop()

    queries.log_jobs = log_jobs
    return lambda: logged


async def _expect_empty(queries: Any) -> None:
    expect(sum(row.count for row in await queries.queue_size()), 0, "jobs left")


if __name__ == "__main__":
    serve(PgQueuerJobs)
