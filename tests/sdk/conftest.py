"""The databases the SDK's stories are told on."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """Where a lab lies: its own SQLite file (None), or PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))
