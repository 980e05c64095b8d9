"""`url`: an empty database of each kind. `place`: an empty place for documents of each kind."""

from pathlib import Path
from uuid import uuid4

import pytest

from tools.s3_server import PrivateS3


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'site.db'}"
    dsn: str = request.getfixturevalue("migrated_dsn")
    return dsn


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'site.db'}"


@pytest.fixture
def bucket(s3_server: PrivateS3, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in a real bucket."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server.place(uuid4().hex)


@pytest.fixture(params=["files", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty place for documents: a folder, and a bucket."""
    if request.param == "files":
        return str(tmp_path / "documents")
    found: str = request.getfixturevalue("bucket")
    return found
