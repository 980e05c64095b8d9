"""A cancel reaches the code wherever it is, and the run ends whatever the code does."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from tenure.errors import TenureError
from tests.worker import flows
from tests.worker.helpers import Watched, until, watching
from tests.worker.process import ROOT, WorkerProcess

CANCEL = """
import asyncio, sys
from tenure.engine import Engine

async def cancel(url, run_id):
    async with Engine(url, sweep=False) as engine:
        print(await engine.cancel(run_id))

asyncio.run(cancel(*sys.argv[1:]))
"""


def cancel_elsewhere(url: str, run_id: str) -> str:
    """Cancel a run from another process. The result is the new status."""
    command = [sys.executable, "-c", CANCEL, url, run_id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, cwd=ROOT)
    return done.stdout.strip()


@pytest.mark.parametrize("code", [flows.gated, flows.gated_plainly])
async def test_a_step_under_way_is_stopped_at_once_by_its_own_process(
    url: str, folder: str, code: flows.Gated
) -> None:
    async with watching(url) as engine, engine.worker(code) as worker:
        run = await engine.start(code, folder)
        await until(lambda: "at gate" in flows.notes(folder), "the step")
        assert await run.cancel() == "canceling"
        await engine.see_end(run.id, "canceled")
        assert await engine.attempts(run.id) == ["canceled"]
        await until(lambda: "stopped at gate" in flows.notes(folder), "the code to stop")
        await until(lambda: worker.stuck == 0 and not worker.busy, "its slot")
        assert "last" not in flows.notes(folder)


@pytest.mark.parametrize("code", [flows.gated, flows.gated_plainly])
async def test_a_step_under_way_in_another_process_is_stopped_by_the_next_heartbeat(
    url: str, folder: str, code: flows.Gated
) -> None:
    async with watching(url) as engine:
        run = await engine.start(code, folder)
        with WorkerProcess(url) as worker:
            await until(lambda: "at gate" in flows.notes(folder), "the step")
            assert cancel_elsewhere(url, run.id) == "canceling"
            await engine.see_end(run.id, "canceled")
            await until(lambda: "stopped at gate" in flows.notes(folder), "the code to stop")
            assert worker.process.poll() is None
        assert await engine.attempts(run.id) == ["canceled"]
        assert "last" not in flows.notes(folder)


@pytest.mark.parametrize("code", [flows.waiting, flows.waiting_plainly])
async def test_a_run_that_waits_is_canceled_without_a_worker(
    url: str, folder: str, code: flows.Gated
) -> None:
    async with watching(url) as engine:
        async with engine.worker(code) as worker:
            run = await engine.start(code, folder)

            async def waits() -> bool:
                return (await engine.get(run.id)).status == "waiting_external"

            await until(waits, "the run to let go")
            await until(lambda: not worker.busy and worker.stuck == 0, "its slot")
        assert await run.cancel() == "canceled"
        assert flows.notes(folder) == ["first"]


@pytest.mark.parametrize("code", [flows.waiting_beside, flows.backing_off, flows.backing_off_plainly])
async def test_a_run_that_waits_under_its_lease_is_stopped_at_once(
    url: str, folder: str, code: flows.Gated
) -> None:
    async with watching(url) as engine, engine.worker(code) as worker:
        run = await engine.start(code, folder)
        await until(lambda: flows.notes(folder), "the step")
        await run.cancel()
        await engine.see_end(run.id, "canceled")
        assert await engine.attempts(run.id) == ["canceled"]
        await until(lambda: worker.stuck == 0 and not worker.busy, "its slot")
        assert "last" not in flows.notes(folder)


async def test_code_that_does_not_hear_a_cancel_is_canceled_within_the_grace(
    url: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.worker.CANCEL_SHARE", 0.02)
    async with watching(url) as engine, engine.worker(flows.deaf_for_good) as worker:
        run = await engine.start(flows.deaf_for_good, folder)
        await until(lambda: "at deaf" in flows.notes(folder), "the step")
        await run.cancel()
        await engine.see_end(run.id, "canceled")
        assert await engine.attempts(run.id) == ["canceled"]
        assert worker.stuck == 1, "it keeps its slot"
        flows.open_gate(folder, "deaf")
        await until(lambda: worker.stuck == 0, "its end")
        assert "after" not in flows.notes(folder)


async def test_a_canceled_run_may_clean_up_and_record_it(url: str, folder: str) -> None:
    async with watching(url) as engine, engine.worker(flows.tidy):
        run = await engine.start(flows.tidy, folder)
        await until(lambda: "at gate" in flows.notes(folder), "the step")
        await run.cancel()
        await engine.see_end(run.id, "canceled")
        assert flows.notes(folder)[-1] == "cleaned up"
        rows = await engine.store.read("checkpoints_of", (await engine.step(run.id)).run_id)
        assert {row.name for row in rows} == {"first", "clean"}


async def test_cancel_and_completion_race_to_one_outcome(url: str, folder: str) -> None:
    flows.open_gate(folder, "gate")
    async with watching(url) as engine, Watched(url) as other, engine.worker(flows.gated):
        for _ in range(10):
            run = await engine.start(flows.gated, folder)
            outcome = await _cancel(other, run.id)
            await until(partial(_is_over, engine, run.id), "its end")
            assert (await engine.get(run.id)).status == outcome
            assert await engine.attempts(run.id) in ([outcome], [])


async def _cancel(engine: Watched, run_id: str) -> str:
    """Cancel a run. The result is the status in which the run must end: `succeeded` if the cancel comes too late."""
    try:
        await engine.cancel(run_id)
    except TenureError as refused:
        if refused.code != "RUN_TERMINAL_STATE":
            raise
        return "succeeded"
    return "canceled"


async def _is_over(engine: Watched, run_id: str) -> bool:
    return (await engine.get(run_id)).finished_at is not None
