"""Workers in separate processes."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from tenure.kernel.commands import Complete
from tenure.orchestrator import Orchestrator
from tests.conformance.world import Place

IDLE_ROUNDS = 20
"""After this many empty claims, a worker assumes that no work is left."""


async def _work(place: Place, worker: str, limit: int) -> list[tuple[int, int, int]]:
    """Claim and complete until no work is left; the leases."""
    store = place.store()
    await store.open()
    got: list[tuple[int, int, int]] = []
    idle = 0
    async with Orchestrator(store) as orchestrator:
        while idle < IDLE_ROUNDS:
            leases = await orchestrator.claim(worker, limit=limit, wait_seconds=0.1)
            idle = 0 if leases else idle + 1
            for lease in leases:
                await orchestrator.send(Complete(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1))
                got.append((lease.run_id, lease.idx, lease.n))
            if await _left(orchestrator) == 0:
                break
    await store.close()
    return got


async def _left(orchestrator: Orchestrator) -> int:
    queued = await orchestrator.store.read("runs_by_status", "acme", "queued", 1 << 62, 1)
    running = await orchestrator.store.read("runs_by_status", "acme", "running", 1 << 62, 1)
    return len(queued) + len(running)


def _main(place: Place, worker: str, limit: int, answer: Connection) -> None:
    try:
        answer.send(asyncio.run(_work(place, worker, limit)))
    except BaseException as error:
        answer.send(repr(error))
        raise


async def run_worker_processes(place: Place, processes: int, limit: int) -> list[tuple[int, int, int]]:
    """Run this many worker processes until no work is left; the leases of all of them."""
    context = multiprocessing.get_context("spawn")
    started: list[tuple[SpawnProcess, Connection]] = []
    for number in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_main, args=(place, f"worker-{number}", limit, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    loop = asyncio.get_running_loop()
    got: list[tuple[int, int, int]] = []
    for process, answer in started:
        result = await loop.run_in_executor(None, answer.recv)
        await loop.run_in_executor(None, process.join)
        assert isinstance(result, list), f"{process.name}: {result}"
        got += result
    return got
