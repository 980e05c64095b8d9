"""The measured work: runs that are driven through the orchestrator as a worker drives them.

Laws:
1. Every step is durable before the next step of its run begins: each answer is awaited.
2. A sample lists its runs and how each must have ended. `checking.py` checks all of them.
3. The clock includes the creation of the runs, but not the warm-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from bench.peers.protocol import run_concurrently
from tenure.kernel.commands import Claimant, Complete, CreateRun, RecordCheckpoint, StepSpec
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.orchestrator import Orchestrator

STEPS = 5
INPUT = b'{"order": 4711, "customer": "c-0815", "lines": [1, 2, 3]}'
OUTPUT = b'{"ok": true, "charge": "ch_3OqR2eLkdIwHu7ix", "amount": 1999}'
NAMES = tuple(f"step-{i}" for i in range(STEPS))
SEQUENCE = tuple(StepSpec(name=name) for name in NAMES)
HERE = Claimant("bench")
CLAIM_SECONDS = 1.0


class Expected(msgspec.Struct, frozen=True):
    """The expected end of a run."""

    run_id: int
    events: int
    steps_done: int
    status: str = "succeeded"


class Sample(msgspec.Struct):
    steps: int
    seconds: float
    runs: list[Expected]

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds


# ------------------------------------------------------------------------------------ code-first path


def _recorded(lease: Lease, seq: int, name: str) -> RecordCheckpoint:
    return RecordCheckpoint(
        run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=seq, name=name, output=OUTPUT, arguments=b"\x11" * 8
    )  # fmt: skip


async def checkpoint(orchestrator: Orchestrator, lease: Lease, seq: int, name: str) -> None:
    """Record a durable step of a code-first run."""
    await orchestrator.send(_recorded(lease, seq, name))


async def complete(
    orchestrator: Orchestrator, lease: Lease, seq: int, last: RecordCheckpoint | None = None
) -> None:
    """End a leased step, perhaps with its last checkpoint."""
    await orchestrator.send(
        Complete(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=seq, output=OUTPUT, last=last)
    )


async def start(orchestrator: Orchestrator) -> Lease:
    """Create a code-first run, and claim its body in the same commit."""
    created = await orchestrator.create(
        CreateRun(
            run_id=orchestrator.new_id("default"),
            tenant="tenant-1",
            workflow="bench",
            input=INPUT,
            eager=HERE,
        )
    )
    assert created.lease is not None, "an eager claim succeeds here"
    return created.lease


async def code_first_run(orchestrator: Orchestrator) -> Expected:
    """One lease, five checkpoints, and the end. The last checkpoint is sent with the end, as the SDK does."""
    lease = await start(orchestrator)
    for seq, name in enumerate(NAMES[:-1], start=1):
        await checkpoint(orchestrator, lease, seq, name)
    await complete(orchestrator, lease, STEPS + 1, _recorded(lease, STEPS, NAMES[-1]))
    return Expected(lease.run_id, STEPS + 1, STEPS)


async def code_first(orchestrator: Orchestrator, runs: int, in_flight: int) -> Sample:
    """Five-step runs, many at a time."""
    started = time.perf_counter()
    made = await run_concurrently(runs, in_flight, partial(code_first_run, orchestrator))
    return Sample(runs * STEPS, time.perf_counter() - started, made)


async def lone(orchestrator: Orchestrator, runs: int) -> tuple[list[float], list[Expected]]:
    """Five-step runs, one after another. The first list has the seconds of each run from submit to done."""
    seconds, made = [], []
    for _ in range(runs):
        await asyncio.sleep(0)  # a run that is started alone begins in a new iteration of the loop, too
        started = time.perf_counter()
        made.append(await code_first_run(orchestrator))
        seconds.append(time.perf_counter() - started)
    return seconds, made


# ---------------------------------------------------------------------------------------- leased path


def _ignore(lease: Lease) -> None:
    del lease


class Workers:
    """Worker loops with slots. Each claims steps for its free slots and completes them immediately."""

    def __init__(self, orchestrator: Orchestrator, count: int, slots: int) -> None:
        self._orchestrator = orchestrator
        self._names = [f"bench-{i}" for i in range(count)]
        self._slots = slots
        self.on_step: Callable[[Lease], None] = _ignore
        """Called with every completed step."""

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the workers until `work` is done. A worker that fails ends both."""
        workers = [asyncio.create_task(self._work(name)) for name in self._names]
        other = asyncio.create_task(work)
        try:
            await asyncio.wait([other, *workers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (other, *workers):
                if not task.done():
                    task.cancel()
            ended = await asyncio.gather(other, *workers, return_exceptions=True)
        for result in reversed(ended):  # the failure of a worker is the cause of that of the work
            if isinstance(result, Exception):
                raise result

    async def _work(self, name: str) -> None:
        busy = 0
        freed = asyncio.Event()
        failed: list[BaseException] = []

        def done(lease: Lease, future: asyncio.Future[LeaseReply]) -> None:
            nonlocal busy
            busy -= 1
            freed.set()
            if not future.cancelled() and (error := future.exception()) is not None:
                failed.append(error)
            else:
                self.on_step(lease)

        while not failed:
            free = self._slots - busy
            if free * 4 < self._slots:  # a claim is a commit, so it is for many slots
                freed.clear()
                await freed.wait()
                continue
            leases = await self._orchestrator.claim(name, limit=free, wait_seconds=CLAIM_SECONDS)
            for lease in leases:
                busy += 1
                message = Complete(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1, output=OUTPUT)
                self._orchestrator.submit(message).add_done_callback(partial(done, lease))
        raise failed[0]


async def leased(orchestrator: Orchestrator, runs: int, in_flight: int, workers: int, slots: int) -> Sample:
    """Declared runs of five steps in sequence, each step claimed and completed."""
    open_runs: dict[int, asyncio.Future[None]] = {}
    loop = asyncio.get_running_loop()

    def on_step(lease: Lease) -> None:
        if lease.idx == STEPS - 1:
            open_runs.pop(lease.run_id).set_result(None)

    async def one() -> Expected:
        run_id = orchestrator.new_id("default")
        ended = open_runs[run_id] = loop.create_future()
        created = await orchestrator.create(
            CreateRun(run_id=run_id, tenant="tenant-1", workflow="bench", input=INPUT, plan=SEQUENCE)
        )
        assert created.run_id == run_id, "ids of one process are unique"
        await ended
        return Expected(run_id, 1 + 2 * STEPS, STEPS)

    sample = Sample(runs * STEPS, 0.0, [])

    async def all_runs() -> None:
        started = time.perf_counter()
        sample.runs = await run_concurrently(runs, in_flight, one)
        sample.seconds = time.perf_counter() - started

    pool = Workers(orchestrator, workers, slots)
    pool.on_step = on_step
    await pool.during(all_runs())
    return sample
