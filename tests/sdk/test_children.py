"""Child runs, and runs that restart as new runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tenure
from tenure.errors import TenureError
from tenure.kernel.decide import waits
from tenure.sdk import execution_waits
from tenure.testing import Lab
from tests.sdk.flows import Steps, flow, noted
from tests.worker.helpers import until


@flow(name="child")
async def child(number: int) -> dict[str, int]:
    await tenure.sleep("1h")
    return {"twice": number * 2}


@flow(name="failing")
async def failing() -> None:
    raise tenure.Failure("NO_LUCK", "at all")


@flow(name="waiter")
async def waiter() -> str:
    return str(await tenure.wait("go"))


async def children_of(lab: Lab, workflow: str) -> list[str]:
    return [
        await run.status() for run in await lab.runs() if (await lab.engine.get(run.id)).workflow == workflow
    ]


async def test_a_parent_that_waits_for_its_child_holds_no_worker(url: str | None) -> None:
    @flow
    async def parent() -> Any:
        started = await tenure.start(child, 21)
        return [started.run_id, await started.result()]

    async with Lab(parent, child, url=url) as lab:
        run = await lab.start(parent)
        await lab.settle()
        assert lab.workers[0].busy == []
        child_id, result = await run.result()
        assert result == {"twice": 42}
        assert (await lab.engine.get(child_id)).parent == run.id


async def test_a_childs_failure_can_be_caught_and_names_its_run(url: str | None) -> None:
    @flow
    async def parent() -> str:
        started = await tenure.start(failing)
        try:
            await started.result()
        except tenure.ChildFailed as failed:
            same = failed.run_id == started.run_id
            return f"{failed.status} {failed.reason} {failed.error} {same}"
        return "fine"

    async with Lab(parent, failing, url=url) as lab:
        run = await lab.start(parent)
        assert await run.result() == "failed NO_LUCK at all True"


async def test_a_childs_failure_that_is_not_caught_fails_the_parent() -> None:
    @flow
    async def parent() -> None:
        await (await tenure.start(failing)).result()

    async with Lab(parent, failing) as lab:
        run = await lab.start(parent)
        with pytest.raises(TenureError, match="NO_LUCK") as failed:
            await run.result()
        assert failed.value.code == "CHILD_FAILED"


async def test_many_children_are_gathered() -> None:
    @flow
    async def parent() -> list[Any]:
        started = [await tenure.start(child, n) for n in range(5)]
        return await tenure.gather(*(each.result() for each in started))

    async with Lab(parent, child) as lab:
        run = await lab.start(parent)
        assert await run.result() == [{"twice": n * 2} for n in range(5)]


async def test_children_are_canceled_left_alone_or_waited_for_when_their_parent_ends(url: str | None) -> None:
    @flow
    async def parent(on_close: str) -> str:
        await tenure.start(waiter, on_close=on_close)  # type: ignore[arg-type]  # one of the three values below
        return on_close

    async with Lab(parent, waiter, url=url) as lab:
        run = await lab.start(parent, "cancel")
        assert await run.result() == "cancel"
        await lab.settle()
        assert await children_of(lab, "waiter") == ["canceled"]

        run = await lab.start(parent, "leave")
        assert await run.result() == "leave"
        await lab.settle()
        assert sorted(await children_of(lab, "waiter")) == ["canceled", "waiting_external"]

        run = await lab.start(parent, "wait")
        await lab.settle()
        assert await run.status() == "waiting_external"
        for other in await lab.runs(status="waiting_external"):
            if other.id != run.id:
                await lab.deliver(other, "go", "now")
        assert await run.result() == "wait"


async def test_a_crash_around_the_start_creates_one_child() -> None:
    @flow
    async def parent() -> Any:
        return await (await tenure.start(child, 1)).result()

    async def story(lab: Lab) -> None:
        run = await lab.start(parent)
        assert await run.result() == {"twice": 2}
        assert await children_of(lab, "child") == ["succeeded"]

    assert await tenure.testing.crash_everywhere(story, parent, child) > 5


async def test_canceling_a_parent_cancels_its_children() -> None:
    @flow
    async def parent() -> Any:
        return await (await tenure.start(waiter)).result()

    async with Lab(parent, waiter) as lab:
        run = await lab.start(parent)
        await lab.settle()
        await lab.cancel(run)
        await lab.settle()
        assert await run.status() == "canceled"
        assert await children_of(lab, "waiter") == ["canceled"]


async def test_starting_an_unknown_workflow_is_refused() -> None:
    @flow
    async def parent() -> None:
        await tenure.start("nowhere")

    async with Lab(parent) as lab:
        run = await lab.start(parent)
        with pytest.raises(TenureError, match="workflow 'nowhere' is not registered: import the module"):
            await run.result()


async def test_a_childs_input_that_does_not_fit_is_refused_at_the_call() -> None:
    @flow
    async def parent() -> str:
        try:
            await tenure.start(child, "many")
        except TenureError as refused:
            return refused.message
        return "started"

    async with Lab(parent, child) as lab:
        run = await lab.start(parent)
        assert "Expected `int`, got `str`" in await run.result()
        assert await children_of(lab, "child") == []


# ------------------------------------------------------------------------------------------- restarts


async def test_the_result_of_a_restarted_run_is_that_of_the_new_run(url: str | None) -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    async def chain(left: int, total: int = 0) -> int:
        await work(left)
        if left == 0:
            return total
        await tenure.sleep("1d")
        tenure.restart(left - 1, total=total + left)
        raise AssertionError("restart does not return")

    async with Lab(chain, url=url) as lab:
        run = await lab.start(chain, 5)
        assert await run.result() == 15
        assert len(await lab.runs()) == 6
        assert {await each.status() for each in await lab.runs()} == {"succeeded"}
    assert done == [f"work {n}" for n in (5, 4, 3, 2, 1, 0)]


async def test_a_parent_gets_the_result_of_its_childs_last_restart(url: str | None) -> None:
    @flow(name="chain")
    async def chain(left: int) -> str:
        await tenure.sleep("1h")
        if left:
            tenure.restart(left - 1)
        return "the end"

    @flow
    async def parent() -> Any:
        return await (await tenure.start(chain, 3)).result()

    async with Lab(parent, chain, url=url) as lab:
        run = await lab.start(parent)
        assert await run.result() == "the end"


async def test_a_restart_with_a_large_input_is_possible() -> None:
    @flow
    async def chain(text: str, last: bool = False) -> int:
        if not last:
            tenure.restart("x" * 400_000, last=True)
        return len(text)

    async with Lab(chain) as lab:
        run = await lab.start(chain, "")
        assert await run.result() == 400_000


async def test_a_restart_with_an_input_that_does_not_fit_is_refused_at_the_call() -> None:
    @flow
    async def chain(left: int) -> str:
        try:
            tenure.restart("many")
        except TenureError as refused:
            return refused.code

    async with Lab(chain) as lab:
        run = await lab.start(chain, 1)
        assert await run.result() == "INVALID_INPUT"


async def test_code_that_catches_everything_does_not_stop_a_restart() -> None:
    @flow
    async def chain(left: int) -> str:
        if left:
            try:
                tenure.restart(left - 1)
            except BaseException:
                return "swallowed"
        return "restarted"

    async with Lab(chain) as lab:
        run = await lab.start(chain, 1)
        assert await run.result() == "restarted"


async def test_a_childs_result_can_be_awaited_again_after_a_cancel() -> None:
    seen: list[str] = []

    @flow
    async def parent() -> Any:
        started = await tenure.start(child, 1)
        try:
            await asyncio.wait_for(started.result(), 0.01)
        except TimeoutError:
            seen.append("patience")
        result = await started.result()
        await tenure.sleep("1h")
        return result

    async with Lab(parent, child) as lab:
        run = await lab.start(parent)
        assert await run.result() == {"twice": 2}
    assert len(seen) == 3  # in the first execution and in two replays


async def test_a_childs_result_can_be_awaited_repeatedly() -> None:
    @flow
    async def parent() -> list[Any]:
        started = await tenure.start(child, 1)
        both = await tenure.gather(started.result(), started.result())
        return [*both, await started.result()]

    async with Lab(parent, child) as lab:
        run = await lab.start(parent)
        assert await run.result() == [{"twice": 2}] * 3


async def test_a_run_that_must_wait_for_its_children_cannot_restart() -> None:
    @flow
    async def parent(left: int) -> None:
        await tenure.start(waiter, on_close="wait")
        tenure.restart(left - 1)

    async with Lab(parent, waiter) as lab:
        run = await lab.start(parent, 1)
        with pytest.raises(TenureError, match="children that it must wait for cannot restart"):
            await run.result()


async def test_a_restart_may_come_from_a_branch_and_from_plain_code() -> None:
    async def branch() -> None:
        tenure.restart(0)

    @flow
    async def whole(left: int) -> str:
        if left:
            await tenure.gather(branch(), tenure.sleep("1h"))
        return "the end"

    @flow(name="plain")
    def plain(left: int) -> str:
        if left:
            tenure.restart(left - 1)
        return "the end"

    async with Lab(whole, plain) as lab:
        assert await (await lab.start(whole, 1)).result() == "the end"
        assert await (await lab.start(plain, 1)).result() == "the end"


async def test_collecting_children_that_have_ended_asks_for_many_at_a_time(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one query per child, collecting n children would cost n commits, each of which reads all n."""
    monkeypatch.setattr(execution_waits, "AHEAD_MAX", 10)
    ended = asyncio.Event()

    @flow(name="quick-child")
    async def quick_child(number: int) -> int:
        return number

    @tenure.step
    async def until_they_have_ended() -> None:
        await ended.wait()

    @flow
    async def parent(n: int) -> int:
        started = [await tenure.start(quick_child, number) for number in range(n)]
        await until_they_have_ended()
        return sum([await each.result() for each in started])

    async with Lab(parent, quick_child, url=url) as lab:
        run = await lab.start(parent, 24)
        await lab.settle(leave="until_they_have_ended")
        ended.set()
        assert await run.result() == sum(range(24))
        assert len([event for event in await run.history() if event.kind == "go_on"]) == 3


