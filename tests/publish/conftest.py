"""`url` and `place`: an empty database, and an empty place for documents. A test that asks for both runs with SQLite and files, and with
PostgreSQL and a bucket."""

from pathlib import Path
from uuid import uuid4

import pytest

from tools.s3_server import PrivateS3


@pytest.fixture(params=["embedded", "service"])
def kind(request: pytest.FixtureRequest) -> str:
    """`embedded`: SQLite and files. `service`: PostgreSQL and S3."""
    name: str = request.param
    return name


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """The address of an empty database."""
    if kind == "embedded":
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


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """The address of an empty place for documents."""
    if kind == "embedded":
        return str(tmp_path / "documents")
    found: str = request.getfixturevalue("bucket")
    return found
