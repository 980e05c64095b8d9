"""Code that changes while runs are open: a mismatch is detected and reported, and matching code continues the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure.sdk import Workflow
from tenure.testing import Lab, LabStuck
from tests.sdk.flows import Steps, flow, noted

done: Steps = []


@pytest.fixture(autouse=True)
def _clear_done() -> None:
    done.clear()


build, check, ship, extra = (noted(done, name) for name in ("build", "check", "ship", "extra"))


@flow
async def right() -> str:
    await build("main")
    await check()
    await tenure.sleep("1h")
    return str(await ship())


@flow
async def renamed() -> str:
    await noted(done, "compile")("main")
    await check()
    await tenure.sleep("1h")
    return str(await ship())


@flow
async def inserted() -> str:
    await build("main")
    await extra()
    await check()
    await tenure.sleep("1h")
    return str(await ship())


@flow
async def removed() -> str:
    await build("main")
    await tenure.sleep("1h")
    return str(await ship())


@flow
async def other_arguments() -> str:
    await build("develop")
    await check()
    await tenure.sleep("1h")
    return str(await ship())


@flow
async def no_wait() -> str:
    await build("main")
    await check()
    return str(await ship())


@flow
async def ends_early() -> str:
    await build("main")
    return "the end"


@flow
async def swallowing() -> str:
    try:
        await noted(done, "compile")("main")
    except BaseException:
        await extra()
    return "swallowed"


CHANGED: list[tuple[Workflow[..., Any], str]] = [
    (renamed, "calls 'compile' where 'build' was recorded"),
    (inserted, "calls 'extra' where 'check' was recorded"),
    (removed, "calls 'ship' where 'check' was recorded"),
    (other_arguments, "step 'build' was recorded with other arguments"),
    (no_wait, "calls 'ship' where 'sleep' was recorded"),
    (ends_early, "ends without 'check', which was recorded"),
    (swallowing, "calls 'compile' where 'build' was recorded"),
]


@pytest.mark.parametrize(("changed", "why"), CHANGED, ids=lambda each: getattr(each, "__name__", ""))
async def test_code_that_does_not_match_parks_the_run_until_the_right_code_is_deployed(
    changed: Workflow[..., Any], why: str
) -> None:
    async with Lab(right) as lab:
        run = await lab.start(right)
        await lab.settle()
        assert done == ["build main", "check"]
        await lab.deploy(changed)
        await lab.jump("2h")
        view = await lab.engine.get(run.id)
        assert view.parked is not None
        assert why in view.parked
        assert why in await run.why()
        assert done == ["build main", "check"]  # no step ran that does not match the history
        with pytest.raises(LabStuck, match="parked"):
            await run.result()
        await lab.deploy(right)
        await lab.engine.runs.unpause(run.id)
        assert await run.result() == "ship"
    assert done == ["build main", "check", "ship"]


async def test_a_new_version_leaves_old_runs_to_old_workers(url: str | None) -> None:
    @flow(version="2")
    async def newer() -> str:
        return str(await extra())

    async with Lab(right, url=url) as lab:
        old = await lab.start(right)
        await lab.settle()
        await lab.deploy(newer)
        new = await lab.start(newer)
        assert await new.result() == "extra"
        await lab.jump("2h")
        assert await old.status() == "queued" or await old.status() == "running"
        assert "worker" in (await lab.engine.runs.explain(old.id)).reason
        await lab.add_worker(right)
        assert await old.result() == "ship"


async def test_a_version_that_accepts_older_ones_continues_their_runs() -> None:
    @flow(version="2", accepts=["1"])
    async def newer() -> str:
        await build("main")
        await check()
        await tenure.sleep("1h")
        return f"{await ship()} by version 2"

    async with Lab(right) as lab:
        run = await lab.start(right)
        await lab.settle()
        await lab.deploy(newer)
        assert lab.run(run, newer) is not None
        assert await run.result() == "ship by version 2"


def with_patch() -> Workflow[..., Any]:
    @flow
    async def patched() -> str:
        await build("main")
        if await tenure.patched("check-twice"):
            await check(1)
            await check(2)
        else:
            await check()
        await tenure.sleep("1h")
        return str(await ship())

    return patched


def only_new() -> Workflow[..., Any]:
    @flow
    async def clean() -> str:
        await build("main")
        await check(1)
        await check(2)
        await tenure.sleep("1h")
        return str(await ship())

    return clean


async def test_a_patch_is_taken_by_new_runs_and_not_by_old_ones() -> None:
    async with Lab(right) as lab:
        old = await lab.start(right)
        await lab.settle()
        done.clear()
        await lab.deploy(with_patch())
        new = await lab.start(with_patch())
        await lab.settle()
        assert done == ["build main", "check 1", "check 2"]
        done.clear()
        assert await old.result() == "ship"
        assert await new.result() == "ship"
        assert done == ["ship", "ship"]
        assert "patched:check-twice" in await new.recorded()
        assert "patched:check-twice" in await old.recorded(), "the choice of the old path is recorded, too"


async def test_a_patch_can_be_removed_while_runs_that_took_it_are_open() -> None:
    async with Lab(with_patch()) as lab:
        run = await lab.start(with_patch())
        await lab.settle()
        await lab.deploy(only_new())
        assert await run.result() == "ship"
    assert done == ["build main", "check 1", "check 2", "ship"]


async def test_repeated_queries_of_a_patch_give_the_same_answer() -> None:
    seen: list[bool] = []

    @flow
    async def whole() -> None:
        for _ in range(3):
            seen.append(await tenure.patched("loop"))
            await build("main")
        await tenure.sleep("1h")

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await run.result()
    assert seen == [True] * 6


async def test_a_patch_after_the_recorded_steps_is_taken_by_old_runs_too() -> None:
    @flow
    async def longer() -> str:
        await build("main")
        await check()
        await tenure.sleep("1h")
        if await tenure.patched("announce"):
            await extra()
        return str(await ship())

    async with Lab(right) as lab:
        run = await lab.start(right)
        await lab.settle()
        await lab.deploy(longer)
        assert await run.result() == "ship"
    assert done == ["build main", "check", "extra", "ship"]


async def test_code_added_after_the_recorded_steps_is_not_a_change() -> None:
    def changed(*more: Callable[..., Any]) -> Workflow[..., Any]:
        @flow
        async def whole() -> str:
            await build("main")
            await tenure.sleep("1h")
            for step in more:
                await step()
            return "done"

        return whole

    async with Lab(changed(ship)) as lab:
        run = await lab.start(changed(ship))
        await lab.settle()
        await lab.deploy(changed(extra, check))
        assert await run.result() == "done"
    assert done == ["build main", "extra", "check"]


async def test_a_removed_branch_is_detected_before_anything_new_runs() -> None:
    def mapped(count: int) -> Workflow[..., Any]:
        @flow
        async def whole() -> str:
            await tenure.map(build, range(count))
            await tenure.sleep("1h")
            return str(await ship())

        return whole

    async with Lab(mapped(3)) as lab:
        run = await lab.start(mapped(3))
        await lab.settle()
        await lab.deploy(mapped(2))
        await lab.jump("2h")
        assert "calls 'ship' where 'map[3]/build' was recorded" in await run.why()
        assert "ship" not in done
        await lab.deploy(mapped(3))
        await lab.engine.runs.unpause(run.id)
        assert await run.result() == "ship"


async def test_replacing_the_worker_in_a_short_pause_costs_no_attempt() -> None:
    @flow
    async def napping() -> str:
        await build("main")
        await tenure.sleep(3)
        await tenure.sleep(3)
        return str(await ship())

    async with Lab(napping) as lab:
        run = await lab.start(napping)
        await lab.settle()
        for _ in range(5):
            await lab.deploy(napping)
            await lab.settle()
        assert await run.result() == "ship"
    assert done == ["build main", "ship"]


async def test_a_patch_has_one_answer_per_run_even_in_a_loop() -> None:
    done: list[str] = []
    new_code = [False]

    @tenure.step
    async def old(n: int) -> None:
        done.append(f"old {n}")

    @tenure.step
    async def new(n: int) -> None:
        done.append(f"new {n}")

    @flow
    async def whole() -> str:
        for n in range(3):
            if new_code[0] and await tenure.patched("x"):
                await new(n)
            await old(n)
            await tenure.wait("tick")
        return "done"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        new_code[0] = True
        for _ in range(3):
            await lab.deliver(run, "tick")
            await lab.settle()
        assert await run.result() == "done"
        assert done == ["old 0", "old 1", "old 2"]
        fresh = await lab.start(whole)
        for _ in range(3):
            await lab.settle()
            await lab.deliver(fresh, "tick")
        assert await fresh.result() == "done"
        assert done[3:] == ["new 0", "old 0", "new 1", "old 1", "new 2", "old 2"]
