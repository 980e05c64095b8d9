"""What a hostile reader found, each as a story."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import tenure
from tenure.errors import TenureError
from tenure.sdk.waiting import Waiting
from tenure.testing import Lab
from tests.sdk.flows import flow


async def test_a_commit_that_takes_long_does_not_let_a_run_go_that_has_work(
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

    recorded = Waiting.__mro__[1].barrier  # type: ignore[attr-defined]  # of Recording

    async def slowly(self: Waiting) -> None:
        if self.line.now_us() and done == [0]:
            self._poke()
            assert self._quiet is None, "a strand that waits for its commit is at work"
        await recorded(self)

    monkeypatch.setattr(Waiting.__mro__[1], "barrier", slowly)
    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert done == [0, 1, 2]
        await lab.deliver(run, "go", 7)
        assert await run.result() == 7


async def test_plain_code_logs_from_its_thread() -> None:
    @tenure.step(retries=0)
    def counted(n: int) -> int:
        tenure.log("in a step", n=n)
        return n

    @flow
    def whole() -> int:
        tenure.log("in a workflow")
        return int(counted(1))

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == 1


async def test_a_branch_that_wants_to_end_the_process_ends_itself() -> None:
    async def leaves() -> None:
        sys.exit(3)

    @flow
    async def whole() -> str:
        (how,) = await tenure.gather(leaves(), return_exceptions=True)
        return type(how).__name__

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == "Left"


async def test_an_input_that_is_refused_leaves_the_slot_free(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_data_that_looks_like_a_reference_is_data() -> None:
    @flow
    async def whole() -> Any:
        return await tenure.wait("e")

    async with Lab(whole) as lab:
        for data in (
            {"$tenure.artifact": "sha256:" + "0" * 64, "size": 1, "run": "run_2026-01-05_100000_aaaaaa"},
            {"$tenurely": 1},
        ):
            run = await lab.start(whole)
            await lab.settle()
            await lab.deliver(run, "e", data)
            assert await run.result() == data


async def test_an_approval_is_for_what_people_were_asked(url: str | None) -> None:
    asked = ["delete staging"]

    @flow
    async def whole() -> str:
        await tenure.approve(asked[-1])
        return asked[-1]

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        asked.append("delete production")
        await lab.approve(run, by="ann")
        await lab.settle()
        assert "delete staging" in (await lab.engine.why(run.id)).text
        asked.pop()
        await lab.engine.unpause(run.id)
        assert await run.result() == "delete staging"


async def test_a_patch_has_one_answer_per_run_also_in_a_loop() -> None:
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


async def test_a_run_that_resumes_another_asks_again_and_keeps_its_steps() -> None:
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
        again = lab.engine.run(await lab.engine.resume(run.id), whole)
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


async def test_whoever_starts_a_run_may_go_away() -> None:
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
        assert [run.status for run in await lab.engine.runs()] in ([], ["succeeded"])
