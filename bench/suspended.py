"""Measures what runs that wait for a person cost the process of their worker.

    python -m bench.suspended DATABASE RUNS     # prints one JSON object

Laws:
1. The process is a worker with an engine, like a user's. Its memory is its resident memory.
2. Load is the share of one CPU that the process uses while all runs wait.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import uvloop

import tenure
from bench.service import run_module

AT_ONCE = 500
IDLE_SECONDS = 5.0
PAGE_BYTES = 4096


class Cost(msgspec.Struct, frozen=True):
    runs: int
    megabytes: float
    cpu_share: float


@tenure.step
async def prepare(order: int) -> dict[str, int]:
    return {"order": order}


@tenure.workflow
async def ask(order: int) -> dict[str, int]:
    made = await prepare(order)
    await tenure.approve("ship it")
    return made


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 1e6


async def measure(database: str, runs: int) -> Cost:
    """Suspend the runs, and measure the idle process."""
    async with tenure.Engine(database) as engine, engine.worker(ask, slots=AT_ONCE) as worker:
        for first in range(0, runs, AT_ONCE):
            some = range(first, min(first + AT_ONCE, runs))
            await asyncio.gather(*(engine.start(ask, order) for order in some))
        while worker.counts["suspended"] < runs:  # noqa: ASYNC110 - polling costs less than a callback per run
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        cpu, begun = time.process_time(), time.perf_counter()
        await asyncio.sleep(IDLE_SECONDS)
        share = (time.process_time() - cpu) / (time.perf_counter() - begun)
        return Cost(runs, resident_megabytes(), share)


async def measure_in_process(database: str, runs: int) -> Cost:
    """`measure` in a fresh process."""
    return await run_module(Cost, "bench.suspended", database, str(runs))


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(measure(sys.argv[1], int(sys.argv[2])))).decode())