async def test_starting_children_one_after_the_other_takes_few_commits(url: str | None) -> None:
    """Starting a child, creating its run and telling its parent do not wait for the previous child."""

    @flow(name="quick-child")
    async def quick_child(number: int) -> int:
        return number

    @flow
    async def parent(n: int) -> int:
        started = [await tenure.start(quick_child, number) for number in range(n)]
        return sum([await each.result() for each in started])

    async with Lab(parent, quick_child, url=url) as lab:
        before = lab.engine.orchestrator.batches
        run = await lab.start(parent, 100)
        assert await run.result() == sum(range(100))
        assert lab.engine.orchestrator.batches - before < 60


async def test_a_refused_child_fails_the_run_before_anything_else_starts(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "CHILDREN_PER_RUN_MAX", 20)
    done: Steps = []
    after = noted(done, "after")

    @flow
    async def parent(work: bool) -> None:
        for _ in range(30):
            await tenure.start(waiter)
        if work:
            await after(1)

    async with Lab(parent, waiter, url=url) as lab:
        for work in (True, False):
            run = await lab.start(parent, work)
            with pytest.raises(TenureError, match="at most 20 open children") as refused:
                await run.result()
            assert refused.value.code == "LIMIT_EXCEEDED"
    assert done == []


async def test_results_of_children_are_collected_immediately(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with many recorded steps stays in memory before it suspends, but not if the results are already there."""
    monkeypatch.setattr(execution_waits, "STAY_SECONDS_PER_ROW", 3600)
    monkeypatch.setattr(execution_waits, "STAY_SECONDS_MAX", 3600)
    monkeypatch.setattr(execution_waits, "AHEAD_MAX", 2)
    ended = asyncio.Event()

    @tenure.step
    async def until_they_have_ended() -> None:
        await ended.wait()

    @flow(name="quick_child")
    async def quick_child(number: int) -> int:
        return number

    @flow(name="collecting")
    async def collecting() -> int:
        started = [await tenure.start(quick_child, number) for number in range(7)]
        await until_they_have_ended()
        return sum([await one.result() for one in started])

    async with Lab(collecting, quick_child, url=url) as lab:
        run = await lab.start(collecting)

        async def all_ended() -> bool:
            return (await children_of(lab, "quick_child")).count("succeeded") == 7

        await until(all_ended, "the children's ends")
        ended.set()
        assert await run.result() == 21


async def test_many_children_are_canceled_in_a_few_commits(url: str | None) -> None:
    @flow
    async def parent() -> None:
        await tenure.gather(*[(await tenure.start(waiter)).result() for _ in range(40)])

    async with Lab(parent, waiter, url=url) as lab:
        run = await lab.start(parent)
        await lab.settle()
        orchestrator = lab.engine.orchestrator
        batches, commands = orchestrator.batches, orchestrator.commands
        await lab.engine.cancel(run.id)
        await lab.settle()
        assert set(await children_of(lab, "waiter")) == {"canceled"}
        assert orchestrator.commands - commands >= 40
        assert orchestrator.batches - batches < 20, "each child was canceled by its own commit"
