"""The story of `tenure up git-with-intent`, from the hook to the undo, with a worker that is killed in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tenure.systems.git_with_intent import GitWithIntentStory


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of the story: a file of its own (None), or PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


@pytest.mark.guard_seconds(180)
async def test_every_part_of_the_story_happens_once(url: str | None, tmp_path: Path) -> None:
    said: list[str] = []
    story, stay = GitWithIntentStory(tmp_path / "story", said.append, url), asyncio.Event()
    playing = asyncio.create_task(story.play(stay))
    try:
        while not (said and said[-1].startswith("the API is at")):
            assert not playing.done(), playing.result()
            await asyncio.sleep(0.05)
        address = said[-1].split()[4].rstrip(";")
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{address}/healthz")).status_code == 200, "it runs until it is stopped"
    finally:
        stay.set()
        checks = await playing
    assert [check.what for check in checks if not check.holds] == []
    assert len(checks) == 21, "every part was checked"
    assert any("kill -9" in line for line in said)
    assert story.github.token not in "".join(said)
