"""Every kind of store, opened on an empty database, and the shortest ways to speak to one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tenure.kernel.run_rows import Row, RunRow, RunSpecRow
from tenure.store.port import Query, Save, Saved, Store, Transaction
from tenure.store.postgres import PostgresStore
from tenure.store.sqlite import SqliteStore

KINDS = ("sqlite", "postgres")


def make_store(kind: str, tmp_path: Path, postgres_dsn: str) -> SqliteStore | PostgresStore:
    """A store that is not open yet; every one that is made for the same place has the same database."""
    if kind == "sqlite":
        return SqliteStore(tmp_path / "tenure.db")
    return PostgresStore(postgres_dsn)


@asynccontextmanager
async def open_store(kind: str, tmp_path: Path, postgres_dsn: str) -> AsyncIterator[Store]:
    """A migrated, open store. Opened twice for the same place it is two stores on one database."""
    store = make_store(kind, tmp_path, postgres_dsn)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def ask(store: Store, name: str, rows: Sequence[tuple[Any, ...]] = (), *scalars: Any) -> list[Any]:
    """One query in a transaction of its own."""

    def transaction() -> Transaction[list[Any]]:
        answer: list[Any] = yield Query(name, rows, scalars)
        return answer

    return await store.transact(transaction)


async def save(store: Store, one: Save, *, single: bool = False) -> Saved:
    """One save in a transaction of its own."""

    def transaction() -> Transaction[Saved]:
        saved: Saved = yield one
        return saved

    return await store.transact(transaction, single=single)


async def create(store: Store, run: RunRow, spec: RunSpecRow, *rows: Row) -> None:
    """A new run with rows beneath it."""
    saved = await save(store, Save(new_runs=[run], new_specs=[spec], rows=tables(rows)))
    assert saved.ids == {run.id}


def tables(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by their table, as a save wants them."""
    by_table: dict[str, list[Row]] = {}
    for row in rows:
        by_table.setdefault(row.table, []).append(row)
    return by_table


async def sizes(store: Store) -> dict[str, int]:
    """How many rows the tables have, the empty ones left out."""
    return {size.table: size.rows for size in await store.read("sizes") if size.rows}
