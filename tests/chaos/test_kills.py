"""Failure 6: after many SIGKILLs at random points, every run ends correctly and no step ran too often."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from tenure.engine.run_handle import RunHandle
from tests.worker import flows
from tests.worker.helpers import Watched, until, watching
from tests.worker.process import WorkerProcess

KILLS = 16
RUNS_PER_KILL = 8


@pytest.mark.guard_seconds(180)
async def test_kills_at_random_points_end_every_run_and_repeat_no_step_too_often(
    url: str, folder: str
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    async with watching(url) as engine:
        runs: list[RunHandle[Any]] = []
        with ExitStack() as stack:
            workers = [
                stack.enter_context(WorkerProcess(url, "tests.worker.flows:slow_pair", slots=6))
                for _ in range(2)
            ]

            async def kill_one() -> None:
                worker = chance.choice(workers)
                await until(partial(_is_up, worker), "a worker")
                for _ in range(RUNS_PER_KILL):
                    runs.append(await engine.start(flows.slow_pair, folder, f"r{len(runs)}"))
                await asyncio.sleep(chance.uniform(0.0, 0.5))
                worker.signal(signal.SIGKILL)
                worker.restart()

            for _ in range(KILLS):
                await kill_one()
            for run in runs:
                await until(partial(_has_ended, engine, run.id), f"{run.id} (seed {seed})", 60)
            for worker in workers:
                await until(partial(_is_up, worker), "a worker")
                worker.signal(signal.SIGTERM)
            assert [worker.wait(30) for worker in workers] == [0, 0]
        counts = Counter(flows.notes(folder))
        ended: Counter[str] = Counter()
        lost = 0
        for n, run in enumerate(runs):
            row = await engine.get(run.id)
            ended[f"{row.status} {row.reason}"] += 1
            lost += (await engine.attempts(run.id)).count("stale")
            assert counts[f"r{n} b"] <= 1, f"an unrepeatable step was repeated (seed {seed})"
            if row.status == "succeeded":
                assert all(counts[f"r{n} {part}"] >= 1 for part in "abc"), f"a step was lost (seed {seed})"
            else:  # killed between the start and the end of the unrepeatable step
                assert row.reason == "RUN_RESUME_FAILED", f"{row.status} {row.reason} (seed {seed})"
        assert sum(n for how, n in ended.items() if how.startswith("succeeded")) > len(runs) // 2, ended
        assert lost >= KILLS // 2, f"too few steps were running at the kills (seed {seed})"


async def _has_ended(engine: Watched, run_id: str) -> bool:
    return (await engine.get(run_id)).finished_at is not None


def _is_up(worker: WorkerProcess) -> bool:
    return "worker_started" in worker.text
