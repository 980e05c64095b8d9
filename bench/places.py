"""The databases of the bench: files in a folder on the checkout's disk, and a private PostgreSQL in the same folder.

Laws:
1. Each sample begins with an empty database, which is removed afterwards.
2. The floor's tables are on the same disk as Tenure's and, on PostgreSQL, in the same server with the same settings.
3. A temporary folder on tmpfs is memory, not a disk. It is used only if there is no other, and the report says so.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
)
from pathlib import Path
from typing import Any, Protocol, TypeVar

import apsw
import asyncpg

from bench.floors import PostgresFloor, SqliteFloor
from tenure.store.port import Store
from tenure.store.postgres.store import PostgresStore
from tenure.store.sqlite.connection import PRAGMAS
from tenure.store.sqlite.store import SqliteStore
from tools.postgres_server import ExternalPostgres, PrivatePostgres, open_server

ROOT = Path(__file__).resolve().parent.parent
STORES = ("postgres", "sqlite")
_MEMORY = ("tmpfs", "ramfs")


class Resource(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...


R = TypeVar("R", bound=Resource)


@asynccontextmanager
async def opened(resource: R) -> AsyncIterator[R]:
    await resource.open()
    try:
        yield resource
    finally:
        await resource.close()


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Any]:
    """A connection of asyncpg."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


class Database(Protocol):
    """An empty database of Tenure."""

    @property
    def store(self) -> Store:
        """Its open store."""

    async def execute(self, statements: list[tuple[str, tuple[int, ...]]]) -> None:
        """Run statements on a connection of their own, in one commit that need not be durable. `{schema}` is replaced by the schema's
        name."""

    async def tidy(self) -> None:
        """Do the maintenance that the database would do later, after a bulk load."""


class Place(Protocol):
    """Makes databases of one kind."""

    name: str

    def database(self) -> Any:
        """An empty, migrated, open database, as an async context manager."""

    def floor(self) -> Any:
        """The floor's tables, as an async context manager."""

    def address(self) -> Any:
        """The address of an empty database for another process, as an async context manager."""

    async def settle(self) -> None:
        """Let the database write what earlier samples left, so that it does not disturb the next sample."""

    async def settings(self) -> dict[str, str]:
        """Versions and settings, for the report."""


# ---------------------------------------------------------------------------------------------- SQLite


class SqliteDatabase:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.store = SqliteStore(path)

    async def execute(self, statements: list[tuple[str, tuple[int, ...]]]) -> None:
        with closing(apsw.Connection(str(self._path))) as connection:
            connection.set_busy_timeout(10_000)
            connection.pragma("synchronous", "off")
            connection.pragma("cache_size", -256 * 1024)
            with connection:
                for text, values in statements:
                    connection.execute(text.replace("{schema}", "main"), values)

    async def tidy(self) -> None:
        with closing(apsw.Connection(str(self._path))) as connection:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        os.sync()


