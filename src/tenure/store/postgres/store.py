"""The PostgreSQL store.

Laws:
1. A lane is a connection that runs transactions one at a time. Reads have connections of their own, and so
   has the bell, so that neither waits for a transaction.
2. A save on its own is one statement and one round trip; any other transaction is begin, …, commit.
3. A connection lost before the commit was sent costs nothing: the transaction is made and run again until
   the deadline. Lost while the commit was under way, only the database knows: `Ambiguous`.
4. After any error the transaction is rolled back; a connection in doubt is replaced.
5. A transaction that says that it is long (`port.ASIDE`) goes on in threads, and its rows are sent in several statements: the
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
from tenure.kernel.model import Cap
from tenure.store.beside import Beside
from tenure.store.families import WRITES
from tenure.store.port import Ambiguous, Aside, Conflict, Query, Rejected, Save, Saved, Transaction
from tenure.store.postgres import migrate
from tenure.store.postgres.bell import PING_SECONDS, Bell
from tenure.store.postgres.faults import Lost, WriteRefused, is_connection_fault, translated, unavailable
from tenure.store.postgres.link import (
    COMMON_SETTINGS,
    LANE_SETTINGS,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    READER_SETTINGS,
    Link,
    Target,
)
from tenure.store.postgres.running import SQL, ask, compose, divide, pack

T = TypeVar("T")

READERS = 4
MIGRATE_SECONDS_MAX = 600.0
SILENCE_SECONDS = 5.0
LOCKING = frozenset(
    {"lock_tenants", "lock_runs", "lock_free_runs", "lock_free_heads", "load_attempts", "beat", *WRITES}
)
"""Queries that lock or write."""
ESTIMATE_US_MAX = 60_000_000
"""How long the server's last word on the time is good for: two clocks drift apart by some 100 us a second."""


