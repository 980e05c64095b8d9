"""Makes the store for a database's address. Drivers are imported when they are needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from tenure.config import Database, choose_listen, choose_patience
from tenure.private_files import hide, hide_database
from tenure.store.port import Store


class MigratableStore(Store, Protocol):
    """A store that can bring its schema up to date."""

    async def wait_until_reachable(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until the database can be reached, at most `seconds` (STORE_UNAVAILABLE); `tell` gets the reason."""

    async def migrate(self) -> list[str]:
        """Apply the missing migrations; their names."""


def open_store(
    database: Database | str, *, only_reads: bool = False, listen_dsn: str | None = None
) -> MigratableStore:
    """The store at an address (see `tenure.config`), not yet opened.

    `only_reads`: a file that cannot be written, or a standby, is good enough.
    """
    if isinstance(database, str):
        database = Database.parse(database)
    if database.kind == "postgres":
        from tenure.store.postgres import PostgresStore

        listen = choose_listen(listen_dsn)
        _hide_connection(database.address)
        if listen is not None:
            _hide_connection(listen)
        return PostgresStore(
            database.address,
            listen_dsn=listen,
            patience_seconds=choose_patience(),
            only_reads=only_reads,
        )
    hide_database(database.address)
    from tenure.store.sqlite import SqliteStore

    return SqliteStore(database.address, only_reads=only_reads, busy_seconds=choose_patience())


def _hide_connection(dsn: str) -> None:
    """Hide from confined commands what a connection needs: the socket's folder, and files with passwords and keys."""
    asked = parse_qs(urlsplit(dsn).query)
    named = [value for name in ("host", "passfile", "sslkey") for value in asked.get(name, ())]
    hide(*(each for value in named for each in value.split(",") if each.startswith("/")))
    hide(*(os.environ[name] for name in ("PGPASSFILE", "PGSSLKEY") if os.environ.get(name)))
    hide(Path.home() / ".pgpass")


MESSAGE_INTERVAL_SECONDS = 10.0
"""How often a message about waiting is repeated."""


def throttle_messages(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Pass on the first message at once, and later ones at most every MESSAGE_INTERVAL_SECONDS."""
    told_at = -MESSAGE_INTERVAL_SECONDS

    def hear(text: str) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at >= MESSAGE_INTERVAL_SECONDS:
            told_at = now
            tell(text)

    return hear
