"""Databases of both kinds with ledgers, opened through the store or changed with plain SQL."""

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
    """A database with ledgers."""

    def __init__(self, kind: str, folder: Path, dsn: str) -> None:
        self.kind = kind
        self.folder = folder
        self._dsn = dsn

    @property
    def file(self) -> Path:
        """The SQLite file."""
        return self.folder / "tenure.db"

    @property
    def url(self) -> str:
        """The URL of the database."""
        return str(self.file) if self.kind == "sqlite" else self._dsn

    def back_up(self) -> None:
        """Copy the SQLite file."""
        shutil.copy(self.file, self.folder / "backup.db")

    def put_back(self) -> None:
        """Replace the database by the copy."""
        for left in self.folder.glob("tenure.db*"):
            if left.is_file():
                left.unlink()
        shutil.copy(self.folder / "backup.db", self.file)

    def bytes(self) -> bytes:
        """Return the content of all files of the SQLite database."""
        return b"".join(
            file.read_bytes() for file in sorted(self.folder.glob("tenure.db*")) if file.is_file()
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """Open a store. A second call opens a second store on the same database."""
        async with open_store(self.kind, self.folder, self._dsn) as store:
            yield store

    async def execute_sql(self, statement: str) -> None:
        """Execute a statement without Tenure, as an attacker with write access would."""
        if self.kind == "sqlite":
            connection = apsw.Connection(str(self.file))
            connection.execute(statement)
            connection.close()
        else:
            postgres = await asyncpg.connect(self._dsn, server_settings={"search_path": "tenure"})
            await postgres.execute(statement)
            await postgres.close()


def created(count: int, first: int = 0, tenant: str = "acme") -> list[LedgerEntry]:
    """Return leaves of runs that do not exist."""
    return [
        ledger_leaves.created_leaf(tenant, RUN + n, bytes([n % 251]) * 32)
        for n in range(first, first + count)
    ]


async def append(store: Store, tenant: str, entries: list[LedgerEntry], now: int = 7) -> list[LedgerLeafRow]:
    """Append leaves in one transaction."""

    def work() -> Transaction[list[LedgerLeafRow]]:
        return (yield from append_leaves(tenant, entries, now))

    return await run_transaction(store, work)


async def all_leaves(store: Any, tenant: str) -> list[LedgerLeafRow]:
    """Return all leaves of a ledger."""
    found: list[LedgerLeafRow] = await store.read("leaves_after", tenant, -1, 10_000)
    return found
