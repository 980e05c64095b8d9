"""From a database's address to its store; the drivers are imported only when they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from tenure.config import Database
from tenure.private_files import hide, hide_database
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

        _hide_connection(database.address)
        return PostgresStore(database.address)
    hide_database(database.address)
    from tenure.store.sqlite import SqliteStore

    return SqliteStore(database.address, only_reads=only_reads)


def _hide_connection(dsn: str) -> None:
    """Keep from commands what a connection is made with: a socket's folder, and files with passwords and keys."""
    asked = parse_qs(urlsplit(dsn).query)
    named = [value for name in ("host", "passfile", "sslkey") for value in asked.get(name, ())]
    hide(*(each for value in named for each in value.split(",") if each.startswith("/")))
    hide(*(os.environ[name] for name in ("PGPASSFILE", "PGSSLKEY") if os.environ.get(name)))
    hide(Path.home() / ".pgpass")
