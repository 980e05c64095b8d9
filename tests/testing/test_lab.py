"""The lab, in which users test their workflows."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta

import pytest

import tenure
from tenure.sdk import execution_waits
from tenure.testing import Lab, LabStuck, crash_everywhere

done: list[str] = []


@tenure.step
async def build(ref: str) -> str:
    done.append(f"build {ref}")
    return f"image:{ref}"


@tenure.step
def ship(image: str) -> str:
    done.append(f"ship {image}")
    return f"shipped {image}"


@tenure.workflow(name="lab.release")
async def release(ref: str) -> str:
    image = await build(ref)
    await tenure.approve(f"Ship {image}?", within="3d")
    await tenure.sleep("1h")
    healthy = await tenure.wait("healthy", within="1d")
    return f"{await ship(image)} ({healthy['by']})"


@pytest.fixture(autouse=True)
def _clear_done() -> None:
    done.clear()


async def test_days_pass_in_a_moment_and_everything_due_happens_in_order() -> None:
    begun = time.perf_counter()
    async with Lab(release) as lab:
        run = await lab.start(release, "main")
        await lab.settle()
        assert await run.status() == "waiting_approval"
        assert done == ["build main"]
        await lab.jump("2d")
        assert lab.now == datetime(2026, 1, 7, 10, 0, tzinfo=UTC)
        await lab.approve(run, by="ada")
        await lab.settle()
        assert "until a set time" in await run.why()
        await lab.jump("2h")
        assert await run.status() == "waiting_external"
        assert await lab.deliver(run, "healthy", {"by": "probe"})
        assert await run.result() == "shipped image:main (probe)"
        assert done == ["build main", "ship image:main"]
        await lab.check()
    assert time.perf_counter() - begun < 5


async def test_result_lets_as_much_time_pass_as_the_run_needs() -> None:
    @tenure.workflow(name="lab.sleeper")
    async def sleeper() -> datetime:
        await tenure.sleep("30d")
        await tenure.sleep(2)
        return await tenure.now()

    async with Lab(sleeper) as lab:
        run = await lab.start(sleeper)
        assert await run.result() == datetime(2026, 2, 4, 10, 0, 2, tzinfo=UTC)


async def test_result_of_a_run_that_waits_for_people_raises_instead_of_hanging() -> None:
    async with Lab(release) as lab:
        run = await lab.start(release, "main")
        with pytest.raises(LabStuck, match=r"waiting_approval.*nothing more is due in time"):
            await run.result(within="1d")


async def test_a_worker_that_dies_after_a_checkpoint_does_not_repeat_the_step() -> None:
    async with Lab(release) as lab:
        async with lab.crash_after("build"):
            run = await lab.start(release, "main")
        await lab.settle()
        assert await run.status() == "running"  # the death of its worker is not known yet
        await lab.jump("31s")
        assert await run.status() == "waiting_approval"
        assert done == ["build main"]


async def test_a_worker_that_dies_before_a_checkpoint_repeats_the_step() -> None:
    async with Lab(release) as lab:
        async with lab.crash_before("build"):
            run = await lab.start(release, "main")
        assert await run.reaches("waiting_approval") == "waiting_approval"
        assert done == ["build main", "build main"]


async def test_a_planned_crash_that_does_not_happen_is_an_error() -> None:
    async with Lab(release) as lab:
        with pytest.raises(LabStuck, match="a crash after 'ship' did not happen"):
            async with lab.crash_after("ship"):
                await lab.start(release, "main")


async def test_a_lease_is_kept_while_its_step_is_at_work_for_an_hour() -> None:
    go_on = asyncio.Event()

    @tenure.step(name="patient")
    async def patient() -> str:
        await go_on.wait()
        return "done"

    @tenure.workflow(name="lab.patient")
    async def flow() -> str:
        return str(await patient())

    async with Lab(flow) as lab:
        run = await lab.start(flow)
        await lab.reached("patient")
        await lab.jump("1h", leave="patient")
        assert await run.status() == "running"
        assert len(lab.workers[0].busy) == 1
        go_on.set()
        assert await run.result() == "done"
        assert (await run.recorded())["patient"].n == 1


async def test_a_step_that_does_not_end_is_named() -> None:
    @tenure.step(name="endless")
    async def endless() -> None:
        await asyncio.Event().wait()

    @tenure.workflow(name="lab.endless")
    async def flow() -> None:
        await endless()

    async with Lab(flow, patience=0.2, check=False) as lab:
        await lab.start(flow)
        with pytest.raises(LabStuck, match="in endless"):
            await lab.settle()


async def test_a_schedule_fires_by_jumps() -> None:
    seen: list[str] = []

    @tenure.workflow(name="lab.nightly")
    async def nightly() -> None:
        seen.append((await tenure.now()).isoformat())

    async with Lab(nightly) as lab:
        await lab.schedule("nightly", nightly, "30 2 * * *")
        await lab.jump("3d")
        assert seen == [f"2026-01-0{day}T02:30:00+00:00" for day in (6, 7, 8)]
        assert {await run.status() for run in await lab.runs()} == {"succeeded"}


async def test_a_crash_at_any_commit_does_not_change_the_result() -> None:
    async def story(lab: Lab) -> None:
        run = await lab.start(release, "main")
        await run.reaches("waiting_approval")
        await lab.approve(run)
        await run.reaches("waiting_external")
        await lab.deliver(run, "healthy", {"by": "probe"})
        assert await run.result() == "shipped image:main (probe)"

    assert await crash_everywhere(story, release) > 15


async def test_the_clock_stands_still_between_jumps() -> None:
    async with Lab(release) as lab:
        before = lab.now
        run = await lab.start(release, "main")
        await lab.settle()
        assert lab.now == before
        events = await run.history()
        assert {event.at for event in events} == {before}
        await lab.jump(timedelta(minutes=1))
        assert lab.now - before == timedelta(minutes=1)


def test_a_lab_that_is_not_open_raises() -> None:
    with pytest.raises(RuntimeError, match=re.escape("async with Lab(…)")):
        _ = Lab(release).engine


async def test_a_run_that_stays_in_memory_is_not_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run with many recorded steps stays in memory for a moment. The clock does not jump during that time."""
    monkeypatch.setattr(execution_waits, "STAY_SECONDS_PER_ROW", 0.3)

    @tenure.workflow(name="lab.staying")
    async def patient() -> str:
        try:
            await tenure.wait("healthy", within="10m")
        except tenure.WaitExpired:
            return "expired"
        return "healthy"

    async with Lab(patient) as lab:
        run, begun = await lab.start(patient), lab.now
        await run.reaches("waiting_external")
        assert lab.now == begun
        await lab.deliver(run, "healthy")
        assert await run.result() == "healthy"
