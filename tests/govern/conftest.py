"""`ledger_place`: an empty database of each kind. On PostgreSQL it is one that is emptied: making one takes longer than a story."""

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
from tests.conformance.stores import KINDS
from tests.govern.ledgers import LedgerPlace

_EMPTY = ";".join(f"delete from tenure.{table}" for table in (*ROWS, *families.ROWS))


@pytest.fixture(scope="session")
def ledger_postgres(
    postgres_server: ExternalPostgres | PrivatePostgres, _postgres_execute: Callable[[str], None]
) -> Iterator[str]:
    """One migrated database for all these tests."""
    name = f"tenure_ledgers_{os.getpid()}"
    _postgres_execute(f"create database {name}")
    asyncio.run(PostgresStore(postgres_server.dsn(name)).migrate())
    yield postgres_server.dsn(name)
    _postgres_execute(f"drop database {name} with (force)")


@pytest.fixture(params=KINDS)
def ledger_place(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerPlace:
    if request.param == "sqlite":
        return LedgerPlace("sqlite", tmp_path, "")
    dsn: str = request.getfixturevalue("ledger_postgres")
    asyncio.run(_emptied(dsn))
    return LedgerPlace("postgres", tmp_path, dsn)


async def _emptied(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(_EMPTY)
    await connection.close()
