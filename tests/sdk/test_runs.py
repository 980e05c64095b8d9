"""Runs of a workflow: idempotency keys, pauses, resumes, many at once."""

from __future__ import annotations

import asyncio

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


async def test_runs_with_one_concurrency_key_run_one_after_another() -> None:
    @flow
    async def whole(n: int) -> int:
        await tenure.sleep("1h")
        return n

    async with Lab(whole) as lab:
        begun = lab.now
        runs = [await lab.submit(whole, {"n": n}, concurrency_key="k") for n in range(3)]
        await lab.settle()
        assert [await run.status() for run in runs] == ["waiting_external", "queued", "queued"]
        # The order is not checked: all three were created at the same moment.
        assert [await run.result() for run in runs] == [0, 1, 2]
        assert (lab.now - begun).total_seconds() >= 3 * 3600


async def test_a_paused_run_does_nothing_until_it_is_resumed() -> None:
    done: Steps = []
    work = noted(done, "work")

    @flow
    async def whole() -> str:
        await tenure.sleep("1h")
        return str(await work())

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.engine.runs.pause(run.id)
        await lab.jump("2h")
        assert done == []
        await lab.engine.runs.unpause(run.id)
        assert await run.result() == "work"


async def test_a_resumed_run_reuses_recorded_steps(url: str | None) -> None:
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
        resumed = lab.run(await lab.engine.runs.resume(run.id), whole)
        assert await resumed.result() == "there"
    assert done == ["work"]


async def test_a_resumed_run_waits_and_repeats_steps_between_those_it_takes_over(url: str | None) -> None:
    """Waits and steps that are not resumable are not taken over, so the code calls them before recorded steps."""
    done: Steps = []
    first, last = noted(done, "first"), noted(done, "last")
    broken = True

    @tenure.step(resumable=False)
    async def look() -> None:
        done.append("look")

    @tenure.step(retries=0)
    async def fragile() -> str:
        if broken:
            raise ConnectionError("away")
        return "there"

    @flow
    async def whole() -> str:
        await first()
        await tenure.sleep("1h")
        await look()
        await tenure.sleep("1h")
        await tenure.sleep("1h")
        await last()
        return str(await fragile())

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="away"):
            await run.result()
        broken = False
        resumed = lab.run(await lab.engine.runs.resume(run.id), whole)
        assert await resumed.result() == "there"
    assert [name for name in done if name != "look"] == ["first", "last"]


async def test_a_refused_input_leaves_the_slot_free(monkeypatch: pytest.MonkeyPatch) -> None:
    @flow
    async def whole(text: str) -> int:
        return len(text)

    monkeypatch.setattr("tenure.artifacts.ARTIFACT_BYTES_MAX", 300_000)
    async with Lab(whole) as lab:
        for _ in range(200):
            with pytest.raises(TenureError) as refused:
                await lab.engine.start(whole, "x" * 400_000)
            assert refused.value.code == "PAYLOAD_TOO_LARGE"
        run = await lab.start(whole, "ab")
        assert await run.result() == 2


async def test_a_run_that_resumes_another_asks_for_approval_again_and_keeps_its_steps() -> None:
    done: list[str] = []
    lucky = [False]

    @tenure.step
    async def first() -> None:
        done.append("first")

    @tenure.step(retries=0)
    async def risky() -> str:
        if not lucky[0]:
            raise tenure.Failure("NO_LUCK")
        return "luck"

    @flow
    async def whole() -> str:
        await tenure.approve("begin")
        await first()
        return str(await risky())

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.approve(run, by="ann")
        with pytest.raises(TenureError):
            await run.result()
        lucky[0] = True
        again = lab.engine.run(await lab.engine.runs.resume(run.id), whole)
        await lab.settle()
        assert await again.status() == "waiting_approval"
        await lab.engine.approve(again.id, approver="person:ann")
        await lab.settle()
        assert await again.result(wait=5) == "luck"
    assert done == ["first"]


async def test_the_same_key_with_the_same_large_input_is_the_same_run() -> None:
    @flow
    async def whole(text: str) -> int:
        return len(text)

    async with Lab(whole) as lab:
        runs = {(await lab.engine.submit(whole, {"text": "x" * 300_000}, key="k")).id for _ in range(2)}
        assert len(runs) == 1


async def test_the_caller_of_start_may_be_canceled() -> None:
    @flow
    async def whole() -> str:
        return "done"

    async with Lab(whole) as lab:
        starting = asyncio.create_task(lab.engine.start(whole))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await lab.settle()
        assert [run.status for run in await lab.engine.runs.list()] in ([], ["succeeded"])