class SqlitePlace:
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[SqliteDatabase]:
        with self._file() as path:
            database = SqliteDatabase(path)
            await database.store.migrate()
            async with opened(database.store):
                yield database

    @asynccontextmanager
    async def floor(self) -> AsyncIterator[SqliteFloor]:
        with self._file() as path:
            async with opened(SqliteFloor(path)) as floor:
                yield floor

    @asynccontextmanager
    async def address(self) -> AsyncIterator[str]:
        with self._file() as path:
            yield f"sqlite:{path}"

    async def settle(self) -> None:
        """Do nothing: SQLite writes nothing in the background."""

    async def settings(self) -> dict[str, str]:
        pragmas = ", ".join(f"{name}={value}" for name, value in PRAGMAS)
        return {
            "sqlite": apsw.sqlite_lib_version(),
            "sqlite settings": f"journal_mode=wal, {pragmas}",
            "sqlite disk": disk_of(self._folder),
        }

    @contextmanager
    def _file(self) -> Iterator[Path]:
        path = self._folder / f"bench-{next(self._numbers)}.db"
        try:
            yield path
        finally:
            for end in ("", "-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------ PostgreSQL


class PostgresDatabase:
    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self.store = PostgresStore(dsn, schema=schema)

    async def execute(self, statements: list[tuple[str, tuple[int, ...]]]) -> None:
        async with connected(self._dsn) as connection, connection.transaction():
            await connection.execute("set local synchronous_commit = off")
            for text, values in statements:
                await connection.execute(text.replace("{schema}", self._schema), *values)

    async def tidy(self) -> None:
        async with connected(self._dsn) as connection:
            await connection.execute("vacuum analyze")
            await connection.execute("checkpoint")


class PostgresPlace:
    """Makes each database as a schema of one server."""

    name = "postgres"

    def __init__(self, server: PrivatePostgres | ExternalPostgres) -> None:
        self.server = server
        self._dsn = server.dsn()
        self._numbers = itertools.count(1)

    @property
    def folder(self) -> Path | None:
        """The directory of a private server."""
        return self.server.directory if isinstance(self.server, PrivatePostgres) else None

    @asynccontextmanager
    async def database(self) -> AsyncIterator[PostgresDatabase]:
        schema = f"bench_{os.getpid()}_{next(self._numbers)}"
        database = PostgresDatabase(self._dsn, schema)
        await database.store.migrate()
        try:
            async with opened(database.store):
                yield database
        finally:
            await self._query(f"drop schema {schema} cascade")

    def floor(self) -> AbstractAsyncContextManager[PostgresFloor]:
        return opened(PostgresFloor(self._dsn))

    @asynccontextmanager
    async def address(self) -> AsyncIterator[str]:
        name = f"bench_{next(self._numbers)}"
        async with connected(self._dsn) as connection:
            await connection.execute(f"create database {name}")
            yield self.server.dsn(name)
            await connection.execute(f"drop database {name} with (force)")

    async def settle(self) -> None:
        await self._query("checkpoint")

    async def settings(self) -> dict[str, str]:
        names = (
            "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size",
        )  # fmt: skip
        values = [f"{name}={await self._query(f'show {name}')}" for name in names]
        folder = self.folder
        return {
            "postgres": str(await self._query("show server_version")),
            "postgres settings": ", ".join(values),
            "postgres server": "private, on a Unix socket" if folder else "the one of TENURE_TEST_DSN",
            "postgres disk": disk_of(folder) if folder else "unknown",
        }

    async def _query(self, text: str) -> Any:
        async with connected(self._dsn) as connection:
            return await connection.fetchval(text)


# --------------------------------------------------------------------------------------------- folders


@contextmanager
def open_places(names: set[str]) -> Iterator[dict[str, Place]]:
    """The places with these names. Their files are removed at the end."""
    places: dict[str, Place] = {}
    with ExitStack() as stack:
        parent = stack.enter_context(temporary_files_on_disk())
        if "postgres" in names:
            server = open_server()
            stack.enter_context(server)
            places["postgres"] = PostgresPlace(server)
        if "sqlite" in names:
            folder = tempfile.TemporaryDirectory(
                prefix="tenure-bench-", dir=parent, ignore_cleanup_errors=True
            )
            places["sqlite"] = SqlitePlace(Path(stack.enter_context(folder)))
        yield places


@contextmanager
def temporary_files_on_disk() -> Iterator[Path]:
    """Let temporary files, and with them a private PostgreSQL, be on the checkout's disk if possible, or else on any disk."""
    usual = [Path(tempfile.gettempdir()), Path("/var/tmp"), ROOT]
    usual = [path for path in usual if path.is_dir() and os.access(path, os.W_OK)]
    on_disk = [path for path in usual if _mount_of(path)[1] not in _MEMORY]
    here = [path for path in on_disk if path.stat().st_dev == ROOT.stat().st_dev]
    parent = (here or on_disk or usual)[0]
    earlier, tempfile.tempdir = tempfile.tempdir, str(parent)
    try:
        yield parent
    finally:
        tempfile.tempdir = earlier


def disk_of(path: Path) -> str:
    """The file system of a folder, for the report."""
    device, kind = _mount_of(path)
    text = f"{kind} on {device}"
    if kind in _MEMORY:
        text += " (MEMORY, NOT A DISK: durable commits cost nothing here)"
    elif path.stat().st_dev != ROOT.stat().st_dev:
        text += " (another disk than the checkout's)"
    return text


def _mount_of(path: Path) -> tuple[str, str]:
    """(device, type) of a path's file system; unknown without /proc."""
    mounts = Path("/proc/self/mounts")
    best = ("", "unknown", "unknown")
    place = str(path.resolve())
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        device, point, kind = line.split()[:3]
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, device, kind)
    return best[1], best[2]
