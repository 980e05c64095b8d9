"""Restarted and paused worker processes repeat no step without need. (I57)"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tenure.ids import run_int
from tenure.kernel.run_rows import AttemptRow
from tests.server.stage import site
from tests.worker import drain_flows as flows
from tests.worker.flows import notes, open_gate
from tests.worker.helpers import until, watching
from tests.worker.process import ROOT, WorkerProcess

RUNS = 8
WORKERS = 2


@pytest.mark.guard_seconds(240)
async def test_a_rolling_restart_under_load_repeats_no_step(url: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    async with watching(url) as engine:
        runs = [await engine.start(flows.series, folder, f"run {n}") for n in range(RUNS)]
        workers = [WorkerProcess(url, "tests.worker.drain_flows", slots=4, grace=120) for _ in range(WORKERS)]
        try:
            for worker in workers:
                await until(
                    partial(_is_up, worker), "the worker", 100
                )  # before it is up, the signal would kill it
                await until(partial(_more_than, folder, len(notes(folder)) + 2), "work under way", 100)
                worker.signal(signal.SIGTERM)
                assert await asyncio.to_thread(worker.wait, 130) == 0, worker.text
                assert "work_cut" not in worker.text
                worker.restart()
            for run in runs:
                await engine.see_end(run.id, seconds=100)
        finally:
            for worker in workers:
                worker.__exit__()
        assert [text for text, count in Counter(notes(folder)).items() if count > 1] == []
        assert len(notes(folder)) == RUNS * flows.SERIES


def _is_up(worker: WorkerProcess) -> bool:
    return "worker_started" in worker.text


def _more_than(folder: str, count: int) -> bool:
    return len(notes(folder)) > count


@contextmanager
def remote_worker(address: str, key: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a remote worker in a process."""
    script = (
        "import sys; from tenure.engine.entry_point import run_in_loop; from tenure.engine.worker_process import run_remote_worker;"
        " from tenure.cli.workflows.targets import load_target_definitions;"
        " run_in_loop(run_remote_worker(sys.argv[1], sys.argv[2], load_target_definitions('tests.worker.drain_flows'), name=sys.argv[3]))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", script, address, key, name], env=env, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.guard_seconds(120)
async def test_a_paused_remote_worker_does_not_start_work_from_its_socket(url: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        key = await s.key("runner")

        with remote_worker(s.address, key, "sleeper") as sleeper:
            first = await engine.start(flows.short_single_step, folder, "first")
            await first.result(wait=60)  # the worker is up and waits for its next claim
            sleeper.send_signal(signal.SIGSTOP)
            run = await engine.start(flows.short_single_step, folder, "stale")

            async def granted() -> bool:
                return (await engine.get(run.id)).status == "running"

            await until(granted, "the claim's reply in the worker's socket")
            with remote_worker(s.address, key, "other"):
                await run.result(wait=60)
            sleeper.send_signal(signal.SIGCONT)
            last = await engine.start(flows.short_single_step, folder, "last")
            await last.result(wait=60)
        assert Counter(notes(folder)) == {"first": 1, "stale": 1, "last": 1}


@pytest.mark.guard_seconds(120)
async def test_a_killed_remote_worker_on_the_servers_host_loses_its_leases_immediately(
    url: str, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        key = await s.key("runner")
        run = await engine.start(flows.patient, folder)
        with remote_worker(s.address, key, "same") as worker:
            await until(lambda: "at gate" in notes(folder), "the step")
            worker.kill()
            with remote_worker(s.address, key, "same"):
                await until(lambda: notes(folder).count("at gate") == 2, "the second attempt")
                open_gate(folder, "gate")
                await run.result(wait=60)
        rows: list[AttemptRow] = await engine.store.read("attempts_of", run_int(run.id))
        assert [row.state for row in rows] == ["stale", "succeeded"]
        assert rows[0].ended_at is not None
        assert rows[0].ended_at < rows[0].expires_at, "the lease ended only when it expired"
