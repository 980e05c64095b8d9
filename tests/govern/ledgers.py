"""A database of each kind with ledgers in it: opened by us, and by somebody who writes it by hand."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from tenure.kernel import leaves
from tenure.kernel.governance import Leaf
from tenure.kernel.leaves import Entry
from tenure.store.beside import settled
from tenure.store.ledger import appended
from tenure.store.port import Store, Transaction
from tests.conformance.stores import open_store

RUN = 3_800_000_000_000_000_000


class LedgerPlace:
    """See above."""

    def __init__(self, kind: str, folder: Path, dsn: str) -> None:
        self.kind = kind
        self.folder = folder
        self._dsn = dsn

    @property
    def file(self) -> Path:
        """Of SQLite: where it lies."""
        return self.folder / "tenure.db"

    @property
    def url(self) -> str:
        """How it is named on a command line."""
        return str(self.file) if self.kind == "sqlite" else self._dsn

    def back_up(self) -> None:
        """Of SQLite: keep a copy of it as it is."""
        shutil.copy(self.file, self.folder / "backup.db")

    def put_back(self) -> None:
        """The copy takes the place of the database."""
        for left in self.folder.glob("tenure.db*"):
            if left.is_file():
                left.unlink()
        shutil.copy(self.folder / "backup.db", self.file)

    def bytes(self) -> bytes:
        """Of SQLite: all that lies on the disk of it."""
        return b"".join(
            file.read_bytes() for file in sorted(self.folder.glob("tenure.db*")) if file.is_file()
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """A store on it; opened twice it is two stores on one database."""
        async with open_store(self.kind, self.folder, self._dsn) as store:
            yield store

    async def by_hand(self, statement: str) -> None:
        """What somebody does who can write the database."""
        if self.kind == "sqlite":
            connection = apsw.Connection(str(self.file))
            connection.execute(statement)
            connection.close()
        else:
            postgres = await asyncpg.connect(self._dsn, server_settings={"search_path": "tenure"})
            await postgres.execute(statement)
            await postgres.close()


def created(count: int, first: int = 0, tenant: str = "acme") -> list[Entry]:
    """Leaves of runs that nobody made."""
    return [leaves.created(tenant, RUN + n, bytes([n % 251]) * 32) for n in range(first, first + count)]


async def append(store: Store, tenant: str, entries: list[Entry], now: int = 7) -> list[Leaf]:
    """Append leaves, in a transaction of their own."""

    def work() -> Transaction[list[Leaf]]:
        return (yield from appended(tenant, entries, now))

    return await settled(store, work)


async def all_leaves(store: Any, tenant: str) -> list[Leaf]:
    """A whole ledger."""
    found: list[Leaf] = await store.read("leaves_after", tenant, -1, 10_000)
    return found
