"""`place`: where a world may be made, on each store in turn."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from tenure.devtools.postgres import ExternalPostgres, PrivatePostgres
from tenure.kernel.model import ROWS
from tenure.store import families
from tenure.store.postgres import PostgresStore
from tests.conformance.world import Place

_EMPTY = ";".join(f"delete from tenure.{table}" for table in (*ROWS, *families.ROWS))


@pytest.fixture(scope="session")
def _postgres_shared(
    postgres_server: ExternalPostgres | PrivatePostgres, _postgres_execute: Callable[[str], None]
) -> Iterator[str]:
    """One migrated database for all worlds: making one takes longer than most stories."""
    name = f"tenure_worlds_{os.getpid()}"
    _postgres_execute(f"create database {name}")
    asyncio.run(PostgresStore(postgres_server.dsn(name)).migrate())
    yield postgres_server.dsn(name)
    _postgres_execute(f"drop database {name} with (force)")


def _emptied(dsn: str) -> Place:
    async def empty() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(_EMPTY)
        await connection.close()

    asyncio.run(empty())
    return Place("postgres", dsn)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return Place("sqlite", str(tmp_path / "world.db"))
    return _emptied(request.getfixturevalue("_postgres_shared"))


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    """An empty SQLite file, for what only SQLite has."""
    return Place("sqlite", str(tmp_path / "world.db"))


@pytest.fixture
def postgres_place(_postgres_shared: str) -> Place:
    """An empty PostgreSQL database, for what only PostgreSQL has."""
    return _emptied(_postgres_shared)
