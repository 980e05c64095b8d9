"""The in-process worker: tries again, obeys, is survived."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tenure.embedded import BackoffSpec, Job, StepSpec, ToolError, Worker
from tenure.errors import TenureError
from tenure.limits import PAYLOAD_BYTES_MAX
from tests.embedded.stage import Stage, stage

AT_ONCE = BackoffSpec((0.0,), jitter=0.0)


async def until(met: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about; the test's guard is the limit."""
    while not met():  # noqa: ASYNC110 - a counter of the worker's has no event
        await asyncio.sleep(0.002)


async def ended(engine: Stage, run_id: str) -> tuple[str, str | None]:
    with contextlib.suppress(TenureError):
        await engine.result(run_id, wait=None)
    view = await engine.get(run_id)
    return view.status, view.reason


@pytest.mark.parametrize("threaded", [False, True], ids=["async", "thread"])
async def test_a_failed_try_is_made_again(url: str, threaded: bool) -> None:
    seen: list[tuple[int, str, bool]] = []

    def work(job: Job) -> Any:
        in_thread = threading.current_thread() is not threading.main_thread()
        seen.append((job.attempt, job.key, in_thread))
        if job.attempt < 3:
            raise ToolError("FLAKY", f"try {job.attempt}", retryable=True)
        return {"n": job.input, "run": job.run_id}

    async def async_work(job: Job) -> Any:
        return work(job)

    async with stage(url) as engine, Worker(engine, {"build": work if threaded else async_work}) as worker:
        run = await engine.create("w", [StepSpec(name="build", backoff=AT_ONCE)], input=5)
        assert await engine.result(run, wait=20) == {"n": 5, "run": run}
        assert [attempt for attempt, _, _ in seen] == [1, 2, 3]
        assert {key for _, key, _ in seen} == {f"{run}/build"}
        assert {in_thread for _, _, in_thread in seen} == {threaded}
        assert (worker.claimed, worker.failed, worker.succeeded) == (3, 2, 1)
        assert (await engine.steps(run))[0].error == "try 2"


async def test_failures_are_classified_by_the_tool_or_by_the_profile(url: str) -> None:
    async def final(_: Job) -> None:
        raise ToolError("NETWORK_DOWN", "gone", retryable=False)

    async def surprise(_: Job) -> None:
        raise KeyError("where")

    async def huge(_: Job) -> str:
        return "x" * PAYLOAD_BYTES_MAX

    async def odd(_: Job) -> object:
        return object()

    async def ours(_: Job) -> None:
        raise TenureError("INVALID_INPUT", "no")

    tools = {"final": final, "surprise": surprise, "huge": huge, "odd": odd, "ours": ours}
    async with stage(url) as engine, Worker(engine, tools):
        runs = {name: await engine.create("w", [StepSpec(name=name)], profile="delta-ci") for name in tools}
        ends = {name: await ended(engine, run) for name, run in runs.items()}
        assert ends == {
            "final": ("failed", "NETWORK_DOWN"),
            "surprise": ("failed", "STEP_FAILED"),
            "huge": ("failed", "PAYLOAD_TOO_LARGE"),
            "odd": ("failed", "INVALID_INPUT"),
            "ours": ("failed", "INVALID_INPUT"),
        }
        assert (await engine.get(runs["surprise"])).error == "KeyError: 'where'"
        assert {(await engine.steps(run))[0].attempt for run in runs.values()} == {1}


async def test_a_cancel_interrupts_an_async_tool(url: str) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def work(job: Job) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            assert job.canceled
            stopped.set()
            raise

    async with stage(url) as engine, Worker(engine, {"build": work}) as worker:
        run = await engine.create("w", [StepSpec(name="build")])
        await begun.wait()
        assert await engine.cancel(run) == "canceling"
        assert await ended(engine, run) == ("canceled", "RUN_CANCELED")
        assert stopped.is_set()
        await until(lambda: worker.canceled == 1)
        (attempt,) = await engine.store.read(
            "attempts_of", (await engine.store.read("run_ids_after", 0, 1))[0].run_id
        )
        assert (attempt.state, attempt.lease) == ("canceled", "canceled"), "acknowledged, not given up"


async def test_one_step_is_canceled_and_its_siblings_go_on(url: str) -> None:
    begun = asyncio.Event()

    async def slow(_: Job) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def quick(_: Job) -> str:
        await begun.wait()
        return "done"

    async with stage(url) as engine, Worker(engine, {"slow": slow, "quick": quick}):
        run = await engine.create(
            "w", [StepSpec(name="slow", required=False), StepSpec(name="quick", needs=())]
        )
        await begun.wait()
        await engine.cancel_step(run, "slow")
        assert await ended(engine, run) == ("succeeded", "done")
        assert await engine.names(run) == {"slow": "canceled", "quick": "succeeded"}


