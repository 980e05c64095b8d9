"""Each story of `story_bugs.py` passes on the real code and fails with its bug, with the message that the bug names."""

from pathlib import Path

import pytest

from tenure.errors import TenureError
from tests.chaos.story_bugs import PLANTED_BUGS
from tests.simulation.planted_bugs import Bug, planted


@pytest.mark.parametrize("name", PLANTED_BUGS)
async def test_a_story_detects_its_planted_bug(name: str, tmp_path: Path) -> None:
    bug = PLANTED_BUGS[name]
    (tmp_path / "real").mkdir()
    (tmp_path / "planted").mkdir()
    await bug.story(tmp_path / "real")
    with (
        planted(Bug(bug.what, bug.changes, seed=0)),
        pytest.raises((AssertionError, TenureError), match=bug.noticed),
    ):
        await bug.story(tmp_path / "planted")
