"""A planner in a worker's own process: its tool returns the jobs of the run. It may fail, be killed, or take too long."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tenure import ids
from tenure.clock import us
from tenure.errors import TenureError
from tenure.worker.worker import Worker
from tests.profile_words import run_words
from tests.worker import planning_flows
from tests.worker.flows import notes, open_gate
from tests.worker.helpers import Watched, until, watching
from tests.worker.process import WorkerProcess

TARGET = "tests.worker.planning_flows"


async def trigger(engine: Watched, folder: Path, *changed: str, **how: Any) -> str:
    """A run of a change: its planner gets the changed folders."""
    given = {"folder": str(folder), "changed": list(changed), **how}
    planner = {"tool": "tests.plan_change", "retries": 2}
    return await engine.create("ci", planner=planner, input=given, profile="delta-ci")


async def words(engine: Watched, run: str) -> list[str]:
    return run_words("delta-ci", await engine.store.read("events_of", ids.run_int(run)))


@pytest.mark.clause("DCI-02")
async def test_a_planner_in_another_process_turns_the_trigger_into_jobs(url: str, tmp_path: Path) -> None:
    async with watching(url) as engine:
        run = await trigger(engine, tmp_path, "lib", "docs")
        assert (await engine.get(run)).shown == "PLANNING"
        with WorkerProcess(url, TARGET):
            await engine.see_end(run)
        steps = await engine.runs.steps(run)
        assert {step.name: step.output for step in steps} == {
            "lint": "lint",
            "test": "test",
            "spell": "spell",
        }
        shown = await engine.get(run)
        assert (shown.steps_total, shown.steps_done) == (3, 3)
        assert await words(engine, run) == ["CREATED", "PLANNING", "QUEUED", "RUNNING", "SUCCESS"]
        assert {"lint", "test", "spell"} < set(notes(str(tmp_path)))


@pytest.mark.clause("DCI-02")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("ci.yaml", "CONFIG_INVALID: ci.yaml:3:1: 'stepz' is unknown"),
        ("names", "PLAN_INVALID: the planner 'tests.plan_change' must return a list of steps, not dict"),
        ("twice", "PLAN_INVALID: there are two steps named 'a'"),
    ],
)
async def test_a_planner_that_fails_ends_its_run(
    url: str, tmp_path: Path, changed: str, message: str
) -> None:
    async with watching(url) as engine:
        run = await trigger(engine, tmp_path, changed)
        with WorkerProcess(url, TARGET):
            await engine.see_end(run, "failed")
        shown = await engine.get(run)
        assert (shown.reason, shown.error, shown.steps_total) == ("PLAN_FAILED", message, 0)
        assert await words(engine, run) == ["CREATED", "PLANNING", "PLAN_FAILED", "FAILED"]
        with pytest.raises(TenureError, match="PLAN_FAILED"):
            await engine.result(run)


@pytest.mark.clause("DCI-02")
async def test_a_planner_that_is_silent_for_too_long_ends_its_run(url: str, tmp_path: Path) -> None:
    async with watching(url) as engine:
        run = await trigger(engine, tmp_path, "lib", wait=True)
        with WorkerProcess(url, TARGET):
            await until(lambda: notes(str(tmp_path)), "the planner")
            assert "plans it with 'tests.plan_change'" in (await engine.runs.explain(run)).text
            engine.store.shift_clock(us(1_801))
            await engine.see_end(run, "failed")
            open_gate(str(tmp_path), "gate")
        assert (await engine.get(run)).error == "the planner took too long"
        assert await words(engine, run) == ["CREATED", "PLANNING", "PLAN_FAILED", "FAILED"]


async def test_a_planner_that_is_killed_is_replaced(url: str, tmp_path: Path) -> None:
    async with watching(url) as engine:
        run = await trigger(engine, tmp_path, "docs", wait=True)
        with WorkerProcess(url, TARGET) as first:
            await until(lambda: notes(str(tmp_path)), "the first planner")
            first.signal(signal.SIGKILL)
            first.wait()
        engine.store.shift_clock(us(61))  # its lease ends, unless its death was proven before
        open_gate(str(tmp_path), "gate")
        with WorkerProcess(url, TARGET):
            await engine.see_end(run)
        assert [step.name for step in await engine.runs.steps(run)] == ["spell"]
        assert len({note for note in notes(str(tmp_path)) if note.startswith("plan ")}) == 2


async def test_a_change_that_needs_no_job_succeeds_without_one(url: str, tmp_path: Path) -> None:
    async with watching(url) as engine:
        run = await trigger(engine, tmp_path, "nothing")
        async with Worker(engine.work_source, planning_flows.plan_change):
            await engine.see_end(run)
        assert await engine.runs.steps(run) == []


async def test_a_canceled_planner_stops(url: str, tmp_path: Path) -> None:
    async with watching(url) as engine:
        run = await trigger(engine, tmp_path, "lib", wait=True)
        async with Worker(engine.work_source, planning_flows.plan_change):
            await until(lambda: notes(str(tmp_path)), "the planner")
            assert await engine.cancel(run) == "canceling"
            await engine.see_end(run, "canceled")
            open_gate(str(tmp_path), "gate")
        assert await words(engine, run) == ["CREATED", "PLANNING", "CANCEL_REQUESTED", "CANCELED"]


async def test_a_worker_without_the_planners_tool_leaves_the_run_alone(url: str, tmp_path: Path) -> None:
    async with watching(url) as engine:
        run = await trigger(engine, tmp_path, "lib")
        async with Worker(engine.work_source, planning_flows.do_job):
            text = (await engine.runs.explain(run)).text
        assert "waits for a worker that serves the queue 'default|tool:tests.plan_change'" in text
        await engine.cancel(run)


async def test_a_run_has_a_plan_or_a_planner(url: str) -> None:
    async with watching(url) as engine:
        for wrong in ({}, {"plan": [{"name": "a"}], "planner": {"tool": "t"}}):
            with pytest.raises(TenureError, match="either a plan or a planner"):
                await engine.create("w", **wrong)  # type: ignore[arg-type]  # wrong on purpose
        for planner in ({}, {"tool": "t", "steps": []}, {"tool": "a|b"}, {"tool": "t", "timeout": "soon"}):
            with pytest.raises(TenureError):
                await engine.create("w", planner=planner)
        assert await engine.runs.list() == []
