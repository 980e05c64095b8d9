"""The fields of a checkpoint, and the limit of steps."""

from __future__ import annotations

from typing import Any

import pytest

import tenure
from tenure import ids
from tenure.reads.run_documents import read_document
from tenure.sdk import Workflow
from tenure.testing import Lab
from tests.worker.helpers import until


async def test_a_checkpoint_has_the_fields_of_its_document(url: str | None) -> None:
    @tenure.step(agent="coder", retries=0)
    async def generate(issue: int, style: str = "plain") -> dict[str, str]:
        tenure.report_cost("acme", "large", tokens_in=1200, tokens_out=340)
        return {"patch": f"fix {issue} ({style})"}

    @tenure.step(agent="reviewer", retries=0, resumable=False)
    async def review(patch: dict[str, str]) -> None:
        raise tenure.Failure("NOT_GOOD_ENOUGH", f"{patch['patch']} has no tests")

    async def fix(issue: int) -> str:
        patch = await generate(issue, style="terse")
        try:
            await review(patch)
        except tenure.StepFailed as failed:
            return failed.code
        return "fine"

    flow = Workflow(fix, profile="git-with-intent")
    async with Lab(flow, url=url) as lab:
        run = await lab.start(flow, 7)
        assert await run.result() == "NOT_GOOD_ENOUGH"
        engine, number = lab.engine, ids.run_int(run.id)
        first, second = await read_document(
            engine.scope.reader, engine.store, number, "git-with-intent", "checkpoints"
        )
    assert (first.step_id, first.agent, first.status) == ("generate", "coder", "completed")
    assert first.input == {"args": [7], "style": "terse"}
    assert first.output == {"patch": "fix 7 (terse)"}
    assert first.error is None
    assert first.tokens_used is not None
    assert (first.tokens_used.input, first.tokens_used.output) == (1200, 340)
    assert first.duration_ms is not None
    assert first.duration_ms >= 0
    assert (first.resumable, first.idempotent) == (True, True)
    assert (second.step_id, second.agent, second.status) == ("review", "reviewer", "failed")
    assert second.input == {"args": [{"patch": "fix 7 (terse)"}]}
    assert second.output is None
    assert second.error == "NOT_GOOD_ENOUGH: fix 7 (terse) has no tests"
    assert (second.resumable, second.idempotent) == (False, True)
    assert first.timestamp <= second.timestamp


async def test_a_run_at_its_limit_of_steps_is_parked_until_the_limit_is_raised(
    url: str | None,
) -> None:
    begun: list[int] = []

    @tenure.step
    async def one(number: int) -> int:
        begun.append(number)
        return number

    async def code(n: int) -> int:
        return sum([await one(number) for number in range(n)])

    small = Workflow(code, name="long", steps_max=10)
    async with Lab(small, url=url) as lab:
        run = await lab.start(small, 12)
        await lab.settle()
        assert begun == list(range(10)), "the step beyond the limit does not start"
        view = await lab.engine.get(run.id)
        assert view.status not in ("failed", "succeeded")
        assert "steps_max" in (view.parked or "")
        assert "steps_max" in (await lab.engine.runs.explain(run.id)).text

        async def is_logged() -> bool:
            return bool(await lab.engine.runs.logs(run.id))

        await until(is_logged, "the warning, which is written beside the run")
        logged = await lab.engine.runs.logs(run.id)
        assert [(line.level, line.text) for line in logged] == [
            ("warning", "8 of at most 10 steps are recorded: use `tenure.restart(...)` or raise `steps_max`")
        ]

        await lab.engine.runs.unpause(run.id)
        await lab.settle()
        assert "steps_max" in ((await lab.engine.get(run.id)).parked or ""), "the limit has not changed"

        larger = Workflow(code, name="long", steps_max=12)
        await lab.deploy(larger)
        await lab.engine.runs.unpause(run.id)
        assert await run.result() == sum(range(12))
        assert begun == list(range(12)), "no step was repeated"


@pytest.mark.parametrize("given", [0, 10_000_000, True, "many"])
def test_an_invalid_step_limit_is_refused(given: Any) -> None:
    async def code() -> None: ...

    with pytest.raises((TypeError, ValueError), match="steps_max"):
        Workflow(code, steps_max=given)
