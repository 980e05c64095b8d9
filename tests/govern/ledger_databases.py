"""A database of each kind with ledgers in it: opened by us, and by somebody who writes it by hand."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from tenure.kernel.governance_rows import LedgerLeafRow
from tenure.proof import ledger_leaves
from tenure.proof.ledger_leaves import LedgerEntry
from tenure.store.ledger import append_leaves
from tenure.store.port import Store, Transaction
from tenure.store.transactions import run_transaction
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


def created(count: int, first: int = 0, tenant: str = "acme") -> list[LedgerEntry]:
    """Leaves of runs that nobody made."""
    return [
        ledger_leaves.created_leaf(tenant, RUN + n, bytes([n % 251]) * 32)
        for n in range(first, first + count)
    ]


async def append(store: Store, tenant: str, entries: list[LedgerEntry], now: int = 7) -> list[LedgerLeafRow]:
    """Append leaves, in a transaction of their own."""

    def work() -> Transaction[list[LedgerLeafRow]]:
        return (yield from append_leaves(tenant, entries, now))

    return await run_transaction(store, work)


async def all_leaves(store: Any, tenant: str) -> list[LedgerLeafRow]:
    """A whole ledger."""
    found: list[LedgerLeafRow] = await store.read("leaves_after", tenant, -1, 10_000)
    return found
