"""Stories about fences: who may change what a run has, and what its commands may see."""

from __future__ import annotations

from pathlib import Path

from tenure.embedded import StepSpec
from tests.embedded.stage import stage


async def statement_changes_no_status(folder: Path) -> None:
    """Somebody's word that a run was reported is in its view and its history, and its status is what it was."""
    async with stage(f"sqlite:{folder / 'story.db'}") as engine:
        run = await engine.create("w", [StepSpec(name="build")], profile="delta-ci")
        await engine.complete(await engine.claim())
        said = await engine.mark_reported(run, actor="ada")
        seen = await engine.get(run)
        assert (seen.shown, seen.reported_statement) == ("SUCCESS", said)
