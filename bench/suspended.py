"""Runs that wait for a person: what they cost the process of their worker. Run in a process of its own, as
`python -m bench.suspended DATABASE RUNS`, which prints one JSON object.

Laws:
1. The process is a worker with an engine, as a user's is; its memory is what the kernel says is resident.
2. Load is the share of one cpu that the process takes while nothing happens but waiting.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec
import uvloop

import tenure

AT_ONCE = 500
IDLE_SECONDS = 5.0
PAGE_BYTES = 4096


class Cost(msgspec.Struct, frozen=True):
    """What so many suspended runs cost."""

    runs: int
    megabytes: float
    cpu_share: float


@tenure.step
async def prepare(order: int) -> dict[str, int]:
    """Something done before the question."""
    return {"order": order}


@tenure.workflow
async def ask(order: int) -> dict[str, int]:
    """A step, and a question to a person."""
    made = await prepare(order)
    await tenure.approve("ship it")
    return made


def resident_megabytes() -> float:
    """The memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * PAGE_BYTES / 1e6


async def measured(database: str, runs: int) -> Cost:
    """Suspend so many runs, then look."""
    async with tenure.Engine(database) as engine, engine.worker(ask, slots=AT_ONCE) as worker:
        for first in range(0, runs, AT_ONCE):
            some = range(first, min(first + AT_ONCE, runs))
            await asyncio.gather(*(engine.start(ask, order) for order in some))
        while worker.counts["suspended"] < runs:  # noqa: ASYNC110 - a look costs less than being told
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        cpu, begun = time.process_time(), time.perf_counter()
        await asyncio.sleep(IDLE_SECONDS)
        share = (time.process_time() - cpu) / (time.perf_counter() - begun)
        return Cost(runs, resident_megabytes(), share)


async def in_a_process(database: str, runs: int) -> Cost:
    """The same in a fresh process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.suspended", database, str(runs), stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the measurement ended with {process.returncode}")
    return msgspec.json.decode(answer, type=Cost)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(uvloop.run(measured(sys.argv[1], int(sys.argv[2])))).decode())
