"""Fixtures with an empty database: `place` is one of each kind."""

from pathlib import Path

import pytest

from tests.conformance.world import Place


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place("sqlite", str(tmp_path / "world.db"))
    return Place("postgres", request.getfixturevalue("migrated_dsn"))


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    return Place("sqlite", str(tmp_path / "world.db"))


@pytest.fixture
def postgres_place(migrated_dsn: str) -> Place:
    return Place("postgres", migrated_dsn)
