"""`place`: where a world may be made, on each store in turn."""

from pathlib import Path

import pytest

from tests.conformance.world import Place


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return Place("sqlite", str(tmp_path / "world.db"))
    return Place("postgres", request.getfixturevalue("migrated_dsn"))


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    """An empty SQLite file, for what only SQLite has."""
    return Place("sqlite", str(tmp_path / "world.db"))


@pytest.fixture
def postgres_place(migrated_dsn: str) -> Place:
    """An empty PostgreSQL database, for what only PostgreSQL has."""
    return Place("postgres", migrated_dsn)
