"""`url`: an empty SQLite database. The runner reaches the server only over HTTP, so the kind of database does not matter."""

from pathlib import Path

import pytest


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'site.db'}"
