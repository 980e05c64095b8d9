"""Opens a store of each kind on an empty database, with shortcuts for single queries and saves."""

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
    """A store that is not open yet. Stores made with the same arguments share one database."""
    if kind == "sqlite":
        return SqliteStore(tmp_path / "tenure.db")
    return PostgresStore(postgres_dsn)


@asynccontextmanager
async def open_store(kind: str, tmp_path: Path, postgres_dsn: str) -> AsyncIterator[Store]:
    """A migrated, open store. Two calls with the same arguments give two stores on one database."""
    store = make_store(kind, tmp_path, postgres_dsn)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def ask(store: Store, name: str, rows: Sequence[tuple[Any, ...]] = (), *scalars: Any) -> list[Any]:
    """Run one query in its own transaction."""

    def transaction() -> Transaction[list[Any]]:
        answer: list[Any] = yield Query(name, rows, scalars)
        return answer

    return await store.transact(transaction)


async def save(store: Store, one: Save, *, single: bool = False) -> Saved:
    """Run one save in its own transaction."""

    def transaction() -> Transaction[Saved]:
        saved: Saved = yield one
        return saved

    return await store.transact(transaction, single=single)


async def create(store: Store, run: RunRow, spec: RunSpecRow, *rows: Row) -> None:
    """Create a run with rows of other tables."""
    saved = await save(store, Save(new_runs=[run], new_specs=[spec], rows=tables(rows)))
    assert saved.ids == {run.id}


def tables(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows by table, as `Save` expects them."""
    by_table: dict[str, list[Row]] = {}
    for row in rows:
        by_table.setdefault(row.table, []).append(row)
    return by_table


async def sizes(store: Store) -> dict[str, int]:
    """The number of rows per table, without empty tables."""
    return {size.table: size.rows for size in await store.read("sizes") if size.rows}
