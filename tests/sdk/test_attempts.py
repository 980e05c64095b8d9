"""Steps that fail, time out or are stopped, and what a crash leaves of them."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import tenure
from tenure.errors import TenureError
from tenure.testing import Lab
from tests.sdk.flows import Steps, flow, noted


class Flaky:
    """A step that fails its first tries."""

    def __init__(self, failures: int, **options: Any) -> None:
        self.tries = 0
        self.failures = failures
        self.attempts: list[int] = []
        self.keys: set[str] = set()
        self.step = tenure.step(name="flaky", **options)(self._work)

    async def _work(self) -> str:
        self.tries += 1
        self.attempts.append(tenure.current().attempt)
        self.keys.add(tenure.current().key)
        if self.tries <= self.failures:
            raise ConnectionError(f"try {self.tries}")
        return f"try {self.tries}"


def using(flaky: Flaky) -> Any:
    @flow
    async def whole() -> str:
        return str(await flaky.step())

    return whole


async def test_a_step_is_retried_until_it_succeeds(url: str | None) -> None:
    flaky = Flaky(2, retries=3, backoff=[1, 2, 4])
    whole = using(flaky)
    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        assert await run.result() == "try 3"
        assert (await run.recorded())["flaky"].tries == 3
    assert flaky.attempts == [1, 2, 3]
    assert len(flaky.keys) == 1  # the idempotency key is the same in every try


async def test_backoff_follows_the_clock() -> None:
    flaky = Flaky(3, retries=3, backoff=[1, 10, "1h"], jitter=0)
    whole = using(flaky)
    async with Lab(whole) as lab:
        begun = lab.now
        run = await lab.start(whole)
        await lab.settle()
        assert flaky.tries == 1
        assert lab.workers[0].busy  # a short backoff passes in memory
        await lab.jump(0.9)
        assert flaky.tries == 1
        await lab.jump(0.2)
        assert flaky.tries == 2
        assert lab.workers[0].busy == []  # a long one does not
        await lab.jump(8)
        assert flaky.tries == 2
        await run.result()
        assert lab.now - begun == timedelta(seconds=1 + 10 + 3600) + (lab.now - begun) % timedelta(seconds=1)


async def test_after_the_last_try_the_run_fails_with_a_code_and_a_message(
    url: str | None,
) -> None:
    flaky = Flaky(99, retries=2, backoff=[1])
    whole = using(flaky)
    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="step 'flaky' failed after 3 tries: ConnectionError: try 3"):
            await run.result()
        view = await lab.engine.get(run.id)
        assert (view.status, view.reason) == ("failed", "STEP_FAILED")
        assert "ConnectionError: try 3" in str(view.error)
        await lab.jump("30d")
        assert await run.status() == "failed"  # it is not retried automatically
        assert flaky.tries == 3
        flaky.failures = 0
        again = lab.run(await lab.engine.runs.rerun(run.id), whole)  # its owner can rerun it
        assert await again.result() == "try 4"


async def test_the_budget_of_tries_survives_a_crash() -> None:
    flaky = Flaky(99, retries=3, backoff=[1])
    whole = using(flaky)
    async with Lab(whole) as lab:
        async with lab.crash_after("flaky"):
            run = await lab.start(whole)
        assert flaky.tries == 1
        async with lab.crash_after("flaky"):
            await lab.jump("40s")
        with pytest.raises(TenureError, match="after 4 tries"):
            await run.result()
    assert flaky.attempts == [1, 2, 3, 4]


async def test_a_failure_sets_its_code_and_whether_it_is_retried() -> None:
    tries: Steps = []

    @tenure.step(retries=5, backoff=[1])
    async def pay(retryable: bool) -> None:
        tries.append("pay")
        raise tenure.Failure("CARD_DECLINED", "no money", retryable=retryable)

    @flow
    async def whole(retryable: bool) -> str:
        try:
            await pay(retryable)
        except tenure.StepFailed as failed:
            return f"{failed.step} {failed.code} {failed.message} {failed.tries}"
        return "paid"

    async with Lab(whole) as lab:
        once = await lab.start(whole, False)
        assert await once.result() == "pay CARD_DECLINED no money 1"
        often = await lab.start(whole, True)
        assert await often.result() == "pay CARD_DECLINED no money 6"
    assert len(tries) == 7


async def test_a_caught_failure_is_the_same_in_every_replay() -> None:
    seen: Steps = []
    flaky = Flaky(1, retries=0)

    @flow
    async def whole() -> None:
        try:
            await flaky.step()
        except tenure.StepFailed as failed:
            seen.append(str(failed))
        await tenure.sleep("1h")

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await run.result()
    assert len(seen) == 2
    assert len(set(seen)) == 1
    assert flaky.tries == 1


# ------------------------------------------------------------------- steps that must not be repeated


async def test_a_step_that_must_not_be_repeated_ends_the_run_if_its_outcome_is_unknown(
    url: str | None,
) -> None:
    done: Steps = []
    pay = noted(done, "pay", idempotent=False)

    @flow
    async def whole() -> str:
        try:
            return str(await pay())
        except BaseException:  # even if the code catches everything
            return "swallowed"

    async with Lab(whole, url=url) as lab:
        async with lab.crash_before("pay"):
            run = await lab.start(whole)
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert failed.value.code == "RUN_RESUME_FAILED"
    assert done == ["pay"]


async def test_a_recorded_step_is_reused_repeated_or_fatal_by_its_options(url: str | None) -> None:
    done: Steps = []
    skipped = noted(done, "skipped")
    repeated = noted(done, "repeated", resumable=False)
    neither = noted(done, "neither", resumable=False, idempotent=False)
    last, end = noted(done, "last"), noted(done, "end")

    @flow
    async def whole(risky: bool) -> str:
        first = f"{await skipped()} {await repeated()}"
        if risky:
            await neither()
        return f"{first} {await last()} {await end()}"

    async with Lab(whole, url=url) as lab:
        async with lab.crash_after("last"):
            run = await lab.start(whole, False)
        assert await run.result() == "skipped repeated last end"
        assert done == ["skipped", "repeated", "last", "repeated", "end"]
        done.clear()
        async with lab.crash_after("last"):
            run = await lab.start(whole, True)
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert failed.value.code == "RUN_RESUME_FAILED"
    assert done.count("neither") == 1


async def test_a_step_that_must_not_be_repeated_is_skipped_once_its_result_is_there() -> None:
    done: Steps = []
    pay = noted(done, "pay", idempotent=False)

    @flow
    async def whole() -> str:
        paid = await pay()
        await tenure.sleep("1h")
        return str(paid)

    async with Lab(whole) as lab:
        async with lab.crash_after("pay"):
            run = await lab.start(whole)
        assert await run.result() == "pay"
    assert done == ["pay"]


async def test_a_step_that_must_not_be_repeated_is_not_retried_by_default() -> None:
    once, twice = Flaky(1, idempotent=False), Flaky(1, idempotent=False, retries=1, backoff=[1])
    async with Lab(using(once)) as lab:
        run = await lab.start(using(once))
        with pytest.raises(TenureError, match="try 1"):
            await run.result()
    async with Lab(using(twice)) as lab:
        run = await lab.start(using(twice))
        assert await run.result() == "try 2"


# ------------------------------------------------------------------------------------------- time limits


@pytest.mark.parametrize("plain", [False, True])
async def test_a_step_that_takes_too_long_is_stopped(plain: bool) -> None:
    stopped: Steps = []
    pause = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("stopped")

    def endless_plain() -> None:
        frame = tenure.current()
        while not frame.canceled:
            pause.wait(0.005)
        stopped.append("stopped")

    step = tenure.step(name="endless", timeout="10m", retries=0)(endless_plain if plain else endless)

    @flow
    async def whole() -> str:
        try:
            await step()
        except tenure.StepFailed as failed:
            return f"{failed.code}: {failed.message}"
        return "done"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.reached("endless")
        await lab.jump("9m59s", leave="endless")
        assert await run.status() == "running"
        await lab.jump("2s", leave="endless")
        assert await run.result() == "STEP_TIMED_OUT: step 'endless' took more than 600 s"
    for _ in range(200):
        if stopped:
            break
        await asyncio.sleep(0.005)
    assert stopped == ["stopped"]


async def test_a_step_without_progress_is_stopped_and_one_with_progress_is_not() -> None:
    go = asyncio.Event()

    @tenure.step(progress_within="1m", retries=0)
    async def crawl() -> str:
        for n in range(3):
            tenure.current().progress(f"page {n}")
            await go.wait()
            go.clear()
        await asyncio.Event().wait()
        return "done"

    @flow
    async def whole() -> str:
        try:
            return str(await crawl())
        except tenure.StepFailed as failed:
            return f"{failed.code} {failed.message}"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.reached("crawl")
        for _ in range(3):
            await lab.jump("50s", leave="crawl")
            assert await run.status() == "running"
            go.set()
            await asyncio.sleep(0.01)
        await lab.jump("61s", leave="crawl")
        assert (await run.result()).startswith("STEP_STALLED")


async def test_a_run_that_takes_too_long_fails_wherever_it_is(url: str | None) -> None:
    @flow(timeout="1h")
    async def whole() -> None:
        await tenure.sleep("2h")

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.jump("59m")
        assert await run.status() == "waiting_external"
        await lab.jump("2m")
        assert await run.status() == "timed_out"
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert failed.value.code == "RUN_TIMED_OUT"


# ------------------------------------------------------------------------------------------ cancellation


async def test_a_step_sees_its_cancellation_and_can_clean_up(url: str | None) -> None:
    seen: Steps = []
    after = noted(seen, "after")

    @tenure.step
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("canceled")
            raise

    @flow
    async def whole() -> None:
        await endless()
        await after()

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.reached("endless")
        assert await lab.cancel(run) == "canceling"
        await lab.settle()
        assert await run.status() == "canceled"
        with pytest.raises(TenureError) as failed:
            await run.result()
        assert failed.value.code == "RUN_CANCELED"
    assert seen == ["canceled"]


async def test_plain_code_can_see_its_cancellation() -> None:
    seen: Steps = []

    @tenure.step
    def endless() -> None:
        frame = tenure.current()
        while not frame.canceled:
            threading.Event().wait(0.002)
        seen.append("canceled")

    @flow
    async def whole() -> None:
        await endless()

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.reached("endless")
        await lab.cancel(run)
        await lab.settle()
        assert await run.status() == "canceled"
        for _ in range(200):
            if seen:
                break
            await asyncio.sleep(0.005)
    assert seen == ["canceled"]


async def test_a_run_that_waits_is_canceled_at_once(url: str | None) -> None:
    done: Steps = []
    after = noted(done, "after")

    @flow
    async def whole() -> None:
        try:
            await tenure.gather(tenure.approve("Go?"), tenure.wait("x"), tenure.sleep("1d"))
        finally:
            await after()

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await lab.settle()
        assert await lab.cancel(run) == "canceled"
        await lab.jump("2d")
        assert await run.status() == "canceled"
    assert done == []


async def test_a_cancellation_while_a_backoff_passes_in_memory_is_seen() -> None:
    flaky = Flaky(9, retries=9, backoff=[4])
    whole = using(flaky)
    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.settle()
        await lab.cancel(run)
        await lab.settle()
        assert await run.status() == "canceled"
    assert flaky.tries == 1


async def test_a_canceled_run_may_clean_up_and_is_canceled_whatever_it_returns() -> None:
    done: Steps = []
    clean = noted(done, "clean")

    @tenure.step
    async def endless() -> None:
        await asyncio.Event().wait()

    @flow
    async def whole() -> str:
        try:
            await endless()
        except asyncio.CancelledError:
            await clean()
        return "finished all the same"

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await lab.reached("endless")
        await lab.cancel(run)
        await lab.settle()
        assert await run.status() == "canceled"
        assert (await run.recorded())["clean"].state == "done"
    assert done == ["clean"]


async def test_code_that_fails_by_itself_fails_the_run_with_its_place() -> None:
    @flow
    async def whole() -> None:
        raise ValueError("no such thing")

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match=r"ValueError: no such thing \(test_attempts\.py:\d+\)"):
            await run.result()
