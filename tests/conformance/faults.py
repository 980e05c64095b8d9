"""Stores that fail, count or wait when a test asks for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import apsw
import asyncpg

from tenure.store.port import Transaction
from tenure.store.postgres import PostgresStore
from tenure.store.postgres.connection import PostgresConnection
from tenure.store.sqlite import SqliteStore
from tests.conformance.world import Place

T = TypeVar("T")


class FaultyStore:
    """A real store whose transactions wait while `door` is closed, and fail before or after their commit if a test plants an error."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.door = asyncio.Event()
        self.door.set()
        self.before: deque[Exception] = deque()
        """Errors raised instead of the next transactions. Those transactions do not run."""
        self.after: deque[Exception] = deque()
        """Errors raised after the commits of the next transactions."""
        self.transactions = 0
        self.commits_inline = False
        """False, so that every transaction goes through `transact` and its door."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        self.transactions += 1
        await self.door.wait()
        if self.before:
            raise self.before.popleft()
        result: T = await self._inner.transact(make, lane=lane, single=single)
        if self.after:
            raise self.after.popleft()
        return result


class CountingStore:
    """A real store that counts the rows that its transactions read."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        result: T = await self._inner.transact(lambda: self._counted(make()), lane=lane, single=single)
        return result

    def _counted(self, transaction: Transaction[T]) -> Transaction[T]:
        answer: Any = None
        while True:
            try:
                asked = transaction.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # what the transaction returns
            answer = yield asked
            self.rows += len(answer) if isinstance(answer, list) else 0


class _Hold:
    """Stops one commit just before it is sent, with its locks held, until the test sets `go`."""

    def __init__(self) -> None:
        self.armed = False
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def wait(self) -> None:
        if self.armed:
            self.armed = False
            self.reached.set()
            await self.go.wait()


class HeldSqlite(SqliteStore):
    @property
    def commits_inline(self) -> bool:
        return False

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.hold = _Hold()

    async def _commit(self, cursor: apsw.Cursor, *, small: bool) -> None:
        await self.hold.wait()
        await super()._commit(cursor, small=small)


class HeldPostgres(PostgresStore):
    """PostgreSQL with a hold before its commit. `cut` can also end the backend before the commit is sent."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.hold = _Hold()
        self.cut: Callable[[int], Awaitable[None]] | None = None
        """Called with the backend's process id just before the next commit is sent."""

    def estimate_us(self) -> int | None:
        return None  # decisions always run under the lock, which is what these tests check

    async def _command(self, link: PostgresConnection, text: str) -> None:
        if text == "commit":
            await self.hold.wait()
            if self.cut is not None:
                cut, self.cut = self.cut, None
                connection = link._connection
                assert connection is not None
                await cut(connection.get_server_pid())
        await super()._command(link, text)


def store_with_hold(place: Place) -> HeldSqlite | HeldPostgres:
    return HeldSqlite(place.address) if place.kind == "sqlite" else HeldPostgres(place.address)


async def waits_for_lock(place: Place, waiting: asyncio.Task[Any]) -> bool:
    """True if the task waits for the lock of a held commit; False if it finished without the lock."""
    if place.kind == "sqlite":
        for _ in range(100):  # SQLite refuses the second writer repeatedly meanwhile
            await asyncio.sleep(0)
        return not waiting.done()
    connection = await asyncpg.connect(place.address)
    try:
        while not waiting.done() and not await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        ):
            pass  # the query itself takes long enough; no sleep is needed
    finally:
        await connection.close()
    return not waiting.done()
