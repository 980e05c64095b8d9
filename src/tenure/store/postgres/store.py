"""The PostgreSQL store.

Laws:
1. A commit lane is a connection that runs transactions one at a time. Reads and notifications have connections of
   their own, so that neither waits for a transaction.
2. A save on its own is one statement and one round trip; any other transaction is begin, …, commit.
3. When a connection is lost before the commit was sent, nothing was written: the transaction is run again until
   the deadline. When it is lost during the commit, only the database knows the outcome: `AmbiguousCommit`.
4. After any error the transaction is rolled back; a connection in doubt is replaced.
5. A long transaction (`port.LEAVE_EVENT_LOOP`) continues in threads, and its rows are sent in several statements: the event
   loop only sends and receives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import asyncpg
import msgspec

from tenure import limits
from tenure.errors import TenureError
from tenure.futures import run_in_thread
from tenure.kernel.run_rows import Cap
from tenure.store.port import (
    AmbiguousCommit,
    DataRejected,
    LeaveEventLoop,
    Query,
    Save,
    Saved,
    Transaction,
    WriteConflict,
)
from tenure.store.postgres import migrator
from tenure.store.postgres.connection import (
    COMMON_SETTINGS,
    DEFAULT_SCHEMA,
    LANE_SETTINGS,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    READER_SETTINGS,
    PostgresConnection,
    PostgresTarget,
)
from tenure.store.postgres.errors import (
    LATE_SAVE,
    ConnectionLost,
    WriteRefused,
    is_connection_error,
    translate_error,
    unavailable_error,
)
from tenure.store.postgres.notifications import PING_SECONDS, WorkNotifier
from tenure.store.postgres.statements import SQL, compose_save, pack_save, run_query, split_save
from tenure.store.query_registry import WRITES

T = TypeVar("T")

READERS = 4
MIGRATE_SECONDS_MAX = 600.0
SILENCE_SECONDS = 5.0
LOCKING = frozenset(
    {"lock_tenants", "lock_runs", "lock_free_runs", "lock_free_heads", "load_attempts", "beat", *WRITES}
)
"""Queries that lock or write."""
ESTIMATE_US_MAX = 60_000_000
"""How long the time is estimated from the server's last answer: two clocks drift apart by about 100 us a second."""


