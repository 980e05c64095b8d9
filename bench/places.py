"""Where the bench's databases live: a folder on the checkout's disk, and one private PostgreSQL in it.

Laws:
1. Each sample begins with an empty database and what it leaves is removed.
2. What is compared is compared in the same place: the floor's tables lie on the same disk and, on PostgreSQL,
   in the same server with the same settings.
3. Memory is no disk: a temporary folder on tmpfs is used only when nothing else can be had, and said so.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

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


class Floor(Protocol):
    """What the database does bare."""

    async def batches(self, count: int, rows: int) -> float:
        """Steps a second."""
        ...

    async def commits(self, groups: int) -> list[float]:
        """Seconds of seven bare single-row commits, so many times."""
        ...


class Database(Protocol):
    """One empty database of Tenure's."""

    @property
    def store(self) -> Store:
        """The store on it, open."""
        ...

    async def execute(self, statements: list[tuple[str, tuple[int, ...]]]) -> None:
        """Run statements on a connection of their own, in one commit that need not be durable; `{schema}` is
        filled in."""
        ...

    async def tidy(self) -> None:
        """After a bulk load: what the database itself would do in time."""
        ...


class Place(Protocol):
    """Where databases of one kind are made."""

    name: str

    def database(self) -> Any:
        """An empty, migrated, open database, as an async context manager."""
        ...

    def floor(self) -> Any:
        """The floor's tables, as an async context manager."""
        ...

    def address(self) -> Any:
        """The address of an empty database for another process, as an async context manager."""
        ...

    async def settle(self) -> None:
        """Let the database write out what earlier samples left, so that they do not disturb the next."""
        ...

    async def settings(self) -> dict[str, str]:
        """What it is and how it is set."""
        ...


# ---------------------------------------------------------------------------------------------- SQLite


