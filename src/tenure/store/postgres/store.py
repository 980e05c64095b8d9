"""The PostgreSQL store.

Laws:
1. A lane is a connection that runs transactions one at a time. Reads have connections of their own, and so
   has the bell, so that neither waits for a transaction.
2. A save on its own is one statement and one round trip; any other transaction is begin, …, commit.
3. A connection lost before the commit was sent costs nothing: the transaction is made and run again until
   the deadline. Lost while the commit was under way, only the database knows: `Ambiguous`.
4. After any error the transaction is rolled back; a connection in doubt is replaced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import msgspec

from tenure import limits
from tenure.errors import TenureError
from tenure.kernel.model import Cap
from tenure.store.port import Ambiguous, Conflict, Query, Save, Saved, Transaction
from tenure.store.postgres import migrate
from tenure.store.postgres.bell import PING_SECONDS, Bell
from tenure.store.postgres.faults import Lost, is_connection_fault, translated, unavailable
from tenure.store.postgres.link import (
    COMMON_SETTINGS,
    LANE_SETTINGS,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    READER_SETTINGS,
    Link,
    Target,
)
from tenure.store.postgres.running import SQL, ask, compose, pack

T = TypeVar("T")

READERS = 4
MIGRATE_SECONDS_MAX = 600.0


class PostgresStore:
    """A schema in a PostgreSQL database."""

    name = "postgres"

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "tenure",
        lanes: int = 4,
        readers: int = READERS,
        patience_seconds: float = limits.COMMAND_SECONDS_MAX,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self.lanes_max = lanes
        self._target = Target(dsn, schema)
        self._shift_us = 0
        self._patience_seconds = patience_seconds
        lane_settings = {**LANE_SETTINGS, "lock_timeout": f"{round(patience_seconds * 1000)}ms"}
        # Beyond the patience a server that does not answer is taken for dead.
        silence = patience_seconds + 5.0
        self._lanes = [Link(self._target, lane_settings, silence) for _ in range(lanes)]
        self._readers = [Link(self._target, READER_SETTINGS, silence) for _ in range(readers)]
        self._free_readers: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        self._bell = Bell(self._target, ping_seconds)
        self._open = False

    # ------------------------------------------------------------------------------------ open and close

    async def open(self) -> None:
        """Connect and check the schema's version (STORE_NOT_MIGRATED, STORE_TOO_NEW)."""
        reader = self._readers[0]
        connection = await reader.ready(time.monotonic())
        try:
            if await migrate.missing(connection, self._target.schema):
                raise TenureError(
                    "STORE_NOT_MIGRATED", f"the schema {self._target.schema} needs `tenure migrate`"
                )
        except Exception as fault:
            await reader.close()
            raise _named(fault) from fault
        for link in reversed(self._readers):
            self._free_readers.put_nowait(link)
        self._bell.start()
        self._open = True

    async def close(self) -> None:
        """Let go of everything; under way transactions are finished first."""
        self._open = False
        await self._bell.stop()
        for link in (*self._lanes, *self._readers):
            async with link.turn:
                await link.close()
        while not self._free_readers.empty():
            self._free_readers.get_nowait()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date, making it if there is none; the names of what was applied."""
        connection = await self._target.reach(
            COMMON_SETTINGS, time.monotonic(), command_seconds=MIGRATE_SECONDS_MAX
        )
        try:
            return await migrate.bring_up(connection, self._target.schema)
        except Exception as fault:
            raise _named(fault) from fault
        finally:
            await connection.close()

    # ---------------------------------------------------------------------------------- transactions

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        """Run one transaction and commit it."""
        link = self._lanes[lane % len(self._lanes)]
        run = self._run_single if single else self._run
        async with self._turn(link) as deadline:
            pause = PAUSE_SECONDS_MIN
            while True:
                await link.ready(deadline)
                try:
                    return await run(link, make())
                except Lost as fault:
                    if time.monotonic() + pause >= deadline:
                        raise unavailable(fault) from fault
                await asyncio.sleep(pause)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Ask one named query on its own."""
        assert self._open, "the store is not open"
        link = await self._free_readers.get()
        try:
            async with self._turn(link) as deadline:
                while True:
                    await link.ready(deadline)
                    try:
                        return await ask(link, name, rows, scalars, self._shift_us)
                    except Exception as fault:
                        known = translated(fault)
                        if not isinstance(known, Lost):
                            raise known from fault
                        if time.monotonic() + PAUSE_SECONDS_MIN >= deadline:
                            raise unavailable(fault) from fault
                    link.drop()
                    await asyncio.sleep(PAUSE_SECONDS_MIN)
        finally:
            self._free_readers.put_nowait(link)

    async def put_caps(self, caps: list[Cap]) -> None:
        """Insert or replace caps."""
        link = self._lanes[0]
        async with self._turn(link) as deadline:
            await link.ready(deadline)
            try:
                statement = await link.statement(SQL["save_cap"].replace("{rows}", "$1"))
                await statement.fetch([msgspec.structs.astuple(cap) for cap in caps])
            except Exception as fault:
                raise _named(fault) from fault

    @asynccontextmanager
    async def _turn(self, link: Link) -> AsyncIterator[float]:
        """The link for ourselves, and until when. Whoever is interrupted leaves no half-done transaction."""
        assert self._open, "the store is not open"
        deadline = time.monotonic() + self._patience_seconds
        async with link.turn:
            try:
                yield deadline
            except asyncio.CancelledError:
                link.drop()
                raise

    async def _run_single(self, link: Link, transaction: Transaction[T]) -> T:
        """One statement, which is its own commit."""
        save = next(transaction)
        assert isinstance(save, Save), "a single transaction is one save"
        parts, params = pack(save, self._shift_us)
        statement = await link.statement(compose(parts))
        try:
            ids, now_us, _ = await statement.fetchrow(*params)
        except asyncpg.DivisionByZeroError:  # it waited until its estimate was wrong: nothing is written
            ids, now_us = (), (await self._answer(link, Query("now")))[0].now_us
        except Exception as fault:
            if is_connection_fault(fault):
                link.drop()
            raise translated(fault, in_commit=True) from fault
        try:
            transaction.send(Saved(set(ids), now_us))
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("a single transaction is one save")

    async def _run(self, link: Link, transaction: Transaction[T]) -> T:
        """Begin, give the transaction what it asks for, commit. Its own errors are its own."""
        try:
            await self._command(link, "begin")
            result = await self._drive(link, transaction)
            await self._command(link, "commit")
        except BaseException as fault:
            transaction.close()
            if isinstance(fault, Lost | Ambiguous) or not isinstance(fault, Exception):
                link.drop()
            else:
                await self._roll_back(link)
            raise
        return result

    async def _drive(self, link: Link, transaction: Transaction[T]) -> T:
        answer: Any = None
        while True:
            try:
                request = transaction.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = await self._answer(link, request)

    async def _answer(self, link: Link, request: Query | Save) -> Any:
        try:
            if isinstance(request, Query):
                return await ask(link, request.name, request.rows, request.scalars, self._shift_us)
            parts, params = pack(request, self._shift_us)
            statement = await link.statement(compose(parts))
            ids, now_us, _ = await statement.fetchrow(*params)
            return Saved(set(ids), now_us)
        except asyncpg.DivisionByZeroError as fault:
            raise Conflict("the save waited until its estimate of the time was wrong") from fault
        except Exception as fault:
            raise translated(fault) from fault

    async def _command(self, link: Link, text: str) -> None:
        try:
            await link.command(text)
        except Exception as fault:
            raise translated(fault, in_commit=text == "commit") from fault

    async def _roll_back(self, link: Link) -> None:
        """Back to a clean connection, or to none."""
        try:
            await link.command("rollback")
        except BaseException as fault:
            link.drop()
            if not isinstance(fault, Exception):
                raise

    # ------------------------------------------------------------------------------- time and wake-ups

    def shift(self, offset_us: int) -> None:
        """Let this store's clock be so much ahead of the server's, for tests."""
        self._shift_us = offset_us

    async def wait_for_work(self, timeout_s: float) -> bool:
        """Return early (True) when another process says that work became ready."""
        return await self._bell.wait(timeout_s)

    async def tell_work(self) -> None:
        """Tell other processes that work became ready; coalesced, after the commit, best effort."""
        self._bell.tell()


def _named(fault: Exception) -> Exception:
    """The error our callers know, where nothing is tried again."""
    known = translated(fault)
    return unavailable(fault) if isinstance(known, Lost) else known