async def test_a_thread_is_told_and_its_late_result_does_not_count(url: str) -> None:
    begun = threading.Event()

    def work(job: Job) -> str:
        begun.set()
        while not job.canceled:
            threading.Event().wait(0.002)
        return "stopped early"

    async with stage(url) as engine, Worker(engine, {"build": work}) as worker:
        run = await engine.create("w", [StepSpec(name="build")])
        await until(begun.is_set)
        await engine.cancel(run)
        assert await ended(engine, run) == ("canceled", "RUN_CANCELED")
        await until(lambda: worker.canceled == 1)
        assert worker.succeeded == 0
        (evidence,) = [e for e in await engine.events(run) if "late_result" in e.context]
        assert evidence.kind == "complete"


async def test_a_killed_workers_step_is_taken_over(url: str) -> None:
    begun = asyncio.Event()
    tries: list[tuple[str, int]] = []

    def tool_of(name: str) -> Any:
        async def work(job: Job) -> str:
            tries.append((name, job.attempt))
            begun.set()
            if name == "first":
                await asyncio.sleep(3600)
            return name

        return work

    async with stage(url) as engine:
        run = await engine.create("w", [StepSpec(name="build")])
        first = Worker(engine, {"build": tool_of("first")}, name="first")
        first.start()
        await begun.wait()
        assert first.kill() == [(run, "build")]
        await first.stop()
        assert (await engine.why(run)).text == "Step 'build' is being worked on by first (try 1)."
        async with Worker(engine, {"build": tool_of("second")}, name="second"):
            await engine.later(29)
            assert (await engine.steps(run))[0].attempt == 1, "its lease is not over yet"
            await engine.later(2)
            assert await engine.result(run, wait=10) == "second"
        assert tries == [("first", 1), ("second", 2)]
        attempts = [(s.attempt, s.worker) for s in await engine.steps(run)]
        assert attempts == [(2, "second")]


async def test_a_worker_that_lost_its_lease_is_not_heard(url: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: Job) -> str:
        begun.set()
        await go_on.wait()
        return "the loser"

    async def quick(_: Job) -> str:
        return "the winner"

    async with stage(url) as engine:
        run = await engine.create("w", [StepSpec(name="build")])
        async with Worker(engine, {"build": slow}, slots=1) as loser:
            await begun.wait()
            await engine.later(31)
            async with Worker(engine, {"build": quick}):
                assert await engine.result(run, wait=10) == "the winner"
            go_on.set()
            await until(lambda: loser.lost == 1)
        assert loser.succeeded == 0
        assert await engine.result(run) == "the winner"


async def test_heartbeats_keep_a_lease_longer_than_its_length(url: str) -> None:
    async def work(job: Job) -> int:
        job.progress("half way")
        await asyncio.sleep(1.5)
        return job.attempt

    async with stage(url) as engine, Worker(engine, {"build": work}):
        run = await engine.create("w", [StepSpec(name="build", lease_seconds=1.0)])
        for _ in range(12):
            await asyncio.sleep(0.1)
            await engine.settle()
        assert "half way" in (await engine.why(run)).text
        assert await engine.result(run, wait=10) == 1


async def test_a_stopped_worker_gives_back_what_is_unfinished(url: str) -> None:
    begun = asyncio.Event()

    async def work(_: Job) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async with stage(url) as engine:
        run = await engine.create("w", [StepSpec(name="build")])
        async with Worker(engine, {"build": work}) as worker:
            await begun.wait()
        assert worker.released == 1
        assert engine.workers == set()
        lease = await engine.claim()
        (step,) = await engine.store.read("steps_of", lease.run_id)
        assert (step.attempt, step.charged) == (2, 1), "the charge of the first try was given back"
        await engine.complete(lease)
        assert (await engine.get(run)).status == "succeeded"


async def test_slots_and_queues_bound_what_a_worker_takes(url: str) -> None:
    at_work = most = 0

    async def work(_: Job) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.01)
        at_work -= 1

    async with stage(url) as engine:
        mine = [await engine.create("w", [StepSpec(name="a", queue="mine")]) for _ in range(9)]
        other = await engine.create("w", [StepSpec(name="a")])
        async with Worker(engine, {"a": work}, slots=3, queues=["mine"]):
            for run in mine:
                await engine.result(run, wait=20)
        assert most == 3
        assert (await engine.get(other)).status == "queued"
        with pytest.raises(TenureError, match="at least one slot"):
            Worker(engine, {}, slots=0)
