"""Plans of steps, executed by workers that have the tools: a tool's input, its outcome, and data that is never evaluated."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.engine import BackoffSpec, StepSpec
from tenure.errors import TenureError
from tenure.sdk.definitions import Tool, Workflow
from tests.worker.helpers import Watched, watching

AT_ONCE = BackoffSpec((0.0,), jitter=0.0)


async def ended(engine: Watched, run_id: str) -> tuple[str, str | None]:
    with contextlib.suppress(TenureError):
        await engine.result(run_id, wait=None)
    view = await engine.get(run_id)
    return view.status, view.reason


@pytest.mark.parametrize("threaded", [False, True], ids=["async", "thread"])
async def test_a_failed_try_is_retried(url: str, threaded: bool) -> None:
    seen: list[tuple[int, str, bool]] = []

    def work(n: int) -> dict[str, Any]:
        here = tenure.current()
        in_thread = threading.current_thread() is not threading.main_thread()
        seen.append((here.attempt, here.key, in_thread))
        if here.attempt < 3:
            raise tenure.Failure("FLAKY", f"try {here.attempt}", retryable=True)
        return {"n": n, "run": here.run_id}

    async def async_work(n: int) -> dict[str, Any]:
        return work(n)

    async with watching(url) as engine, engine.worker(Tool(work if threaded else async_work, "build")):
        run = await engine.create("w", [StepSpec(name="build", backoff=AT_ONCE)], input={"n": 5})
        assert await engine.result(run, wait=20) == {"n": 5, "run": run}
        assert [attempt for attempt, _, _ in seen] == [1, 2, 3]
        assert {key for _, key, _ in seen} == {f"{run}/build"}
        assert {in_thread for _, _, in_thread in seen} == {threaded}
        assert (await engine.runs.steps(run))[0].error == "try 2"


async def test_failures_are_classified_by_the_tool_or_by_the_profile(url: str) -> None:
    async def final() -> None:
        raise tenure.Failure("NETWORK_DOWN", "gone", retryable=False)

    async def surprise() -> None:
        raise KeyError("where")

    async def odd() -> object:
        return object()

    tools = [Tool(each, each.__name__) for each in (final, surprise, odd)]
    async with watching(url) as engine, engine.worker(*tools):
        plans = {each.name: [StepSpec(name="it", tool=each.name)] for each in tools}
        runs = {name: await engine.create("w", plan, profile="delta-ci") for name, plan in plans.items()}
        ends = {name: await ended(engine, run) for name, run in runs.items()}
        assert ends == {
            "final": ("failed", "NETWORK_DOWN"),
            "surprise": ("failed", "STEP_FAILED"),
            "odd": ("failed", "INVALID_INPUT"),
        }
        assert "KeyError: 'where'" in str((await engine.get(runs["surprise"])).error)
        assert {(await engine.runs.steps(run))[0].attempt for run in runs.values()} == {1}


async def test_a_step_has_its_own_input_or_that_of_the_run(url: str) -> None:
    async def greet(name: str, loud: bool = False) -> str:
        return f"{name}{'!' if loud else ''}"

    async with watching(url) as engine, engine.worker(Tool(greet, "greet")):
        plan: list[dict[str, Any]] = [
            {"name": "greet"},
            {"name": "again", "tool": "greet", "input": {"name": "Bob", "loud": True}},
        ]
        run = await engine.create("w", plan, input={"name": "Ada"})
        await engine.see_end(run)
        assert [step.output for step in await engine.runs.steps(run)] == ["Ada", "Bob!"]
        addressed = await engine.create(
            "w", [{"name": "greet", "queue": "default|tool:greet"}], input={"name": "Eve"}
        )
        assert await engine.result(addressed, wait=20) == "Eve"
        for wrong in (None, 5, [1], {"name": 7}, {"name": "Ada", "age": 36}):
            run = await engine.create("w", [{"name": "greet", "retries": 0}], input=wrong)
            assert await ended(engine, run) == ("failed", "INVALID_INPUT")


async def test_text_that_looks_like_a_template_or_a_command_is_data(url: str, tmp_path: Path) -> None:
    """Only templates from a workflow file are evaluated. A tool named `run` is an ordinary tool."""
    touched = tmp_path / "touched"
    given: list[Any] = []
    commands = ["touch", str(touched)]

    async def take(open: list[Any], run: list[str], text: str) -> None:  # noqa: A002 - the words of a template
        given.append((open, run, text))

    template = {"open": [["text"]], "run": commands, "text": "${{ inputs.secret }}"}
    async with watching(url) as engine, engine.worker(Tool(take, "run"), Tool(take, "take")):
        for name in ("take", "run"):
            await engine.see_end(await engine.create("w", [{"name": name, "input": template}]))
            await engine.see_end(await engine.create("w", [{"name": name}], input=template))
        assert given == [([["text"]], commands, "${{ inputs.secret }}")] * 4
        # A caller sends it directly to workers that run commands, but only workflow files have commands.
        with pytest.raises(TenureError, match="only workflow files may contain"):
            await engine.create(
                "w", [{"name": "x", "tool": "run", "queue": "default|run", "input": template}]
            )
    assert not touched.exists()


async def test_a_plan_may_start_a_workflow(url: str) -> None:
    async def double(n: int) -> int:
        return 2 * n

    async with watching(url) as engine, engine.worker(Workflow(double)):
        run = await engine.create("w", [{"name": "twice", "tool": "workflow:double", "input": {"n": 21}}])
        assert await engine.result(run, wait=20) == 42


async def test_a_cancel_interrupts_an_async_tool(url: str) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def build() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            assert tenure.current().canceled
            stopped.set()
            raise

    async with watching(url) as engine, engine.worker(Tool(build, "build")):
        run = await engine.create("w", [StepSpec(name="build")])
        await begun.wait()
        assert await engine.cancel(run) == "canceling"
        assert await ended(engine, run) == ("canceled", "RUN_CANCELED")
        assert stopped.is_set()
        (attempt,) = await engine.leases(run)
        assert (attempt.state, attempt.lease) == ("canceled", "canceled"), "acknowledged, not abandoned"


async def test_canceling_one_step_does_not_affect_its_siblings(url: str) -> None:
    begun = asyncio.Event()

    async def slow() -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def quick() -> str:
        await begun.wait()
        return "done"

    async with watching(url) as engine, engine.worker(Tool(slow, "slow"), Tool(quick, "quick")):
        run = await engine.create(
            "w", [StepSpec(name="slow", required=False), StepSpec(name="quick", needs=())]
        )
        await begun.wait()
        await engine.runs.cancel_step(run, "slow")
        assert await ended(engine, run) == ("succeeded", "done")
        states = {step.name: step.state for step in await engine.runs.steps(run)}
        assert states == {"slow": "canceled", "quick": "succeeded"}


async def test_a_canceled_thread_is_notified_and_its_late_result_is_dropped(url: str) -> None:
    begun = threading.Event()

    def build() -> str:
        begun.set()
        while not tenure.current().canceled:
            threading.Event().wait(0.002)
        return "stopped early"

    async with watching(url) as engine, engine.worker(Tool(build, "build")) as worker:
        run = await engine.create("w", [StepSpec(name="build")])
        await asyncio.to_thread(begun.wait)
        await engine.cancel(run)
        assert await ended(engine, run) == ("canceled", "RUN_CANCELED")
        assert (await engine.get(run)).output is None
        assert worker.counts["succeeded"] == 0


async def test_workers_claim_only_plan_steps_of_their_queues(url: str) -> None:
    async def build() -> None: ...

    async with watching(url) as engine:
        mine = await engine.create("w", [StepSpec(name="build", queue="mine")])
        other = await engine.create("w", [StepSpec(name="build")])
        async with engine.worker(Tool(build, "build"), queues=("mine",)):
            await engine.see_end(mine)
            assert (await engine.get(other)).status == "queued"
            assert (
                "start one that has the tool 'build', on the queue 'default'"
                in (await engine.runs.explain(other)).text
            )
