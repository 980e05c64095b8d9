"""`tenure up governed-runtime`, played on both stores with doubles of ServiceNow and Slack."""

from pathlib import Path

import pytest

from tenure.systems import governed_runtime
from tenure.systems.stage import StageOptions, open_stage


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str | None:
    """The database of the story: a file of its own (None), or PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


@pytest.mark.guard_seconds(180)
@pytest.mark.clause("GOV-15", "GOV-16", "GOV-20", "GOV-21", "GOV-22", "GOV-24", "GOV-25")
async def test_an_incident_is_assigned_by_two_people_proven_and_undone(
    database: str | None, tmp_path: Path
) -> None:
    options = StageOptions(folder=tmp_path, database=database)
    async with open_stage(options, governed_runtime.PARTS, print) as stage:
        await governed_runtime.play(stage)
        assert stage.missing == []
