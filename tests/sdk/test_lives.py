"""A workflow's run among others: keys, pauses, resumes, many at once."""

from __future__ import annotations

import pytest

import tenure
from tenure.errors import TenureError
from tenure.testing import Lab
from tests.sdk.flows import Steps, flow, noted


async def test_many_runs_share_a_few_slots(url: str | None) -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    async def whole(n: int) -> int:
        await work(n)
        await tenure.sleep("1h")
        await work(n, "again")
        return n

    async with Lab(whole, workers=2, slots=3, url=url) as lab:
        runs = [await lab.start(whole, n) for n in range(20)]
        assert [await run.result() for run in runs] == list(range(20))
    assert len(done) == 40


async def test_the_same_request_again_is_the_same_run(url: str | None) -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    async def whole(n: int) -> str:
        return str(await work(n))

    async with Lab(whole, url=url) as lab:
        first = await lab.submit(whole, {"n": 1}, key="k")
        again = await lab.submit(whole, {"n": 1}, key="k")
        assert first.id == again.id
        assert await again.result() == "work 1"
        with pytest.raises(TenureError, match="IDEMPOTENCY"):
            await lab.submit(whole, {"n": 2}, key="k")
    assert done == ["work 1"]


async def test_runs_behind_one_key_follow_each_other() -> None:
    @flow
    async def whole(n: int) -> int:
        await tenure.sleep("1h")
        return n

    async with Lab(whole) as lab:
        begun = lab.now
        runs = [await lab.submit(whole, {"n": n}, concurrency_key="k") for n in range(3)]
        await lab.settle()
        assert [await run.status() for run in runs] == ["waiting_external", "queued", "queued"]
        # Who comes next is not said here: all three were made at the same moment.
        assert [await run.result() for run in runs] == [0, 1, 2]
        assert (lab.now - begun).total_seconds() >= 3 * 3600


async def test_a_paused_run_does_nothing_until_it_goes_on() -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    async def whole() -> str:
        await tenure.sleep("1h")
        return str(await work())

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.engine.pause(run.id)
        await lab.jump("2h")
        assert done == []
        await lab.engine.unpause(run.id)
        assert await run.result() == "work"


async def test_a_failed_run_that_is_resumed_reuses_what_was_done(url: str | None) -> None:
    done: Steps = []
    work = noted(done, "work")
    broken = True

    @tenure.step(retries=0)
    async def fragile() -> str:
        if broken:
            raise ConnectionError("away")
        return "there"

    @flow
    async def whole() -> str:
        await work()
        await tenure.sleep("1h")
        return str(await fragile())

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="away"):
            await run.result()
        broken = False
        resumed = lab.run(await lab.engine.resume(run.id), whole)
        assert await resumed.result() == "there"
    assert done == ["work"]
