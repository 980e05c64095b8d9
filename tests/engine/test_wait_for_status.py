"""Waiting for a status: it is reached, it can no longer be reached, or it is not reached in time."""

from pathlib import Path

import pytest

from tenure.engine import StepSpec
from tenure.errors import TenureError
from tests.engine.stage import stage


async def test_reaches_waits_for_a_status(tmp_path: Path) -> None:
    async with stage(f"sqlite:{tmp_path / 'runs.db'}") as engine:
        run = engine.run(await engine.create("w", [StepSpec(name="ok", kind="approval")]))
        assert await run.reaches("waiting_approval", wait=5) == "waiting_approval"
        with pytest.raises(TenureError, match="is still waiting_approval") as late:
            await run.reaches("failed", "succeeded", wait=0.02)
        assert late.value.code == "COMMAND_DEADLINE"
        with pytest.raises(TenureError, match="'done' is not among") as unknown:
            await run.reaches("done")
        assert unknown.value.code == "INVALID_INPUT"
        await engine.approve(run.id, approver="ada")
        assert await run.reaches("failed", "succeeded") == "succeeded"
        with pytest.raises(TenureError, match="is succeeded and will not be running") as over:
            await run.reaches("running")
        assert over.value.code == "RUN_TERMINAL_STATE"