class PostgresStore(Beside):
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
        silence_seconds: float = SILENCE_SECONDS,
        ping_seconds: float = PING_SECONDS,
        listen_dsn: str | None = None,
        only_reads: bool = False,
    ) -> None:
        self.lanes_max = lanes
        self._target = Target(dsn, schema, only_reads=only_reads)
        self._only_reads = only_reads
        self._shift_us = 0
        self._heard: tuple[int, int] | None = None  # the server's clock, and ours when it said so
        self._patience_seconds = patience_seconds
        self.read_seconds = patience_seconds
        """How long a look may wait for the database to come back; a server that is asked has less patience."""
        self._lane_settings = {**LANE_SETTINGS, "lock_timeout": str(round(patience_seconds * 1000))}
        # Half-open: beyond its patience a server that does not answer is taken for dead.
        self._silence_seconds = patience_seconds + silence_seconds
        self._lanes: dict[int, Link] = {}
        self._readers = [Link(self._target, READER_SETTINGS, self._silence_seconds) for _ in range(readers)]
        self._free_readers: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        listening = Target(listen_dsn, schema, only_reads=only_reads) if listen_dsn else self._target
        self._bell = Bell(listening, ping_seconds)
        self._open = False
        self.undurable: str | None = None
        """Settings of the server by which a commit that was answered may be lost in a crash."""

    # ------------------------------------------------------------------------------------ open and close

    async def open(self) -> None:
        """Connect and check the schema's version (STORE_NOT_MIGRATED, STORE_TOO_NEW) and our rights to it
        (STORE_PERMISSION_DENIED)."""
        await self._once_there(self._check)
        for link in reversed(self._readers):
            self._free_readers.put_nowait(link)
        self._bell.start()
        self._open = True

    async def _check(self, deadline: float, heal_deadline: float) -> None:
        reader, schema = self._readers[0], self._target.schema
        connection = await reader.ready(deadline, heal_deadline=heal_deadline)
        try:
            await migrate.check_rights(connection, schema, only_reads=self._only_reads)
            if await migrate.missing(connection, schema):
                raise TenureError("STORE_NOT_MIGRATED", f"the schema {schema} needs `tenure migrate`")
            self.undurable = await connection.fetchval(migrate.UNDURABLE)
        except Exception:
            reader.drop()
            raise

    async def _once_there(self, do: Callable[[float, float], Awaitable[T]]) -> T:
        """Do what may be done again, with a server that should be there. One that is away is tried once; one that is not ready
        yet or is lost in the middle, for our patience."""
        deadline = time.monotonic()
        heal_deadline = deadline + self._patience_seconds
        while True:
            try:
                return await do(deadline, heal_deadline)
            except Exception as fault:
                if not is_connection_fault(fault) or time.monotonic() >= heal_deadline:
                    raise _named(fault) from fault
                deadline = heal_deadline

    async def wait_until_there(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until the server can be reached, for so long at most (STORE_UNAVAILABLE); `tell` hears why it waits."""
        session = await self._target.reach(
            COMMON_SETTINGS,
            time.monotonic() + seconds,
            command_seconds=self._silence_seconds,
            tell=tell,
        )
        await session.connection.close()

    async def close(self) -> None:
        """Let go of everything; under way transactions are finished first."""
        self._open = False
        await self._bell.stop()
        for link in (*self._lanes.values(), *self._readers):
            async with link.turn:
                await link.close()
        while not self._free_readers.empty():
            self._free_readers.get_nowait()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date, making it if there is none; the names of what was applied."""
        return await self._once_there(self._bring_up)

    async def _bring_up(self, deadline: float, heal_deadline: float) -> list[str]:
        session = await self._target.reach(
            COMMON_SETTINGS,
            deadline,
            command_seconds=MIGRATE_SECONDS_MAX,
            heal_deadline=heal_deadline,
        )
        try:
            return await migrate.bring_up(session.connection, self._target.schema)
        finally:
            await session.connection.close()

    # ---------------------------------------------------------------------------------- transactions

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        """Run one transaction and commit it."""
        link = self._lane(lane)
        async with self._turn(link) as deadline:
            pause = PAUSE_SECONDS_MIN
            refused = False
            while True:
                await link.ready(deadline)
                run = self._run_single if single and link.settled else self._run
                try:
                    return await run(link, make())
                except Lost as fault:
                    link.drop()
                    again, refused = refused, isinstance(fault, WriteRefused)
                    # After one refusal the next connection is a primary's; refused there, it is not meant to be written.
                    if (again and refused) or time.monotonic() + pause >= deadline:
                        raise unavailable(fault) from fault
                await asyncio.sleep(pause)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Ask one named query on its own."""
        if not self._open:
            raise TenureError("STORE_UNAVAILABLE", "the store is closed")
        link = await self._free_readers.get()
        try:
            async with self._turn(link, self.read_seconds) as deadline:
                refused = False
                while True:
                    await link.ready(deadline)
                    try:
                        return await ask(link, name, rows, scalars, self._shift_us)
                    except Exception as fault:
                        known = translated(fault)
                        if isinstance(known, Rejected | asyncpg.InterfaceError):  # it cannot be asked
                            known = TenureError("INVALID_INPUT", f"the database refused it: {fault}")
                        if not isinstance(known, Lost):
                            raise known from fault
                        again, refused = refused, isinstance(known, WriteRefused)
                        if (again and refused) or time.monotonic() + PAUSE_SECONDS_MIN >= deadline:
                            raise unavailable(fault) from fault
                    link.drop()
                    await asyncio.sleep(PAUSE_SECONDS_MIN)
        finally:
            self._free_readers.put_nowait(link)

    async def put_caps(self, caps: list[Cap]) -> None:
        """Insert or replace caps."""
        link = self._lane(0)
        async with self._turn(link) as deadline:
            await link.ready(deadline)
            try:
                statement = await link.statement(SQL["save_cap"].replace("{rows}", "$1"))
                await statement.fetch([msgspec.structs.astuple(cap) for cap in caps])
            except Exception as fault:
                raise _named(fault) from fault

    def _lane(self, number: int) -> Link:
        """A lane's connection; claims and heartbeats have lanes of their own beyond `lanes_max`."""
        link = self._lanes.get(number)
        if link is None:
            link = Link(self._target, self._lane_settings, self._silence_seconds)
            self._lanes[number] = link
        return link

    @asynccontextmanager
    async def _turn(self, link: Link, seconds: float | None = None) -> AsyncIterator[float]:
        """The link for ourselves, and until when. Whoever is interrupted leaves no half-done transaction."""
        deadline = time.monotonic() + (self._patience_seconds if seconds is None else seconds)
        async with link.turn:
            if not self._open:
                raise TenureError("STORE_UNAVAILABLE", "the store is closed")
            try:
                yield deadline
            except asyncio.CancelledError:
                link.leave()
                raise

    async def _run_single(self, link: Link, transaction: Transaction[T]) -> T:
        """One statement, which is its own commit."""
        save = next(transaction)
        assert isinstance(save, Save), "a single transaction is one save"
        shift_us = self._shift_us
        parts, params = pack(save, shift_us)
        statement = await link.statement(compose(parts))
        try:
            ids, now_us, _ = await statement.fetchrow(*params)
        except asyncpg.DivisionByZeroError:  # it waited until its estimate was wrong: nothing is written
            ids, now_us = (), (await self._answer(link, Query("now")))[0].now_us
        except Exception as fault:
            if is_connection_fault(fault):
                link.drop()
            raise translated(fault, in_commit=True) from fault
        self._heard = (now_us - shift_us, time.monotonic_ns() // 1000)
        try:
            transaction.send(Saved(set(ids), now_us))
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("a single transaction is one save")

    async def _run(self, link: Link, transaction: Transaction[T]) -> T:
        """Give the transaction what it asks for, and commit. Its own errors are its own.

        It begins with the first request that locks or writes: until then, reading within a read-committed
        transaction and outside of one is the same, and one that only looks (most claims of an idle worker)
        costs no further round trips.
        """
        begun = aside = False
        answer: Any = None
        try:
            while True:
                go_on = partial(_go_on, transaction, answer)
                request, result = await run_in_thread(go_on) if aside else go_on()
                if request is None:
                    if begun:
                        await self._command(link, "commit")
                    return result
                if isinstance(request, Aside):
                    aside, answer = True, None
                    continue
                if not begun and (isinstance(request, Save) or request.name in LOCKING):
                    await self._command(link, link.begin)
                    begun = True
                if aside and isinstance(request, Save):
                    answer = await self._save_long(link, request)
                else:
                    answer = await self._answer(link, request)
        except BaseException as fault:
            transaction.close()
            if isinstance(fault, Lost | Ambiguous):
                link.drop()
            elif begun and isinstance(fault, Exception):
                await self._roll_back(link)
            raise

    async def _answer(self, link: Link, request: Query | Save) -> Any:
        shift_us = self._shift_us
        if isinstance(request, Save):
            return await self._save(link, *pack(request, shift_us), shift_us)
        try:
            return await ask(link, request.name, request.rows, request.scalars, shift_us)
        except Exception as fault:
            raise translated(fault) from fault

    async def _save_long(self, link: Link, save: Save) -> Saved:
        """A save in as many statements as it takes; made ready in a thread."""
        shift_us = self._shift_us
        first, rest = divide(save)
        saved = await self._save(link, *await run_in_thread(lambda: pack(first, shift_us)), shift_us)
        for part in rest(saved.ids):
            await self._save(link, *await run_in_thread(partial(pack, part, shift_us)), shift_us)
        return saved

    async def _save(self, link: Link, parts: frozenset[str], params: list[Any], shift_us: int) -> Saved:
        try:
            statement = await link.statement(compose(parts))
            ids, now_us, _ = await statement.fetchrow(*params)
            self._heard = (now_us - shift_us, time.monotonic_ns() // 1000)
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
        except Exception:  # whatever it is, a fresh connection is clean
            link.drop()

    # ------------------------------------------------------------------------------- time and wake-ups

    def shift(self, offset_us: int) -> None:
        """Let this store's clock be so much ahead of the server's, for tests."""
        self._shift_us = offset_us

    def estimate_us(self) -> int | None:
        """The server's time by its last answer and our monotonic clock; None when that was long ago."""
        if self._heard is None:
            return None
        server_us, heard_us = self._heard
        passed_us = time.monotonic_ns() // 1000 - heard_us
        return server_us + passed_us + self._shift_us if passed_us < ESTIMATE_US_MAX else None

    async def wait_for_work(self, timeout_s: float) -> bool:
        """Return early (True) when another process says that work became ready."""
        return await self._bell.wait(timeout_s)

    async def tell_work(self) -> None:
        """Tell other processes that work became ready; coalesced, after the commit, best effort."""
        self._bell.tell()


def _go_on(transaction: Transaction[T], answer: Any) -> tuple[Query | Save | Aside | None, T]:
    """What a transaction asks for next; None, and its result, at its end. (A thread cannot raise StopIteration.)"""
    try:
        return transaction.send(answer), None  # type: ignore[return-value]  # there is a result at the end only
    except StopIteration as stop:
        return None, stop.value


def _named(fault: Exception) -> Exception:
    """The error our callers know, where nothing is tried again."""
    known = translated(fault)
    return unavailable(fault) if isinstance(known, Lost) else known
