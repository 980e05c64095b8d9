"""The smaller primitives: time, random values, costs, logs, and the current step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tenure
from tenure.errors import TenureError
from tenure.testing import Lab
from tests.sdk.flows import flow


async def test_time_and_random_values_are_the_same_in_every_replay(url: str | None) -> None:
    seen: list[Any] = []

    @flow
    async def whole() -> None:
        seen.append([await tenure.now(), await tenure.uuid(), await tenure.random(), await tenure.now()])
        await tenure.sleep("1h")
        seen.append([await tenure.now(), await tenure.uuid(), await tenure.random()])

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await run.result()
    first, again, later = seen
    assert first == again
    assert (later[0] - first[0]).total_seconds() == pytest.approx(3600, abs=5)
    assert later[1] != first[1]
    assert 0 <= first[2] < 1
    assert type(first[1]) is type(again[1])


async def test_a_plain_workflow_has_recorded_time_and_random_values() -> None:
    @flow
    def whole() -> list[str]:
        found: list[Any] = [tenure.now(), tenure.uuid(), tenure.random(), tenure.patched("x")]
        return [type(each).__name__ for each in found]

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        assert await run.result() == ["datetime", "UUID", "float", "bool"]


async def test_a_checkpoint_records_a_step_and_its_cost(url: str | None) -> None:
    @tenure.step(agent="reviewer", idempotent=False)
    async def review(path: str) -> dict[str, str]:
        tenure.report_cost("acme", "large", tokens_in=1000, tokens_out=50, money="0.0125")
        tenure.report_cost("acme", "small", tokens_in=10, tokens_out=5)
        return {"verdict": f"{path} is fine"}

    @tenure.step(agent="writer", retries=0, resumable=False)
    async def write() -> None:
        raise tenure.Failure("NO_WORDS", "left")

    @flow
    async def whole() -> None:
        await review("a.py")
        try:
            await write()
        except tenure.StepFailed:
            await tenure.sleep("1h")

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await run.result()
        rows = await run.recorded()
        views = {each.name: each for each in await run.steps()}
        reviewed, wrote = rows["review"], rows["write"]
        meta = msgspec.json.decode(reviewed.meta or "{}")
        assert (reviewed.name, reviewed.state, reviewed.resumable, reviewed.idempotent) == (
            "review", "done", True, False,
        )  # fmt: skip
        assert len(reviewed.arguments) == 8  # the digest of its input
        assert reviewed.at > 0
        assert views["review"].output == {"verdict": "a.py is fine"}
        assert (meta["agent"], meta["tokens_in"], meta["tokens_out"]) == ("reviewer", 1010, 55)
        assert meta["us"] >= 0  # the duration
        assert meta["costs"][0] == {
            "provider": "acme", "model": "large", "tokens_in": 1000, "tokens_out": 50, "micros": 12500,
        }  # fmt: skip
        assert (wrote.state, wrote.error, wrote.resumable, wrote.idempotent) == (
            "failed", "NO_WORDS", False, True,
        )  # fmt: skip
        assert msgspec.json.decode(wrote.meta or "{}")["agent"] == "writer"


async def test_costs_of_many_calls_are_summed() -> None:
    @tenure.step
    async def chat() -> None:
        for n in range(500):
            tenure.report_cost("acme", f"model-{n % 3}", tokens_in=2, tokens_out=1, money=0.000001)

    @tenure.step
    async def zoo() -> None:
        for n in range(500):
            tenure.report_cost("acme", f"{'m' * 90}-{n}", tokens_in=1)

    @flow
    async def whole() -> None:
        await chat()
        await zoo()

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await run.result()
        rows = await run.recorded()
        meta = msgspec.json.decode(rows["chat"].meta or "{}")
        assert (meta["tokens_in"], meta["tokens_out"]) == (1000, 500)
        assert len(meta["costs"]) == 3
        assert sum(cost["micros"] for cost in meta["costs"]) == 500
        assert msgspec.json.decode(rows["zoo"].meta or "{}")["tokens_in"] == 500


async def test_impossible_costs_are_refused() -> None:
    @tenure.step(retries=0)
    async def chat() -> None:
        tenure.report_cost("acme", "large", tokens_in=-1)

    @flow
    async def whole() -> None:
        await chat()

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        with pytest.raises(TenureError, match="tokens and money must not be negative"):
            await run.result()


async def test_log_lines_are_stored_with_the_run(url: str | None) -> None:
    @tenure.step
    async def build() -> None:
        tenure.log("building", image="app:7", odd=object)
        tenure.log("x" * 10_000, level="warning")

    @tenure.step
    def plain() -> None:
        tenure.log("from a thread", level="error")

    @flow
    async def whole() -> None:
        tenure.log("the workflow itself")
        await build()
        await plain()

    async with Lab(whole, url=url) as lab:
        run = await lab.start(whole)
        await run.result()
        await lab.engine.work_source.flush()
        lines = await lab.engine.store.read("log_lines_of", lab.number(run), 0, 100)
    assert [(line.step, line.level) for line in lines] == [
        ("main", "info"), ("build", "info"), ("build", "warning"), ("plain", "error"),
    ]  # fmt: skip
    assert lines[0].text == "the workflow itself"
    assert msgspec.json.decode(lines[1].fields)["image"] == "app:7"
    assert len(lines[2].text) == 4_000


async def test_a_step_knows_its_run_its_name_and_its_try() -> None:
    seen: list[Any] = []

    @tenure.step
    async def look() -> None:
        here = tenure.current()
        seen.append((here.run_id, here.workflow, here.step, here.attempt, here.key, here.canceled))

    @flow
    async def whole() -> None:
        await look()
        await tenure.gather(look())

    async with Lab(whole) as lab:
        run = await lab.start(whole)
        await run.result()
        assert seen == [
            (run.id, "flow", "look", 1, f"{run.id}/look", False),
            (run.id, "flow", "look#2", 1, f"{run.id}/look#2", False),
        ]


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
