"""Failure 25: eight processes on one SQLite file. No process reports a locked database, and every run ends once."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.worker import flows
from tests.worker.helpers import until, watching
from tests.worker.process import WorkerProcess

PROCESSES = 8
RUNS = 300


@pytest.mark.guard_seconds(120)
async def test_eight_workers_on_one_file_end_every_run_once(tmp_path: Path, folder: str) -> None:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with watching(url) as engine:
        with ExitStack() as stack:
            workers = [
                stack.enter_context(WorkerProcess(url, "tests.worker.flows:patient_pair", slots=10))
                for _ in range(PROCESSES)
            ]
            await until(lambda: all("worker_started" in each.text for each in workers), "eight workers", 60)
            starting = (engine.start(flows.patient_pair, folder, f"r{n}") for n in range(RUNS))
            runs = await asyncio.gather(*starting)
            for run in runs:
                await engine.see_end(run.id, seconds=90)
            for worker in workers:
                worker.signal(signal.SIGTERM)
            assert [worker.wait(30) for worker in workers] == [0] * PROCESSES
            output = "\n".join(worker.text for worker in workers).lower()
        assert "locked" not in output
        assert "busy" not in output
        assert "failed" not in output.replace("failed=0", "")
        counts = Counter(flows.notes(folder))
        assert set(counts) == {f"r{n} {part}" for n in range(RUNS) for part in "abc"}
        assert set(counts.values()) == {1}, "a step ran twice although nothing was lost"
        owners = set()
        for run in runs:
            (attempt,) = await engine.leases(run.id)
            owners.add(attempt.owner)
        assert len(owners) > 1, "the work was not shared"
