"""Events and time: events before and after the wait begins, waits that expire, short and long sleeps."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta
from typing import Any

import pytest

import tenure
from tenure.errors import TenureError
from tenure.sdk import execution_waits
from tenure.sdk.execution import WorkflowExecution
from tenure.sdk.execution_waits import ExecutionWaits
from tenure.testing import Lab
from tests.sdk.flows import Steps, flow, noted


async def test_an_event_that_comes_late_wakes_the_run(url: str | None) -> None:
    @flow
    async def whole() -> Any:
        return await tenure.wait("healthy", within="1d")

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.jump("23h")
        assert await run.status() == "waiting_external"
        assert await lab.deliver(run, "healthy", {"by": "probe"})
        assert await run.result() == {"by": "probe"}


async def test_an_early_event_is_taken_immediately(url: str | None) -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    async def whole() -> Any:
        await tenure.sleep("1h")
        await work()
        return await tenure.wait("healthy")

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert not await lab.deliver(run, "healthy", 7)
        assert await run.result() == 7


async def test_an_event_that_does_not_come_in_time_raises_wait_expired(url: str | None) -> None:
    @flow
    async def whole(caught: bool) -> str:
        try:
            await tenure.wait("healthy", within="10m")
        except tenure.WaitExpired as late:
            if caught:
                return f"{late.event} did not come"
            raise
        return "came"

    async with Lab(whole, url=url) as lab:
        caught, uncaught = await lab.start(whole, True), await lab.start(whole, False)
        await lab.jump("9m50s")
        assert await caught.status() == "waiting_external"
        await lab.jump("20s")
        assert await caught.result() == "healthy did not come"
        with pytest.raises(TenureError) as failed:
            await uncaught.result()
        assert failed.value.code == "WAIT_EXPIRED"


async def test_two_waits_for_the_same_name_take_events_in_order() -> None:
    @flow
    async def whole() -> list[Any]:
        return [await tenure.wait("n"), await tenure.wait("n"), await tenure.wait("n")]

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.deliver(run, "n", 1)
        await lab.deliver(run, "n", 2)
        await lab.settle()
        await lab.deliver(run, "n", 3)
        assert await run.result() == [1, 2, 3]


async def test_an_event_counts_once_however_often_it_is_delivered() -> None:
    @flow
    async def whole() -> list[Any]:
        return [await tenure.wait("n"), await tenure.wait("n")]

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        for _ in range(3):
            await lab.deliver(run, "n", 1, event_id="one")
        await lab.settle()
        assert await run.status() == "waiting_external"
        await lab.deliver(run, "n", 2, event_id="two")
        assert await run.result() == [1, 2]


async def test_a_short_sleep_stays_in_memory_and_a_long_one_suspends_the_run(url: str | None) -> None:
    @flow
    async def whole() -> float:
        before = await tenure.now()
        await tenure.sleep(3)
        await tenure.sleep("3d")
        return (await tenure.now() - before).total_seconds()

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert await run.status() == "running"
        await lab.jump("4s")
        assert await run.status() == "waiting_external"
        assert lab.workers[0].busy == []
        lasted = await run.result()
        assert lasted == pytest.approx(3 + 3 * 86_400, abs=5)


async def test_a_crash_does_not_restart_a_sleep() -> None:
    @flow
    async def whole() -> None:
        await tenure.sleep(4)

    async with Lab(whole) as lab:
        begun = lab.now
        run = await lab.start(whole)
        await lab.jump("2s")
        await lab.crash()
        await lab.jump("31s")  # its lease has expired, and its sleep has passed
        await run.result()
        assert lab.now - begun < timedelta(seconds=35)


async def test_a_sleep_of_zero_does_not_wait() -> None:
    @flow
    async def whole() -> str:
        await tenure.sleep(0)
        return "done"

    async with Lab(whole) as lab:
        before = lab.now
        run = await lab.start(whole)
        assert await run.result() == "done"
        assert lab.now == before


async def test_a_run_that_waits_holds_no_memory() -> None:
    executions: list[weakref.ref[WorkflowExecution]] = []
    locals_: list[weakref.ref[Any]] = []

    class Big:
        """An object that the workflow references."""

    @flow
    async def whole() -> None:
        big = Big()
        locals_.append(weakref.ref(big))
        executions.append(weakref.ref(tenure.sdk.context.require_scope("x").execution))
        await tenure.approve("Go?")
        del big

    async with Lab(whole) as lab:
        runs = [await lab.start(whole) for _ in range(20)]
        await lab.settle()
        assert {await run.status() for run in runs} == {"waiting_approval"}
        assert lab.workers[0].busy == []
        await asyncio.sleep(0)
        gc.collect()
        assert [ref() for ref in executions if ref() is not None] == []
        assert [ref() for ref in locals_ if ref() is not None] == []


async def test_a_plain_run_that_waits_holds_no_thread() -> None:
    import threading

    @flow
    def whole() -> None:
        said: Any = tenure.approve("Go?")
        del said

    async with Lab(whole) as lab:
        before = threading.active_count()
        runs = [await lab.start(whole) for _ in range(10)]
        await lab.settle()
        assert {await run.status() for run in runs} == {"waiting_approval"}
        assert threading.active_count() <= before + 2
        for run in runs:
            await lab.approve(run)
        for run in runs:
            await run.result()


async def test_events_that_arrive_while_a_run_stays_need_no_replay(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    staying: list[ExecutionWaits] = []
    stays = asyncio.Event()
    begun: list[str] = []

    stay = ExecutionWaits._stay

    async def stay_long(self: ExecutionWaits, seconds: float) -> None:
        del seconds
        await stay(self, 3600.0)
        if self._quiet_timer is not None:
            staying.append(self)
            stays.set()

    monkeypatch.setattr(ExecutionWaits, "_stay", stay_long)
    monkeypatch.setattr(execution_waits, "STAY_SECONDS_MIN", 0.0)

    @flow
    async def whole() -> list[Any]:
        begun.append("begun")
        return [await tenure.wait("one"), await tenure.wait("two")]

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        for number, event in enumerate(("one", "two")):
            await stays.wait()
            stays.clear()
            await lab.engine.signal(run.id, event, number)
            [waits] = set(staying)
            assert waits._quiet_timer is not None, "the run is still in memory"
            waits._quiet_timer.cancel()
            waits._suspend_or_give_back()  # as if the time in memory had passed
        assert await run.result() == [0, 1]
    assert begun == ["begun"]


async def test_a_run_does_not_suspend_while_a_branch_waits_for_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []

    @tenure.step
    async def one(n: int) -> int:
        done.append(n)
        return n

    @flow
    async def whole() -> Any:
        async def work() -> None:
            for n in range(3):
                await one(n)

        return (await tenure.gather(tenure.wait("go"), work()))[0]

    durable = ExecutionWaits._durable

    async def slowly(self: ExecutionWaits) -> None:
        if done == [0]:
            self.reconsider()
            assert self._quiet_timer is None, "a branch that waits for its commit is busy"
        await durable(self)

    monkeypatch.setattr(ExecutionWaits, "_durable", slowly)
    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert done == [0, 1, 2]
        await lab.deliver(run, "go", 7)
        assert await run.result() == 7
