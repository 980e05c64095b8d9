"""Worker processes that are asked to end, stopped or killed, and what happens to their work."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.commands import CreateRun
from tests.worker import flows
from tests.worker.helpers import Watched, until, watching
from tests.worker.process import WorkerProcess


def at_the_gate(folder: str, times: int = 1) -> bool:
    """Whether the second step has started this many times."""
    return flows.notes(folder).count("at gate") >= times


# ------------------------------------------------------------------------------------------ asked to end


async def test_a_stopping_worker_finishes_its_step_and_hands_its_run_over(url: str, folder: str) -> None:
    async with watching(url) as engine:
        run = await engine.start(flows.gated, folder)
        with WorkerProcess(url, grace=30) as worker:
            await until(lambda: at_the_gate(folder), "the step")
            worker.signal(signal.SIGTERM)
            await until(lambda: "worker_stopping" in worker.text, "the worker to hear it")
            late = await engine.start(flows.quick, folder, "late")
            flows.open_gate(folder, "gate")
            assert worker.wait() == 0, worker.text
        step = await engine.step(run.id)
        assert (step.state, step.charged) == ("ready", 0)
        assert await engine.attempts(late.id) == []
        async with engine.worker(flows.gated):
            await engine.see_end(run.id)
        assert await engine.attempts(run.id) == ["released", "succeeded"]
        assert flows.notes(folder) == ["first", "at gate", "past gate", "last"]
        await engine.cancel(late.id)


async def test_work_that_does_not_finish_within_the_grace_is_released_without_an_attempt(
    url: str, folder: str
) -> None:
    async with watching(url) as engine:
        run = await engine.start(flows.gated, folder)
        with WorkerProcess(url, grace=0.3) as worker:
            await until(lambda: at_the_gate(folder), "the step")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.text
        step = await engine.step(run.id)
        assert (step.state, step.charged) == ("ready", 0)
        flows.open_gate(folder, "gate")
        async with engine.worker(flows.gated):
            await engine.see_end(run.id)
        assert await engine.attempts(run.id) == ["released", "succeeded"]
        assert flows.notes(folder).count("first") == 1


async def test_a_second_signal_stops_a_worker_immediately(url: str, folder: str) -> None:
    async with watching(url) as engine:
        run = await engine.start(flows.gated, folder)
        with WorkerProcess(url, grace=600) as worker:
            await until(lambda: at_the_gate(folder), "the step")
            worker.signal(signal.SIGTERM)
            await until(lambda: "worker_stopping" in worker.text, "the worker to hear it")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 128 + signal.SIGTERM
        flows.open_gate(folder, "gate")
        async with engine.worker(flows.gated):
            await engine.see_end(run.id)
        assert await engine.attempts(run.id) == ["stale", "succeeded"]


async def test_a_worker_with_a_blocked_loop_reacts_to_the_second_signal(url: str, folder: str) -> None:
    async with watching(url) as engine:
        run = await engine.start(flows.blocking, folder, 600.0)
        with WorkerProcess(url) as worker:
            await until(lambda: "blocking" in flows.notes(folder), "the step")

            def asked_again() -> int | None:
                # A sleeping thread sees two simultaneous signals as one, so the signal is sent again.
                if worker.process.poll() is None:
                    worker.signal(signal.SIGTERM)
                return worker.process.poll()

            assert await until(asked_again, "its end") == 128 + signal.SIGTERM
        await engine.cancel(run.id)
        await engine.see_end(run.id, "canceled")


# ------------------------------------------------------------------------------------ killed and stopped


async def test_another_worker_takes_the_run_of_a_killed_one_after_the_lease(url: str, folder: str) -> None:
    async with watching(url) as engine:
        run = await engine.start(flows.gated, folder)
        with WorkerProcess(url) as worker, WorkerProcess(url, name="heir") as heir:
            await until(lambda: at_the_gate(folder), "the step")
            owner = (await engine.leases(run.id))[0].owner
            (heir if owner == "heir" else worker).signal(signal.SIGKILL)
            await until(lambda: at_the_gate(folder, 2), "the second try")
            flows.open_gate(folder, "gate")
            await engine.see_end(run.id)
        first, second = await engine.leases(run.id)
        assert (first.state, second.state) == ("stale", "succeeded")
        assert first.owner != second.owner
        assert flows.notes(folder).count("first") == 1


async def test_a_worker_that_was_stopped_past_its_lease_is_refused_when_it_resumes(
    url: str, folder: str
) -> None:
    async with watching(url) as engine:
        run = await engine.start(flows.gated, folder)
        with WorkerProcess(url, name="sleeper") as worker:
            await until(lambda: at_the_gate(folder), "the step")
            worker.signal(signal.SIGSTOP)
            async with engine.worker(flows.gated, name="other"):
                await until(lambda: at_the_gate(folder, 2), "the takeover")
                flows.open_gate(folder, "gate")
                await engine.see_end(run.id)
            before = await engine.runs.events(run.id)
            worker.signal(signal.SIGCONT)
            await until(lambda: "worker_started" in worker.text, "its log")
            late = await engine.start(
                flows.quick, folder, "late"
            )  # the worker is alive and continues to work
            await engine.see_end(late.id)
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.text
        assert await engine.attempts(run.id) == ["stale", "succeeded"]
        assert flows.notes(folder).count("last") == 1, "the stopped attempt continued"
        changes = [event for event in await engine.runs.events(run.id) if event not in before]
        assert changes == [], "late messages changed something"


# ------------------------------------------------------------------------------------------------ poison


@pytest.mark.guard_seconds(90)
async def test_a_run_that_kills_its_workers_fails_after_its_tries(url: str, folder: str) -> None:
    async with watching(url) as engine:
        poison = await engine.start(flows.poison, folder)
        with WorkerProcess(url, slots=1) as worker:

            async def over() -> bool:
                if worker.process.poll() is not None:
                    worker.restart()
                return (await engine.get(poison.id)).finished_at is not None

            await until(over, "the end of the poison", 60)
            other = await engine.start(flows.quick, folder, "alive")
            await until(lambda: "alive" in flows.notes(folder) or over(), "the other run", 30)
            await engine.see_end(other.id)
        run = await engine.get(poison.id)
        assert (run.status, run.reason) == ("failed", "STEP_LOST")
        assert await engine.attempts(poison.id) == ["stale"] * 4
        assert flows.notes(folder).count("poison") == 4


async def test_an_invalid_input_fails_its_run_and_not_the_worker(url: str, folder: str) -> None:
    async with watching(url) as engine:
        bad = []
        for body in (b"\xff\xfe not json", b'{"folder": 7}', b"[]", b'{"nobody": "knows"}', None):
            command = CreateRun(
                run_id=engine.orchestrator.new_id("default"),
                tenant="default",
                workflow=flows.quick.name,
                profile="tenure",
                plan=flows.quick.plan,
                input=body,
            )
            bad.append(ids.run_text((await engine.orchestrator.create(command)).run_id))
        good = await engine.start(flows.quick, folder, "good")
        async with engine.worker(flows.quick, slots=1):
            await engine.see_end(good.id)
            for run_id in bad:
                await engine.see_end(run_id, "failed")
                assert (await engine.get(run_id)).reason == "INVALID_INPUT"
                assert await engine.attempts(run_id) == ["failed"]


# ------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no.such.module", "there is no module 'no.such.module'"),
        (f"{flows.__name__}:nobody", "has no registry, workflow or tool 'nobody'"),
        (
            "tests.worker.flows:note",
            "has no registry, workflow or tool 'note'",
        ),
        ("tests.worker.process", "registers nothing"),
    ],
)
def test_a_wrong_target_is_refused_before_the_database_is_opened(
    tmp_path: Path, target: str, message: str
) -> None:
    place = tmp_path / "never.db"
    with WorkerProcess(f"sqlite:{place}", target) as worker:
        assert worker.wait() == 1
        assert TenureError.__name__ in worker.text
        assert message in worker.text
    assert not place.exists()


async def test_a_worker_serves_the_workflow_or_list_it_is_given(tmp_path: Path, folder: str) -> None:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with Watched(url) as engine:
        with WorkerProcess(url, "tests.worker.flows:SOME") as worker:
            await until(lambda: "worker_started" in worker.text, "the worker")
            served = await engine.start(flows.quick, folder, "served")
            other = await engine.start(flows.gated, folder)
            await engine.see_end(served.id)
            assert await engine.attempts(other.id) == []
