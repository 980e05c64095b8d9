"""From a database's address to its store; the drivers are imported only when they are asked for."""

from __future__ import annotations

from typing import Protocol

from tenure.config import Database
from tenure.store.port import Store


class MigratableStore(Store, Protocol):
    """A store that can bring its schema up to date."""

    async def migrate(self) -> list[str]:
        """Apply the migrations that are missing; their names."""
        ...


def open_store(database: Database | str, *, only_reads: bool = False) -> MigratableStore:
    """The store at an address (see `tenure.config`), not yet opened.

    `only_reads`: a file that cannot be written is good enough.
    """
    if isinstance(database, str):
        database = Database.parse(database)
    if database.kind == "postgres":
        from tenure.store.postgres import PostgresStore

        return PostgresStore(database.address)
    from tenure.store.sqlite import SqliteStore

    return SqliteStore(database.address, only_reads=only_reads)
