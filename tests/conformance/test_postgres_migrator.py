"""The schema in PostgreSQL: created once under concurrency, checked for changes, separate from other schemas."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tenure.errors import TenureError
from tenure.kernel.run_rows import ROWS, RunRow
from tenure.store import query_registry
from tenure.store.postgres import PostgresStore, migrator
from tenure.store.postgres.statements import SQL
from tests.conformance.samples import a_run, a_spec
from tests.conformance.stores import create
from tools.sql_schemas import POSTGRES_FILE, postgres_schema

NAMES = [name for _, name, _ in migrator.MIGRATIONS]


@asynccontextmanager
async def connect_directly(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "tenure"})
    try:
        yield connection
    finally:
        await connection.close()


async def refusal(store: PostgresStore) -> str:
    """The error code that `open` raises."""
    with pytest.raises(TenureError) as refused:
        await store.open()
    return refused.value.code


async def test_the_schema_file_equals_the_result_of_all_migrations(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = migrator.MIGRATIONS
    store = PostgresStore(postgres_dsn)
    for count in range(1, len(every) + 1):
        monkeypatch.setattr(migrator, "MIGRATIONS", every[:count])
        assert await store.migrate() == [every[count - 1][1]]
    assert await postgres_schema(postgres_dsn) == POSTGRES_FILE.read_text(), "run `make docs`"


async def test_columns_match_the_fields_of_the_rows_in_order(postgres_dsn: str) -> None:
    await PostgresStore(postgres_dsn).migrate()
    async with connect_directly(postgres_dsn) as connection:

        async def columns(of: str) -> list[str]:
            found = await connection.fetch(
                "select attname from pg_attribute where attrelid = $1::regclass and attnum > 0 order by attnum",
                of,
            )
            return [row[0] for row in found]

        for table, row in ROWS.items():
            assert await columns(table) == list(row.__struct_fields__), table
            assert await columns(f"{table}_in") == list(row.__struct_fields__), f"the input type of {table}"
        for table, row in query_registry.ROWS.items():
            assert await columns(table) == list(row.__struct_fields__), table
        changing = RunRow.__struct_fields__[RunRow.__struct_fields__.index("status") :]
        assert await columns("run_change_in") == ["id", "expected", "expected_head", "valid_until", *changing]
        assert all(f"{column} = n.{column}" in SQL["save_run"] for column in changing)


async def test_one_of_eight_concurrent_processes_applies_the_migrations(postgres_dsn: str) -> None:
    code = (
        "import asyncio, sys; from tenure.store.postgres import PostgresStore\n"
        "print(asyncio.run(PostgresStore(sys.argv[1]).migrate()))"
    )
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            postgres_dsn,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(8)
    ]
    outputs = [await process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, outputs
    assert sorted(out.decode().strip() for out, _ in outputs) == sorted(["[]"] * 7 + [str(NAMES)])


async def test_an_empty_or_older_database_is_reported_as_not_migrated(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(postgres_dsn)
    assert await refusal(store) == "STORE_NOT_MIGRATED"
    await store.migrate()
    newer = [*migrator.MIGRATIONS, (len(NAMES) + 1, "9999_more.sql", "create table more (id bigint)")]
    with monkeypatch.context() as later:
        later.setattr(migrator, "MIGRATIONS", newer)
        assert await refusal(store) == "STORE_NOT_MIGRATED"
        assert await store.migrate() == ["9999_more.sql"]
        await store.open()
        await store.close()
    assert await refusal(store) == "STORE_TOO_NEW"
    with pytest.raises(TenureError, match="STORE_TOO_NEW"):
        await store.migrate()


async def test_a_migration_that_fails_leaves_nothing_behind(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(postgres_dsn)
    broken = [
        *migrator.MIGRATIONS,
        (len(NAMES) + 1, "9999_bad.sql", "create table more (id bigint); select 1 / 0"),
    ]
    with monkeypatch.context() as later:
        later.setattr(migrator, "MIGRATIONS", broken)
        with pytest.raises(Exception, match="division by zero"):
            await store.migrate()
    assert await refusal(store) == "STORE_NOT_MIGRATED"
    assert await store.migrate() == NAMES


async def test_a_migration_that_changed_after_it_was_applied_is_refused(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(postgres_dsn)
    await store.migrate()
    changed = [(number, name, text + "\n") for number, name, text in migrator.MIGRATIONS]
    monkeypatch.setattr(migrator, "MIGRATIONS", changed)
    assert await refusal(store) == "STORE_NOT_A_DATABASE"


async def test_a_foreign_schema_is_not_touched(postgres_dsn: str) -> None:
    store = PostgresStore(postgres_dsn)
    async with connect_directly(postgres_dsn) as connection:
        await connection.execute("create schema tenure; create table tenure.theirs (id int)")
        assert await refusal(store) == "STORE_NOT_A_DATABASE"
        with pytest.raises(TenureError, match="STORE_NOT_A_DATABASE"):
            await store.migrate()


async def test_several_schemas_and_user_tables_share_a_database(postgres_dsn: str) -> None:
    async with connect_directly(postgres_dsn) as connection:
        await connection.execute("create table public.run (mine text); create schema prepared")
        stores = [PostgresStore(postgres_dsn, schema=name) for name in ("tenure", "prepared")]
        for number, store in enumerate(stores, 1):
            await store.migrate()
            await store.open()
            await create(store, a_run(number), a_spec(number, idempotency_key="the same"))
        try:
            ids = [[row.run_id for row in await store.read("run_ids_after", 0, 10)] for store in stores]
            assert ids == [[1], [2]]
            assert await connection.fetchval("select count(*) from public.run") == 0
            await stores[0].notify_work()
            while await stores[1].wait_for_work(0.05):
                pass  # one wake-up for the connection itself; none for the other schema
        finally:
            for store in stores:
                await store.close()


@pytest.mark.parametrize("schema", ["", "Tenure", "a b", 'x"; drop', "1st", "x" * 60])
def test_an_unusual_schema_name_is_refused(schema: str) -> None:
    with pytest.raises(TenureError, match="INVALID_INPUT"):
        PostgresStore("postgresql://", schema=schema)
