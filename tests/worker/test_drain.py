"""A worker that ends: it starts no step, lets running steps finish, and hands its runs over immediately."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenure.sdk import Workflow
from tenure.worker import Worker
from tenure.worker import worker as worker_module
from tests.worker import drain_flows as flows
from tests.worker.flows import backing_off, notes, open_gate
from tests.worker.helpers import Watched, until, watching

GRACE_SECONDS = 600.0
"""Longer than the test may take, so that a test that waits for it fails."""
Flow = Workflow[..., Any]


@asynccontextmanager
async def ending(url: str, *served: Any, slots: int = 100) -> AsyncIterator[Worker]:
    """A worker in its own engine. The test ends the worker."""
    async with Watched(url, sweep=False) as engine:
        worker = engine.worker(*served, name="ending", slots=slots)
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop(0)


@pytest.mark.parametrize("code", [flows.once, flows.once_plainly, flows.once_apart], ids=lambda c: c.name)
async def test_a_draining_worker_hands_a_run_over_after_its_step_and_no_step_starts_twice(
    url: str, folder: str, code: Flow
) -> None:
    async with watching(url) as engine, ending(url, code) as worker:
        run = await engine.start(code, folder)
        await until(lambda: "at gate" in notes(folder), "the step")
        stopping = asyncio.ensure_future(worker.stop(GRACE_SECONDS))
        await until(lambda: worker._stopping, "the drain")
        open_gate(folder, "gate")
        await stopping
        step = await engine.step(run.id)
        assert (step.state, step.charged, step.unsafe) == ("ready", 0, 0)
        assert notes(folder) == ["first", "at gate", "past gate"]
        async with engine.worker(code, name="heir"):
            await engine.see_end(run.id)
        assert notes(folder) == ["first", "at gate", "past gate", "last"]
        assert await engine.attempts(run.id) == ["released", "succeeded"]


async def test_a_run_that_was_handed_over_wakes_another_worker(
    url: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        worker_module, "CLAIM_WAIT_SECONDS", 600.0
    )  # so that only a wake-up starts the next claim
    async with watching(url, sweep=False) as engine, ending(url, flows.once) as worker:
        run = await engine.start(flows.once, folder)
        await until(lambda: "at gate" in notes(folder), "the step")
        async with engine.worker(flows.once, name="heir"):
            stopping = asyncio.ensure_future(worker.stop(GRACE_SECONDS))
            await until(lambda: worker._stopping, "the drain")
            open_gate(folder, "gate")
            await engine.see_end(run.id, seconds=20)
            await stopping
        assert [lease.owner for lease in await engine.leases(run.id)] == ["ending", "heir"]


async def test_steps_that_wait_for_a_thread_are_neither_started_nor_lost(url: str, folder: str) -> None:
    async with watching(url) as engine, ending(url, flows.crowd, slots=2) as worker:
        run = await engine.start(flows.crowd, folder, 6)
        await until(lambda: len(notes(folder)) == 2, "the first two")
        stopping = asyncio.ensure_future(worker.stop(GRACE_SECONDS))
        await until(lambda: worker._stopping, "the drain")
        open_gate(folder, "gate")
        await stopping
        assert len(notes(folder)) == 2, "a step started after the worker was asked to end"
        assert (await engine.step(run.id)).unsafe == 0
        async with engine.worker(flows.crowd):
            await engine.see_end(run.id)
        assert sorted(notes(folder)) == [*(f"item {n}" for n in range(6)), "last"]


@pytest.mark.parametrize(
    "code", [flows.napping, backing_off, flows.away, flows.away_plainly], ids=lambda c: c.name
)
async def test_a_run_that_only_sleeps_is_handed_over_at_once(url: str, folder: str, code: Flow) -> None:
    async with watching(url) as engine, ending(url, code) as worker:
        run = await engine.start(code, folder)
        await until(lambda: notes(folder), "its first step")

        async def rests() -> bool:
            (session,) = worker._sessions.values()
            return session.execution is not None and not session.execution.steps.running

        await until(rests, "its pause")
        await worker.stop(GRACE_SECONDS)
        assert await engine.attempts(run.id) == ["released"]
        assert len(notes(folder)) == 1
        open_gate(folder, "gate")
        await engine.cancel(run.id)


async def test_a_run_that_only_waits_when_its_step_has_ended_is_suspended(url: str, folder: str) -> None:
    async with watching(url) as engine, ending(url, flows.step_and_wait) as worker:
        run = await engine.start(flows.step_and_wait, folder)
        await until(lambda: "at gate" in notes(folder), "the step")
        stopping = asyncio.ensure_future(worker.stop(GRACE_SECONDS))
        await until(lambda: worker._stopping, "the drain")
        open_gate(folder, "gate")
        await stopping
        assert (await engine.get(run.id)).status == "waiting_external"
        await engine.signal(run.id, "go", 5)
        async with engine.worker(flows.step_and_wait):
            assert await run.result(wait=30) == ["gate", 5]
        assert notes(folder) == ["at gate", "past gate"]


async def test_no_child_is_started_by_a_worker_that_ends(url: str, folder: str) -> None:
    async with watching(url) as engine, ending(url, flows.late_parent) as worker:
        run = await engine.start(flows.late_parent, folder)
        await until(lambda: "at gate" in notes(folder), "the step")
        stopping = asyncio.ensure_future(worker.stop(GRACE_SECONDS))
        await until(lambda: worker._stopping, "the drain")
        open_gate(folder, "gate")
        await stopping
        assert [line.id for line in await engine.runs.list()] == [run.id]
        async with engine.worker(flows.late_parent, flows.late_child):
            assert await run.result(wait=30) == 7


async def test_a_step_of_a_plan_ends_within_the_grace(url: str, folder: str) -> None:
    async with watching(url) as engine, ending(url, flows.wait_as_a_tool) as worker:
        plan = [{"name": "one", "tool": "drain.wait", "input": {"folder": folder}}]
        run_id = await engine.create("planned", plan)
        await until(lambda: "at gate" in notes(folder), "the step")
        stopping = asyncio.ensure_future(worker.stop(GRACE_SECONDS))
        await until(lambda: worker._stopping, "the drain")
        open_gate(folder, "gate")
        await stopping
        await engine.see_end(run_id)
        assert notes(folder) == ["at gate", "past gate"]


# --------------------------------------------------------------------------------- the end of the grace period


@pytest.mark.parametrize(("how", "begun"), [("done", 1), ("not done", 2)])
async def test_code_that_is_cut_off_may_report_its_outcome(
    url: str, folder: str, how: str, begun: int
) -> None:
    async with watching(url) as engine, ending(url, flows.cut) as worker:
        run = await engine.start(flows.cut, folder, how)
        await until(lambda: notes(folder), "the step")
        await worker.stop(0)
        open_gate(folder, "gate")
        async with engine.worker(flows.cut):
            await engine.see_end(run.id)
        assert notes(folder) == [f"begun {how}"] * begun + ["last"]


@pytest.mark.parametrize("code", [flows.cut_in_a_thread, flows.cut_plainly], ids=lambda c: c.name)
async def test_code_in_a_thread_that_is_cut_off_may_report_its_outcome(
    url: str, folder: str, code: Flow
) -> None:
    async with watching(url) as engine, ending(url, code) as worker:
        run = await engine.start(code, folder)
        await until(lambda: notes(folder), "the step")
        await worker.stop(0)
        open_gate(folder, "gate")
        async with engine.worker(code):
            await engine.see_end(run.id)
        assert notes(folder) == ["begun", "begun"]


async def test_a_cut_step_without_an_outcome_that_may_not_be_repeated_fails_its_run(
    url: str, folder: str
) -> None:
    async with watching(url) as engine, ending(url, flows.cut) as worker:
        run = await engine.start(flows.cut, folder, "who knows")
        await until(lambda: notes(folder), "the step")
        await worker.stop(0)
        await engine.see_end(run.id, "failed")
        assert (await engine.get(run.id)).reason == "RUN_RESUME_FAILED"
