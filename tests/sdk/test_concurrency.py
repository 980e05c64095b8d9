"""Concurrent calls in a workflow: gather, map, and the primitives of asyncio."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import tenure
from tenure import ids
from tenure.errors import TenureError
from tenure.sdk import execution_waits
from tenure.sdk.definitions import StepFunction
from tenure.testing import Lab
from tests.sdk.flows import Steps, flow, noted
from tests.worker.helpers import until


class Crowd:
    """A step that counts how many of its calls run at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.done: list[int] = []
        self.step = StepFunction(self._work, name="work")

    async def _work(self, number: int) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.002)
        self.now -= 1
        self.done.append(number)
        return number * 10


async def _fails_later() -> None:
    await tenure.sleep(0.05)
    raise ValueError("bad")


async def test_a_failing_branch_ends_a_gather_whose_other_branch_waits(url: str | None) -> None:
    @flow
    async def whole() -> str:
        try:
            await tenure.gather(tenure.wait("never"), _fails_later())
        except ValueError:
            return "caught"
        return "?"

    async with Lab(whole, url=url) as lab:
        for _ in range(5):
            assert await (await lab.start(whole)).result() == "caught"


async def test_a_long_run_continues_when_a_task_group_cancels_its_only_wait(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with many recorded steps checks what has arrived before it stays in memory, because the only wait may be canceled."""
    monkeypatch.setattr(execution_waits, "STAY_SECONDS_MIN", 0.0)
    go = asyncio.Event()

    @tenure.step
    async def works() -> None:
        await go.wait()

    @tenure.step
    async def after() -> int:
        return 2

    async def fails() -> None:
        await works()
        raise ValueError("bad")

    @flow
    async def whole() -> int:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                await tenure.wait("never")
        except* ValueError:
            pass
        return await after()

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await until(lambda: lab.engine.store.read("waits_of", ids.run_int(run.id)), "the wait")
        await asyncio.sleep(
            0.1
        )  # so that the body learns that its wait is open; without this, the test would show less
        go.set()
        assert await run.result() == 2


async def test_branches_start_while_another_one_waits(url: str | None) -> None:
    done: list[str] = []

    async def quick(name: str) -> None:
        await tenure.sleep(0.05)
        done.append(name)

    @flow
    async def whole() -> str:
        await tenure.gather(tenure.wait("go"), quick("a"), quick("b"), quick("c"), limit=2)
        return "done"

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.jump("1s")
        assert done[-1] == "c"
        await lab.deliver(run, "go", 1)
        assert await run.result() == "done"


async def test_gather_runs_concurrently_and_returns_in_order(url: str | None) -> None:
    crowd = Crowd()

    @flow
    async def whole() -> list[int]:
        return await tenure.gather(*(crowd.step(n) for n in range(10)))

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        assert await run.result() == [n * 10 for n in range(10)]
    assert crowd.most == 10


async def test_a_limit_bounds_how_many_steps_run_at_once() -> None:
    crowd = Crowd()

    @flow
    async def whole() -> list[int]:
        first = await tenure.map(crowd.step, range(9), limit=3)
        return first + await tenure.gather(*(crowd.step(n) for n in range(9)), limit=2)

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == [n * 10 for n in range(9)] * 2
    assert crowd.most == 3


async def test_gather_and_map_of_nothing_return_nothing() -> None:
    crowd = Crowd()

    @flow
    async def whole() -> list[Any]:
        return [await tenure.gather(), await tenure.map(crowd.step, [])]

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == [[], []]


async def test_a_limit_below_one_is_refused() -> None:
    crowd = Crowd()

    @flow
    async def whole() -> None:
        await tenure.map(crowd.step, [1], limit=0)

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="limit must be at least 1"):
            await run.result()


async def test_the_first_failure_stops_the_others(url: str | None) -> None:
    done: Steps = []

    @tenure.step(retries=0)
    async def fails() -> None:
        raise tenure.Failure("NO_LUCK", "at all")

    @tenure.step
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            done.append("stopped")

    @flow
    async def whole() -> None:
        await tenure.gather(endless(), endless(), fails())

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="NO_LUCK"):
            await run.result()
    assert done == ["stopped"] * 2


@pytest.mark.parametrize("how", ["tenure", "asyncio", "group"])
async def test_a_run_and_its_replay_continue_after_a_failure_that_canceled_other_branches(how: str) -> None:
    done: Steps = []
    after = noted(done, "after")

    @tenure.step(retries=0)
    async def fails() -> None:
        raise tenure.Failure("NO_LUCK")

    @tenure.step
    async def endless() -> None:
        done.append("endless")
        await asyncio.Event().wait()

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(endless())
            tasks.create_task(fails())

    async def both() -> None:
        pending = [asyncio.ensure_future(endless()), asyncio.ensure_future(fails())]
        try:
            await asyncio.gather(*pending)
        finally:
            pending[0].cancel()

    @flow
    async def whole() -> str:
        try:
            if how == "tenure":
                await tenure.gather(endless(), fails())
            elif how == "asyncio":
                await both()
            else:
                await group()
        except* tenure.StepFailed as failed:
            done.append(type(failed.exceptions[0]).__name__)
        said = await after()
        await tenure.sleep("1h")
        return str(said)

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == "after"
        assert (await lab.engine.get(run.id)).parked is None
    assert done == ["endless", "StepFailed", "after", "StepFailed"]


async def test_exceptions_can_be_results() -> None:
    crowd = Crowd()

    @tenure.step(retries=0)
    async def fails(number: int) -> int:
        raise tenure.Failure("NO_LUCK", str(number))

    @flow
    async def whole() -> list[str]:
        found = await tenure.gather(crowd.step(1), fails(2), crowd.step(3), return_exceptions=True)
        mapped = await tenure.map(fails, [4, 5], return_exceptions=True)
        return [
            str(each.message) if isinstance(each, tenure.StepFailed) else str(each) for each in found + mapped
        ]

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == ["10", "2", "30", "4", "5"]


async def test_several_waits_are_awaited_together(url: str | None) -> None:
    @flow
    async def whole() -> list[Any]:
        approved, event, _ = await tenure.gather(
            tenure.approve("Go?"), tenure.wait("healthy"), tenure.sleep("2h")
        )
        return [approved.approver, event]

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert lab.workers[0].busy == []
        await lab.deliver(run, "healthy", 1)
        await lab.jump("1h")
        await lab.approve(run, by="ada")
        await lab.settle()
        assert await run.status() == "waiting_external"
        assert await run.result() == ["ada", 1]


async def test_a_wait_that_settles_while_a_step_runs_is_noticed_before_the_step_ends() -> None:
    done: Steps = []
    finish = asyncio.Event()
    after = noted(done, "after")

    @tenure.step
    async def long() -> str:
        await finish.wait()
        return "long"

    async def branch() -> str:
        await tenure.wait("healthy")
        return str(await after())

    @flow
    async def whole() -> list[str]:
        return await tenure.gather(long(), branch())

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.reached("long")
        await lab.settle(leave="long")
        await lab.deliver(run, "healthy")
        await lab.jump("1s", leave="long")
        assert done == ["after"]
        finish.set()
        assert await run.result() == ["long", "after"]


@pytest.mark.parametrize("how", ["gather", "group"])
async def test_asyncio_primitives_replay_as_they_ran(how: str, url: str | None) -> None:
    done: Steps = []
    build, check = noted(done, "build"), noted(done, "check")

    async def part(number: int) -> str:
        await build(number)
        await tenure.sleep("1h" if number else 1)
        return str(await check(number))

    @flow
    async def whole() -> list[str]:
        if how == "gather":
            return list(await asyncio.gather(*(part(n) for n in range(3))))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part(n)) for n in range(3)]
        return [task.result() for task in tasks]

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.jump("2s")
        assert sorted(done) == ["build 0", "build 1", "build 2", "check 0"]
        assert await run.status() == "waiting_external"
        assert await run.result() == ["check 0", "check 1", "check 2"]
    assert sorted(done) == sorted(f"{step} {n}" for step in ("build", "check") for n in range(3))


async def test_branches_have_separate_keys_in_any_order() -> None:
    done: Steps = []
    build = noted(done, "build")

    async def part(name: str) -> str:
        first = await build(name, 1)
        await tenure.sleep("2h" if name == "a" else "1h")
        return f"{first}, {await build(name, 2)}"

    @flow
    async def whole() -> list[str]:
        return await tenure.gather(part("a"), part("b"))

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == ["build a 1, build a 2", "build b 1, build b 2"]
        assert set(await run.recorded()) == {
            "gather[1]/build", "gather[1]/build#2", "gather[2]/build", "gather[2]/build#2",
        }  # fmt: skip
    assert sorted(done) == ["build a 1", "build a 2", "build b 1", "build b 2"]


async def test_a_crash_in_the_middle_of_a_map_repeats_only_what_was_not_recorded() -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    async def whole() -> list[str]:
        return await tenure.map(work, range(6), limit=2)

    async with Lab(whole) as lab:
        async with lab.crash_after("work"):
            run = await lab.start(whole)
        assert await run.result() == [f"work {n}" for n in range(6)]
        recorded = await run.recorded()
        first = [key for key, row in recorded.items() if row.n == 1]
        assert first
        assert {row.n for row in recorded.values()} == {1, 2}
    assert len(done) <= 6 + 2  # at most the running steps are repeated


async def test_gather_within_gather_and_map_over_a_function_of_the_workflow() -> None:
    done: Steps = []
    work = noted(done, "work")

    async def pair(n: int) -> list[str]:
        return await tenure.gather(work(n, "l"), work(n, "r"))

    @flow
    async def whole() -> list[list[str]]:
        found = await tenure.map(pair, [1, 2])
        await tenure.sleep("1h")
        return found

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == [["work 1 l", "work 1 r"], ["work 2 l", "work 2 r"]]
    assert len(done) == 4


async def test_gather_in_a_plain_workflow_is_refused() -> None:
    @flow
    def whole() -> None:
        _ = tenure.gather()

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match=r"use tenure\.map in a plain one"):
            await run.result()


async def test_map_takes_functions_of_the_workflow_async_or_not() -> None:
    done: Steps = []
    work = noted(done, "work")

    async def part(n: int) -> str:
        return str(await work(n))

    @flow
    async def whole() -> list[Any]:
        return [await tenure.map(lambda n: n * 2, [1, 2]), await tenure.map(part, [3])]

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == [[2, 4], ["work 3"]]


async def test_a_plain_workflow_maps_over_functions_with_durable_calls(url: str | None) -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    def whole() -> list[Any]:
        def part(n: int) -> Any:
            first: Any = work(n)
            nap: Any = tenure.sleep("1h")
            assert nap is None
            return [first, work(n, "again")]

        found: Any = tenure.map(part, [1, 2])
        return list(found)

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert lab.workers[0].busy == []
        assert await run.result() == [["work 1", "work 1 again"], ["work 2", "work 2 again"]]
    assert len(done) == 4


async def test_a_failure_in_a_plain_map_stops_the_others_and_can_be_caught() -> None:
    done: Steps = []
    work = noted(done, "work")

    @tenure.step(retries=0)
    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise tenure.Failure("NO_LUCK")

    @tenure.step
    async def endless() -> None:
        await asyncio.Event().wait()

    def part(n: int) -> Any:
        return (fails if n else endless)()

    @flow
    def whole() -> str:

        try:
            said: Any = tenure.map(part, [0, 1])
        except tenure.StepFailed as failed:
            said = failed.code
        nap: Any = tenure.sleep("1h")
        assert nap is None
        return f"{said} {work()}"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == "NO_LUCK work"


async def test_durable_calls_from_a_thread_of_an_async_workflow_are_refused() -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    async def whole() -> None:
        _ = await asyncio.to_thread(work, 1)

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="in its own event loop, not in a thread"):
            await run.result()
    assert done == []


async def test_two_waits_for_one_event_name_at_once_take_events_in_order() -> None:
    @flow
    async def whole() -> list[Any]:
        return await tenure.gather(tenure.wait("n"), tenure.wait("n"))

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.deliver(run, "n", 1)
        await lab.deliver(run, "n", 2)
        assert await run.result() == [1, 2]


async def test_unawaited_tasks_end_with_their_workflow() -> None:
    tasks: list[asyncio.Task[Any]] = []
    done: Steps = []
    work = noted(done, "work")

    async def background() -> None:
        await work()
        await asyncio.Event().wait()

    @flow
    async def whole() -> str:
        tasks.append(asyncio.create_task(background()))
        await tenure.approve("Go?")
        return "done"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert await run.status() == "waiting_approval"
        assert [task.cancelled() for task in tasks] == [True]
        await lab.approve(run)
        assert await run.result() == "done"
        await lab.settle()
    assert [task.cancelled() for task in tasks] == [True, True]
    assert done == ["work"]


async def test_the_first_of_two_waits_wins_and_wins_in_every_replay(url: str | None) -> None:
    seen: list[list[str]] = []
    done: Steps = []
    after = noted(done, "after")

    @flow
    async def whole() -> str:
        event = asyncio.create_task(tenure.wait("a"), name="event")
        timer = asyncio.create_task(tenure.sleep("1d"), name="timer")
        finished, pending = await asyncio.wait((event, timer), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        seen.append(sorted(task.get_name() for task in finished))
        await after()
        await tenure.sleep("7d")  # the timer fires meanwhile, too
        return "done"

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert lab.workers[0].busy == []
        await lab.deliver(run, "a")
        assert await run.result() == "done"
    assert seen == [["event"], ["event"]]
    assert done == ["after"]


async def test_an_asyncio_timeout_around_a_step_replays_as_it_ran() -> None:
    done: Steps = []
    after = noted(done, "after")

    @tenure.step
    async def endless() -> None:
        done.append("endless")
        await asyncio.Event().wait()

    @flow
    async def whole() -> str:
        try:
            async with asyncio.timeout(0.02):
                await endless()
        except TimeoutError:
            await after()
        await tenure.sleep("1h")
        return "done"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == "done"
    assert done == ["endless", "after"]


async def test_an_event_does_not_go_to_a_wait_that_the_code_gave_up() -> None:
    @tenure.step(retries=0)
    async def fails() -> None:
        raise tenure.Failure("NO_LUCK")

    @flow
    async def whole() -> Any:
        try:
            await tenure.gather(tenure.wait("x"), fails())
        except tenure.StepFailed:
            return await tenure.wait("x")

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.deliver(run, "x", 1)
        assert await run.result() == 1


@pytest.mark.parametrize("how", ["wait", "as_completed", "done"])
async def test_a_race_between_steps_is_won_by_the_same_one_in_every_replay(how: str) -> None:
    winners: list[list[int]] = []
    released = [asyncio.Event() for _ in range(3)]

    @tenure.step
    async def racer(number: int) -> int:
        await released[number].wait()
        if number:  # the last one wins, then the one before it
            released[number - 1].set()
        return number

    async def branch(number: int) -> int:
        await tenure.now()
        return await racer(number)

    @flow
    async def whole() -> list[int]:
        tasks = [asyncio.create_task(branch(number)) for number in range(3)]
        order: list[int] = []
        if how == "as_completed":
            order = [await each for each in asyncio.as_completed(tasks)]
        elif how == "wait":
            left = set(tasks)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                order += sorted(task.result() for task in done)
        else:
            await tasks[2]
            order = [number for number, task in enumerate(tasks) if task.done()]
            await asyncio.gather(*tasks)
        winners.append(order)
        await tenure.sleep("1h")
        await tenure.sleep("1h")
        return order

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle(leave="racer")
        released[2].set()
        assert await run.result() == ([2] if how == "done" else [2, 1, 0])
    assert len(winners) == 3
    assert winners[0] == winners[1] == winners[2]


async def test_a_branch_that_calls_sys_exit_fails_alone() -> None:
    async def exits() -> None:
        sys.exit(3)

    @flow
    async def whole() -> str:
        (how,) = await tenure.gather(exits(), return_exceptions=True)
        return type(how).__name__

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == "ExitFailure"