class PostgresStore:
    name = "postgres"
    commits_inline = False

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        lanes: int = 4,
        readers: int = READERS,
        patience_seconds: float = limits.COMMAND_SECONDS_MAX,
        silence_seconds: float = SILENCE_SECONDS,
        ping_seconds: float = PING_SECONDS,
        listen_dsn: str | None = None,
        only_reads: bool = False,
    ) -> None:
        self.lanes_max = lanes
        self._target = PostgresTarget(dsn, schema, only_reads=only_reads)
        self._only_reads = only_reads
        self._shift_us = 0
        self._heard: tuple[int, int] | None = None  # the server's clock, and ours at its last answer
        self._patience_seconds = patience_seconds
        self.read_seconds = patience_seconds
        """How long a read may wait for the database to come back; an HTTP server sets less."""
        self._lane_settings = {**LANE_SETTINGS, "lock_timeout": str(round(patience_seconds * 1000))}
        # A server that has not answered for this long is considered dead: the connection is half-open.
        self._silence_seconds = patience_seconds + silence_seconds
        self._lanes: dict[int, PostgresConnection] = {}
        self._readers = [
            PostgresConnection(self._target, READER_SETTINGS, self._silence_seconds) for _ in range(readers)
        ]
        self._free_readers: asyncio.LifoQueue[PostgresConnection] = asyncio.LifoQueue()
        listening = PostgresTarget(listen_dsn, schema, only_reads=only_reads) if listen_dsn else self._target
        self._notifier = WorkNotifier(listening, ping_seconds)
        self._open = False
        self.undurable: str | None = None
        """Settings of the server with which an acknowledged commit may be lost in a crash."""

    # ------------------------------------------------------------------------------------ open and close

    async def open(self) -> None:
        """Connect, check the schema's version (STORE_NOT_MIGRATED, STORE_TOO_NEW) and the role's rights
        (STORE_PERMISSION_DENIED)."""
        await self._run_repeatable(self._check)
        for connection in reversed(self._readers):
            self._free_readers.put_nowait(connection)
        self._notifier.start()
        self._open = True

    async def _check(self, deadline: float, heal_deadline: float) -> None:
        reader, schema = self._readers[0], self._target.schema
        connection = await reader.ready(deadline, heal_deadline=heal_deadline)
        try:
            await migrator.check_rights(connection, schema, only_reads=self._only_reads)
            if await migrator.find_missing_migrations(connection, schema):
                raise TenureError(
                    "STORE_NOT_MIGRATED", f"the schema {schema} is not up to date: run `tenure migrate`"
                )
            self.undurable = await connection.fetchval(migrator.NOT_DURABLE_QUERY)
        except Exception:
            reader.drop()
            raise

    async def _run_repeatable(self, do: Callable[[float, float], Awaitable[T]]) -> T:
        """Run a repeatable operation. If the server cannot be reached, it is tried once; if it is not ready yet, or is lost in
        the middle, until the patience ends."""
        deadline = time.monotonic()
        heal_deadline = deadline + self._patience_seconds
        while True:
            try:
                return await do(deadline, heal_deadline)
            except Exception as fault:
                if not is_connection_error(fault) or time.monotonic() >= heal_deadline:
                    raise _final_error(fault) from fault
                deadline = heal_deadline

    async def wait_until_reachable(self, seconds: float, tell: Callable[[str], None]) -> None:
        session = await self._target.reach(
            COMMON_SETTINGS,
            time.monotonic() + seconds,
            command_seconds=self._silence_seconds,
            tell=tell,
        )
        await session.connection.close()

    async def close(self) -> None:
        self._open = False
        await self._notifier.stop()
        for connection in (*self._lanes.values(), *self._readers):
            async with connection.turn:
                await connection.close()
        while not self._free_readers.empty():
            self._free_readers.get_nowait()

    async def migrate(self) -> list[str]:
        """Apply the missing migrations, creating the schema if it does not exist; their names."""
        return await self._run_repeatable(self._migrate)

    async def _migrate(self, deadline: float, heal_deadline: float) -> list[str]:
        session = await self._target.reach(
            COMMON_SETTINGS,
            deadline,
            command_seconds=MIGRATE_SECONDS_MAX,
            heal_deadline=heal_deadline,
        )
        try:
            return await migrator.apply_migrations(session.connection, self._target.schema)
        finally:
            await session.connection.close()

    # ---------------------------------------------------------------------------------- transactions

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        connection = self._lane(lane)
        async with self._turn(connection) as deadline:
            pause = PAUSE_SECONDS_MIN
            refused = False
            while True:
                await connection.ready(deadline)
                run = self._run_single if single and connection.settled else self._run
                try:
                    return await run(connection, make())
                except ConnectionLost as fault:
                    connection.drop()
                    again, refused = refused, isinstance(fault, WriteRefused)
                    # After one refusal the next connection leads to a primary; if that refuses too, the database is read-only.
                    if (again and refused) or time.monotonic() + pause >= deadline:
                        raise unavailable_error(fault) from fault
                await asyncio.sleep(pause)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        if not self._open:
            raise TenureError("STORE_UNAVAILABLE", "the store is closed")
        connection = await self._free_readers.get()
        try:
            async with self._turn(connection, self.read_seconds) as deadline:
                refused = False
                while True:
                    await connection.ready(deadline)
                    try:
                        return await run_query(connection, name, rows, scalars, self._shift_us)
                    except Exception as fault:
                        known = translate_error(fault)
                        if isinstance(known, DataRejected | asyncpg.InterfaceError):
                            # The query cannot be asked with these values.
                            known = TenureError("INVALID_INPUT", f"the database refused the query: {fault}")
                        if not isinstance(known, ConnectionLost):
                            raise known from fault
                        again, refused = refused, isinstance(known, WriteRefused)
                        if (again and refused) or time.monotonic() + PAUSE_SECONDS_MIN >= deadline:
                            raise unavailable_error(fault) from fault
                    connection.drop()
                    await asyncio.sleep(PAUSE_SECONDS_MIN)
        finally:
            self._free_readers.put_nowait(connection)

    def commit_inline(self, decide: Callable[[int], Save | None]) -> Saved | None:
        del decide
        raise WriteConflict("a commit is a round trip")

    async def put_caps(self, caps: list[Cap]) -> None:
        connection = self._lane(0)
        async with self._turn(connection) as deadline:
            await connection.ready(deadline)
            try:
                statement = await connection.statement(SQL["save_cap"])
                await statement.fetch(list(map(msgspec.structs.astuple, caps)))
            except Exception as fault:
                raise _final_error(fault) from fault

    def _lane(self, number: int) -> PostgresConnection:
        """A commit lane's connection; claims and heartbeats have lanes of their own beyond `lanes_max`."""
        connection = self._lanes.get(number)
        if connection is None:
            connection = PostgresConnection(self._target, self._lane_settings, self._silence_seconds)
            self._lanes[number] = connection
        return connection

    @asynccontextmanager
    async def _turn(
        self, connection: PostgresConnection, seconds: float | None = None
    ) -> AsyncIterator[float]:
        """Exclusive use of a connection, until a deadline. A canceled caller leaves no half-done transaction."""
        deadline = time.monotonic() + (self._patience_seconds if seconds is None else seconds)
        async with connection.turn:
            if not self._open:
                raise TenureError("STORE_UNAVAILABLE", "the store is closed")
            try:
                yield deadline
            except asyncio.CancelledError:
                connection.leave()
                raise

    async def _run_single(self, connection: PostgresConnection, transaction: Transaction[T]) -> T:
        """Run a transaction of one save as one statement, which is its own commit."""
        save = next(transaction)
        assert isinstance(save, Save), "a single transaction is one save"
        shift_us = self._shift_us
        parts, params = pack_save(save, shift_us)
        statement = await connection.statement(compose_save(parts))
        try:
            ids, now_us, _ = await statement.fetchrow(*params)
        except Exception as fault:
            if is_connection_error(fault):
                connection.drop()
            if getattr(fault, "sqlstate", None) != LATE_SAVE:
                raise translate_error(fault, in_commit=True) from fault
            ids, now_us = (), (await self._answer(connection, Query("now")))[0].now_us
        self._heard = (now_us - shift_us, time.monotonic_ns() // 1000)
        try:
            transaction.send(Saved(set(ids), now_us))
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("a single transaction is one save")

    async def _run(self, connection: PostgresConnection, transaction: Transaction[T]) -> T:
        """Answer the requests of a transaction, and commit. Its own errors are raised as they are.

        The database's transaction begins with the first request that locks or writes. Until then, reading within a
        read-committed transaction and outside of one is the same, and a transaction that only reads (most claims of an idle
        worker) costs no further round trips.
        """
        begun = aside = False
        answer: Any = None
        try:
            while True:
                resume = partial(_resume, transaction, answer)
                request, result = await run_in_thread(resume) if aside else resume()
                if request is None:
                    if begun:
                        await self._command(connection, "commit")
                    return result
                if isinstance(request, LeaveEventLoop):
                    aside, answer = True, None
                    continue
                if not begun and (isinstance(request, Save) or request.name in LOCKING):
                    await self._command(connection, connection.begin)
                    begun = True
                if aside and isinstance(request, Save):
                    answer = await self._save_long(connection, request)
                else:
                    answer = await self._answer(connection, request)
        except BaseException as fault:
            transaction.close()
            if isinstance(fault, ConnectionLost | AmbiguousCommit):
                connection.drop()
            elif begun and isinstance(fault, Exception):
                await self._roll_back(connection)
            raise

    async def _answer(self, connection: PostgresConnection, request: Query | Save) -> Any:
        shift_us = self._shift_us
        if isinstance(request, Save):
            return await self._save(connection, *pack_save(request, shift_us), shift_us)
        try:
            return await run_query(connection, request.name, request.rows, request.scalars, shift_us)
        except Exception as fault:
            raise translate_error(fault) from fault

    async def _save_long(self, connection: PostgresConnection, save: Save) -> Saved:
        """Run a save in several statements, packed in a thread."""
        shift_us = self._shift_us
        first, rest = split_save(save)
        saved = await self._save(
            connection, *await run_in_thread(lambda: pack_save(first, shift_us)), shift_us
        )
        for part in rest(saved.ids):
            await self._save(connection, *await run_in_thread(partial(pack_save, part, shift_us)), shift_us)
        return saved

    async def _save(
        self, connection: PostgresConnection, parts: frozenset[str], params: list[Any], shift_us: int
    ) -> Saved:
        try:
            statement = await connection.statement(compose_save(parts))
            ids, now_us, _ = await statement.fetchrow(*params)
            self._heard = (now_us - shift_us, time.monotonic_ns() // 1000)
            return Saved(set(ids), now_us)
        except Exception as fault:
            raise translate_error(fault) from fault

    async def _command(self, connection: PostgresConnection, text: str) -> None:
        try:
            await connection.command(text)
        except Exception as fault:
            raise translate_error(fault, in_commit=text == "commit") from fault

    async def _roll_back(self, connection: PostgresConnection) -> None:
        try:
            await connection.command("rollback")
        except Exception:  # a fresh connection is clean
            connection.drop()

    # ------------------------------------------------------------------------------- time and wake-ups

    def shift_clock(self, offset_us: int) -> None:
        self._shift_us = offset_us

    def estimate_us(self) -> int | None:
        """The server's time by its last answer and the monotonic clock; None if that was long ago."""
        if self._heard is None:
            return None
        server_us, heard_us = self._heard
        passed_us = time.monotonic_ns() // 1000 - heard_us
        return server_us + passed_us + self._shift_us if passed_us < ESTIMATE_US_MAX else None

    async def wait_for_work(self, timeout_s: float) -> bool:
        return await self._notifier.wait(timeout_s)

    async def notify_work(self) -> None:
        self._notifier.notify()


def _resume(transaction: Transaction[T], answer: Any) -> tuple[Query | Save | LeaveEventLoop | None, T]:
    """A transaction's next request; at its end None, and its result. (A thread cannot raise StopIteration.)"""
    try:
        return transaction.send(answer), None  # type: ignore[return-value]  # there is a result at the end only
    except StopIteration as stop:
        return None, stop.value


def _final_error(fault: Exception) -> Exception:
    """The translated error of an operation that is not tried again."""
    known = translate_error(fault)
    return unavailable_error(fault) if isinstance(known, ConnectionLost) else known
