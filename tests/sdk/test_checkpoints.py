"""What a checkpoint holds."""

from __future__ import annotations

import pytest

import tenure
from tenure import ids
from tenure.orchestrator.documents import document
from tenure.sdk import Workflow
from tenure.testing import Lab


@pytest.mark.clause("GWI-17")
async def test_a_checkpoint_holds_what_its_document_asks_for(url: str | None) -> None:
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
        first, second = await document(engine.views, engine.store, number, "git-with-intent", "checkpoints")
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
