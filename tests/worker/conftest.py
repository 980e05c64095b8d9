"""The same tests on both stores."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'runs.db'}"
    dsn: str = request.getfixturevalue("migrated_dsn")
    return dsn


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The folder for the notes and gates of steps."""
    (tmp_path / "notes").mkdir()
    return str(tmp_path / "notes")
