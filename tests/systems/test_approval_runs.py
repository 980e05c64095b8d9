"""`tenure up approval-runs`, played with processes of its own on both stores."""

from pathlib import Path

import pytest

from tenure.systems import approval_runs
from tenure.systems.stage import StageOptions, open_stage


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str | None:
    """The database of the story: a file of its own (None), or PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


@pytest.mark.guard_seconds(180)
@pytest.mark.clause("APR-04", "APR-05", "APR-07", "APR-10", "APR-11", "APR-12", "APR-13", "APR-14", "APR-15")
async def test_a_template_passes_its_gates_and_survives_its_worker(
    database: str | None, tmp_path: Path
) -> None:
    options = StageOptions(folder=tmp_path, database=database)
    async with open_stage(options, approval_runs.PARTS, print) as stage:
        await approval_runs.play(stage)
        assert stage.missing == []