class SqliteDatabase:
    """A file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.store = SqliteStore(path)

    async def execute(self, statements: list[tuple[str, tuple[int, ...]]]) -> None:
        """See `Database`."""
        connection = apsw.Connection(str(self._path))
        try:
            connection.set_busy_timeout(10_000)
            connection.pragma("synchronous", "off")
            connection.pragma("cache_size", -256 * 1024)
            with connection:
                for text, values in statements:
                    connection.execute(text.replace("{schema}", "main"), values)
        finally:
            connection.close()

    async def tidy(self) -> None:
        """Bring the log into the file, and the file onto the disk."""
        connection = apsw.Connection(str(self._path))
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            connection.close()
        os.sync()


class SqlitePlace:
    """Files in the folder."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[SqliteDatabase]:
        """See `Place`."""
        with self._file() as path:
            database = SqliteDatabase(path)
            await database.store.migrate()
            await database.store.open()
            try:
                yield database
            finally:
                await database.store.close()

    @asynccontextmanager
    async def floor(self) -> AsyncIterator[SqliteFloor]:
        """See `Place`."""
        with self._file() as path:
            floor = SqliteFloor(path)
            await floor.open()
            try:
                yield floor
            finally:
                await floor.close()

    @asynccontextmanager
    async def address(self) -> AsyncIterator[str]:
        """See `Place`."""
        with self._file() as path:
            yield f"sqlite:{path}"

    async def settle(self) -> None:
        """Nothing is written behind our back."""

    async def settings(self) -> dict[str, str]:
        """See `Place`."""
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
    """A schema."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self.store = PostgresStore(dsn, schema=schema)

    async def execute(self, statements: list[tuple[str, tuple[int, ...]]]) -> None:
        """See `Database`."""
        connection = await asyncpg.connect(self._dsn)
        try:
            async with connection.transaction():
                await connection.execute("set local synchronous_commit = off")
                for text, values in statements:
                    await connection.execute(text.replace("{schema}", self._schema), *values)
        finally:
            await connection.close()

    async def tidy(self) -> None:
        """What autovacuum and the checkpointer would do in time."""
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute("vacuum analyze")
            await connection.execute("checkpoint")
        finally:
            await connection.close()


class PostgresPlace:
    """Schemas in one server."""

    name = "postgres"

    def __init__(self, server: PrivatePostgres | ExternalPostgres) -> None:
        self._server = server
        self._dsn = server.dsn()
        self._numbers = itertools.count(1)

    @property
    def folder(self) -> Path | None:
        """Where the server lives, if it is ours."""
        return self._server.directory if isinstance(self._server, PrivatePostgres) else None

    @asynccontextmanager
    async def database(self) -> AsyncIterator[PostgresDatabase]:
        """See `Place`."""
        schema = f"bench_{os.getpid()}_{next(self._numbers)}"
        database = PostgresDatabase(self._dsn, schema)
        await database.store.migrate()
        try:
            await database.store.open()
            try:
                yield database
            finally:
                await database.store.close()
        finally:
            await self._ask(f"drop schema {schema} cascade")

    @asynccontextmanager
    async def floor(self) -> AsyncIterator[PostgresFloor]:
        """See `Place`."""
        floor = PostgresFloor(self._dsn)
        await floor.open()
        try:
            yield floor
        finally:
            await floor.close()

    @asynccontextmanager
    async def address(self) -> AsyncIterator[str]:
        """See `Place`."""
        name = f"bench_{next(self._numbers)}"
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(f"create database {name}")
            yield self._server.dsn(name)
            await connection.execute(f"drop database {name} with (force)")
        finally:
            await connection.close()

    async def settle(self) -> None:
        """See `Place`."""
        await self._ask("checkpoint")

    async def settings(self) -> dict[str, str]:
        """See `Place`."""
        names = (
            "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size",
        )  # fmt: skip
        values = [f"{name}={await self._ask(f'show {name}')}" for name in names]
        folder = self.folder
        return {
            "postgres": str(await self._ask("show server_version")),
            "postgres settings": ", ".join(values),
            "postgres server": "private, on a Unix socket" if folder else "the one of TENURE_TEST_DSN",
            "postgres disk": disk_of(folder) if folder else "not known",
        }

    async def _ask(self, text: str) -> Any:
        connection = await asyncpg.connect(self._dsn)
        try:
            return await connection.fetchval(text)
        finally:
            await connection.close()


# --------------------------------------------------------------------------------------------- folders


@contextmanager
def open_places(names: set[str]) -> Iterator[dict[str, Place]]:
    """The places asked for, in a folder that is removed at the end."""
    parent = _parent()
    folder = Path(tempfile.mkdtemp(prefix="tenure-bench-", dir=parent))
    places: dict[str, Place] = {}
    earlier, tempfile.tempdir = tempfile.tempdir, str(parent)  # a private PostgreSQL goes where this points
    try:
        with ExitStack() as stack:
            if "postgres" in names:
                server = open_server()
                stack.enter_context(server)
                places["postgres"] = PostgresPlace(server)
            if "sqlite" in names:
                places["sqlite"] = SqlitePlace(folder)
            yield places
    finally:
        tempfile.tempdir = earlier
        shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    """A temporary folder on the checkout's disk, else one on any disk, else whatever there is."""
    usual = [Path(tempfile.gettempdir()), Path("/var/tmp"), ROOT]
    usual = [path for path in usual if path.is_dir() and os.access(path, os.W_OK)]
    here = ROOT.stat().st_dev
    for path in usual:
        if path.stat().st_dev == here and not _in_memory(path):
            return path
    return next((path for path in usual if not _in_memory(path)), usual[0])


def _in_memory(path: Path) -> bool:
    return _mount_of(path)[1] in _MEMORY


def disk_of(path: Path) -> str:
    """The file system a folder lies on, for the report."""
    device, kind = _mount_of(path)
    said = f"{kind} on {device}"
    if kind in _MEMORY:
        said += " (MEMORY, NOT A DISK: durable commits cost nothing here)"
    elif path.stat().st_dev != ROOT.stat().st_dev:
        said += " (another disk than the checkout's)"
    return said


def _mount_of(path: Path) -> tuple[str, str]:
    """(device, type) of the file system a path lies on; unknown where there is no /proc."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown", "unknown"
    best = ("", "unknown", "unknown")
    place = str(path.resolve())
    for line in mounts.read_text().splitlines():
        device, point, kind = line.split()[:3]
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, device, kind)
    return best[1], best[2]
