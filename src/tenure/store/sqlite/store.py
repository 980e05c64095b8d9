"""The SQLite store.

Laws:
1. One connection writes and one reads. A transaction takes the file's write lock at its beginning, so it
   cannot fail half-way because of another process.
2. The body of a transaction runs in the caller's thread, and only what waits for the disk (the commit, and reads outside of
   transactions) runs in a thread: rows cost Python time, and two threads that both want the interpreter are slower than one.
   A small commit on a fast disk stays in the caller's thread: handing it over would take as long as the disk does. A long
   transaction (`port.LEAVE_EVENT_LOOP`) continues in that thread, and is committed there.
3. While the file is locked, a transaction tries again after small random pauses, without blocking the loop, until its deadline.
4. After any error the transaction is rolled back and the connection stays usable.
5. Inline, there are no threads and nothing is awaited: the simulator's scheduler sees whole transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from tenure import limits
from tenure.clock import Clock, HostClock
from tenure.errors import TenureError
from tenure.kernel.run_rows import Cap
from tenure.store.port import LEAVE_EVENT_LOOP, DataRejected, Save, Saved, Transaction, WriteConflict
from tenure.store.sqlite import migrator
from tenure.store.sqlite.connection import IN_MEMORY, WAL_PAGES_MAX, configure_connection, open_connection
from tenure.store.sqlite.errors import translate_error
from tenure.store.sqlite.file_clock import FileClock
from tenure.store.sqlite.statements import SQL, SqliteTransaction, run_query
from tenure.store.sqlite.worker_thread import WorkerThread

T = TypeVar("T")

PAUSE_SECONDS_MIN = 0.001
PAUSE_SECONDS_MAX = 0.020
POLL_SECONDS = 0.05
"""How often a waiting process checks whether another one has written."""
SMALL_COMMIT_ROWS = 32
FAST_COMMIT_SECONDS = 0.001
"""How long commits may block the event loop, on average."""
SLOW_COMMIT_SECONDS = 0.004
"""A slower commit counts as one of this length."""
WAL_PAGES_MAX_SMALL = 1000
"""When the write-ahead log is checkpointed after small commits: sooner than at WAL_PAGES_MAX, so that pages that are written
often stay in the processor's caches (a sixth of a small commit's time). With large commits that would be too often."""
SHARED_US = 100_000
"""For this long after another process has written, nothing is committed inline: without a pause, a busy process would starve
other writers."""
_HOST_CLOCK = HostClock()


class SqliteStore:
    """A file (or, inline, `:memory:` or a connection shared with other inline stores)."""

    name = "sqlite"
    lanes_max = 1

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = _HOST_CLOCK,
        inline: bool = False,
        connection: apsw.Connection | None = None,
        busy_seconds: float = limits.COMMAND_SECONDS_MAX,
        only_reads: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        if (self.path == IN_MEMORY or connection is not None) and not inline:
            raise ValueError("a database in memory has one connection: use inline=True")
        self._clock = clock
        self._file_time = FileClock(clock)
        self._shift_us = 0
        self._last_us = 0
        self._ahead_us: int | None = None
        """Without an anchor: how far the last committed time is ahead of the monotonic clock."""
        self._read_us = 0
        """The monotonic clock when the time was last read."""
        self._inline = inline
        self._busy_seconds = busy_seconds
        self._only_reads = only_reads
        """Whether a file that cannot be written is accepted."""
        self._commit_seconds = FAST_COMMIT_SECONDS
        """How long recent small commits have taken, on average."""
        self._wal_pages = 0
        """The length of the write-ahead log after the last commit."""
        self._chance = random.Random()
        self._given = connection
        self._connection = connection
        self._cursor: apsw.Cursor | None = None
        self._turn = asyncio.Lock()
        self._writer: WorkerThread | None = None
        self._reader: WorkerThread | None = None
        self._read_cursor: apsw.Cursor | None = None
        self._data_version = 0
        self._committed_version: int | None = None
        """SQLite's data version after our last commit; commits of other processes change it."""
        self._unfollowed = False
        """Whether the feed was not open then."""
        self._shared_until_us = 0
        self._waiting: set[asyncio.Future[None]] = set()

    # ------------------------------------------------------------------------------------ open and close

    async def open(self) -> None:
        connection = await self._connect(create=False)
        try:
            if await self._patiently(lambda: self._missing(connection)):
                raise TenureError("STORE_NOT_MIGRATED", f"{self.path} needs `tenure migrate`")
            await self._patiently(lambda: configure_connection(connection))
            await self._patiently(lambda: self._begin_time(connection))
            self._data_version = connection.pragma("data_version")
        except BaseException:
            await self.close()
            raise
        connection.set_wal_hook(self._log_grew)  # replaces the hook that wal_autocheckpoint has set
        self._committed_version = None  # every connection counts for itself
        self._cursor = connection.cursor()
        if self._inline:
            self._read_cursor = connection.cursor()
            return
        self._writer, self._reader = WorkerThread("tenure-sqlite-commit"), WorkerThread("tenure-sqlite-read")
        self._read_cursor = await self._reader.run(self._connect_reader)

    def _begin_time(self, connection: apsw.Connection) -> None:
        """Load the file's clock anchor, or write one if the file has none for this boot of the machine."""
        self._file_time.load(connection)
        if self._file_time.anchor is not None or self._only_reads or connection.readonly("main"):
            return
        connection.execute("begin immediate")
        try:
            written = self._file_time.begin(connection, connection.execute(SQL["now"], (0,)).get)
            connection.execute("commit" if written else "rollback")
        except BaseException:
            _roll_back(connection)
            raise

    async def wait_until_reachable(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Nothing to wait for: a file exists or does not."""

    async def close(self) -> None:
        async with self._turn:
            for thread in (self._writer, self._reader):
                if thread is not None:
                    thread.stop()
            if self._read_cursor is not None and not self._inline:
                self._read_cursor.connection.close()
            if self._connection is not None and self._given is None:
                self._connection.close()
            self._connection, self._cursor, self._read_cursor = self._given, None, None
            self._writer = self._reader = None
        for waiter in self._waiting:
            waiter.cancel()

    async def migrate(self) -> list[str]:
        """Apply the missing migrations, creating the file if it does not exist; their names."""
        connection = await self._connect(create=True)

        def bring_up() -> list[str]:
            connection.execute("begin immediate")
            try:
                todo = migrator.find_missing_migrations(connection)
                applied = migrator.apply_migrations(connection, todo, self._time()) if todo else []
                connection.execute("commit")
            except BaseException:
                _roll_back(connection)
                raise
            return applied

        try:
            # This refuses the files of other programs before anything is written.
            await self._patiently(lambda: migrator.find_missing_migrations(connection))
            await self._patiently(lambda: connection.pragma("journal_mode", "wal"))
            return await self._patiently(bring_up)
        except Exception as fault:
            raise translate_error(fault, self.path) from fault
        finally:
            if self._cursor is None and self.path != IN_MEMORY:
                await self.close()

    async def _connect(self, *, create: bool) -> apsw.Connection:
        if self._connection is None:
            if not create and self.path == IN_MEMORY:
                raise TenureError("STORE_NOT_MIGRATED", "a database in memory begins with migrate()")
            try:
                self._connection = open_connection(self.path, create=create)
            except Exception as fault:
                raise translate_error(fault, self.path) from fault
            if self._connection.readonly("main") and not self._only_reads:
                await self.close()
                raise TenureError("STORE_READ_ONLY", f"{self.path} cannot be written")
        return self._connection

    def _missing(self, connection: apsw.Connection) -> Sequence[Any]:
        try:
            return migrator.find_missing_migrations(connection)
        except (apsw.CantOpenError, apsw.ReadOnlyError) as fault:
            if not connection.readonly("main"):
                raise
            raise TenureError(
                "STORE_READ_ONLY",
                f"{self.path} is read-only, and so is its folder: SQLite cannot read it there, because it keeps a"
                " -shm file next to it; copy it to a folder that can be written",
            ) from fault

    def _connect_reader(self) -> apsw.Cursor:
        connection = open_connection(self.path, create=False)
        connection.set_busy_timeout(int(self._busy_seconds * 1000))
        configure_connection(connection)
        connection.pragma("query_only", True)
        return connection.cursor()

    # ---------------------------------------------------------------------------------- transactions

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        del lane, single  # one writer, no round trips
        async with self._turn:
            cursor = await self._begin()
            try:
                running = self._running(cursor)
                transaction = make()
                result: T = _drive(transaction, running, until_aside=self._writer is not None)
                if result is LEAVE_EVENT_LOOP and self._writer is not None:
                    result, changes = await self._writer.run(
                        lambda: self._finish_aside(transaction, running, cursor)
                    )
                    if changes:
                        self._committed(cursor, running)
                elif changes := running.finish():
                    self._file_time.confirm(cursor.connection)
                    await self._commit(cursor, small=changes <= SMALL_COMMIT_ROWS)
                    self._committed(cursor, running)
                else:
                    cursor.execute("rollback")
            except BaseException as fault:
                _undo(cursor.connection, fault)
                raise
            return result

    def _finish_aside(
        self, transaction: Transaction[T], running: SqliteTransaction, cursor: apsw.Cursor
    ) -> tuple[T, int]:
        """Run the rest of a long transaction, in the thread that commits. Returns its result and how many rows it wrote."""
        result: T = _drive(transaction, running)
        changes = running.finish()
        if changes:
            self._file_time.confirm(cursor.connection)
            self._commit_here(cursor, small=False)
        else:
            cursor.execute("rollback")
        return result, changes

    @property
    def commits_inline(self) -> bool:
        until = self._shared_until_us
        return self._commit_seconds < FAST_COMMIT_SECONDS and (
            not until or self._clock.monotonic_us() >= until
        )

    def commit_inline(self, decide: Callable[[int], Save | None]) -> Saved | None:
        cursor = _ready(self._cursor)
        if self._turn.locked():
            raise WriteConflict("another transaction is under way")
        try:
            cursor.execute("begin immediate")
        except apsw.BusyError as busy:
            raise WriteConflict("another process is writing") from busy
        except Exception as fault:
            raise translate_error(fault) from fault
        try:
            running = self._running(cursor)
            now = running.now()
            save = decide(now)
            saved = None if save is None else running.save(save, now)
            if changes := running.finish():
                self._file_time.confirm(cursor.connection)
                # A large commit blocks the loop, too, but for little compared with deciding and writing its rows.
                self._commit_here(cursor, small=changes <= SMALL_COMMIT_ROWS)
                self._committed(cursor, running)
            else:
                cursor.execute("rollback")
        except BaseException as fault:
            _undo(cursor.connection, fault)
            raise
        return saved

    def _running(self, cursor: apsw.Cursor) -> SqliteTransaction:
        """A transaction that has just begun, with what is known from the last commit."""
        if cursor.connection.data_version() == self._committed_version:
            return SqliteTransaction(cursor, self._time, self._last_us, unfollowed=self._unfollowed)
        if self._file_time.doubt_us:
            self._file_time.load(cursor.connection)  # another process may have corrected it
        running = SqliteTransaction(cursor, self._time, None, unfollowed=False)
        moment = self._clock.monotonic_us()
        self._heard(running.floor_us, moment)
        if self._committed_version is not None:
            self._shared_until_us = moment + SHARED_US
        return running

    def _committed(self, cursor: apsw.Cursor, running: SqliteTransaction) -> None:
        """Remember what holds until another process commits."""
        self._committed_version = cursor.connection.data_version()
        self._unfollowed = running.unfollowed
        self._heard(running.now_us, self._read_us)

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        cursor = _ready(self._read_cursor)
        if name == "now":
            scalars = (self._time(),)

        def call() -> list[Any]:
            try:
                return run_query(cursor, name, rows, scalars)
            except Exception as fault:
                known = translate_error(fault)
                if isinstance(known, DataRejected):  # the query cannot be asked with these values
                    known = TenureError("INVALID_INPUT", f"the database refused the query: {fault}")
                raise known from fault

        return call() if self._reader is None else await self._reader.run(call)

    async def put_caps(self, caps: list[Cap]) -> None:
        async with self._turn:
            cursor = await self._begin()
            try:
                cursor.executemany(SQL["save_cap"], map(msgspec.structs.astuple, caps))
                cursor.execute("commit")
            except Exception as fault:
                _roll_back(cursor.connection)
                raise translate_error(fault) from fault

    async def _begin(self) -> apsw.Cursor:
        cursor = _ready(self._cursor)
        try:
            cursor.execute("begin immediate")
        except apsw.BusyError:
            await self._patiently(lambda: cursor.execute("begin immediate"))
        except Exception as fault:
            raise translate_error(fault) from fault
        return cursor

    async def _commit(self, cursor: apsw.Cursor, *, small: bool) -> None:
        if self._writer is None or (small and self._commit_seconds < FAST_COMMIT_SECONDS):
            self._commit_here(cursor, small=small)
        else:
            await self._writer.run(lambda: self._commit_here(cursor, small=small))

    def _commit_here(self, cursor: apsw.Cursor, *, small: bool) -> None:
        started = time.perf_counter()
        cursor.execute("commit")
        if small:
            # Several slow commits show that the disk has become slow. A single one says nothing about the next:
            # handing over the twenty after it would cost them a third of their time.
            took = min(time.perf_counter() - started, SLOW_COMMIT_SECONDS)
            self._commit_seconds += (took - self._commit_seconds) * 0.1
        if self._wal_pages >= (WAL_PAGES_MAX_SMALL if small else WAL_PAGES_MAX):
            self._wal_pages = 0
            # If this fails, the commit has happened nevertheless, and the next one tries again.
            with contextlib.suppress(apsw.Error):
                cursor.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _log_grew(self, connection: apsw.Connection, name: str, pages: int) -> int:
        del connection, name
        self._wal_pages = pages
        return apsw.SQLITE_OK

    async def _patiently(self, call: Callable[[], T]) -> T:
        """Repeat a call while the file is locked, in small random pauses, until the deadline."""
        pause = PAUSE_SECONDS_MIN
        deadline = time.monotonic() + self._busy_seconds
        while True:
            try:
                return call()
            except apsw.BusyError as busy:
                if time.monotonic() >= deadline:
                    raise TenureError(
                        "STORE_BUSY", f"{self.path} stayed locked for {self._busy_seconds:g} seconds"
                    ) from busy
            except Exception as fault:
                raise translate_error(fault, self.path) from fault
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.0))
            pause = min(pause * 1.5, PAUSE_SECONDS_MAX)

    # ------------------------------------------------------------------------------- time and wake-ups

    def shift_clock(self, offset_us: int) -> None:
        """Move this store's clock ahead of the host's, for tests."""
        self._shift_us = offset_us

    @property
    def clock_doubt_us(self) -> int:
        """How far this host's clock is ahead of the file's time (below 0: behind), if it is ignored; else 0."""
        self._file_time.read()
        return self._file_time.doubt_us

    def estimate_us(self) -> int:
        """The store's time: known without a query, except for what other processes have committed."""
        return self._time()

    def _time(self) -> int:
        """The file's time (`file_clock`). After the host's clock was set back: the last committed time and the time that has
        passed since, so that no lease or timer stands still until the host has caught up."""
        now = self._file_time.read() + self._shift_us
        self._read_us = moment = self._clock.monotonic_us()
        if now < self._last_us:
            now = self._last_us
        if self._ahead_us is not None and now < moment + self._ahead_us:
            now = moment + self._ahead_us
        return now

    def _heard(self, committed_us: int, moment: int) -> None:
        """A commit has this time; `moment` is the monotonic clock then."""
        if committed_us > self._last_us:
            self._last_us = committed_us
            if self._file_time.anchor is not None and not self._shift_us:
                self._file_time.heard(committed_us - self._shift_us)
                return
            ahead = committed_us - moment
            if self._ahead_us is None or ahead > self._ahead_us:
                self._ahead_us = ahead

    async def wait_for_work(self, timeout_s: float) -> bool:
        """Return early (True) when this or another process has written something."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting.add(woken)
        try:
            while not woken.done():
                if self._others_wrote():
                    return True
                left = deadline - loop.time()
                if left <= 0:
                    return False
                await asyncio.wait((woken,), timeout=min(left, POLL_SECONDS))
            return not woken.cancelled()
        finally:
            self._waiting.discard(woken)

    async def notify_work(self) -> None:
        """Wake the waiters in this process; other processes see that the file has changed."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _others_wrote(self) -> bool:
        """Whether other connections have committed; SQLite counts their commits, not ours."""
        if self._connection is None or self._turn.locked():
            return False
        try:
            version = self._connection.pragma("data_version")
        except apsw.BusyError:
            return False
        except Exception as fault:
            raise translate_error(fault) from fault
        before, self._data_version = self._data_version, int(version)
        return self._data_version != before


def _ready(cursor: apsw.Cursor | None) -> apsw.Cursor:
    if cursor is None:
        raise TenureError("STORE_UNAVAILABLE", "the store is closed")
    return cursor


def _drive(transaction: Transaction[T], running: SqliteTransaction, *, until_aside: bool = False) -> Any:
    """Answer the requests of a transaction. Its own errors are raised as they are; the database's are translated.
    `until_aside`: return when it yields LEAVE_EVENT_LOOP, so that the caller can continue in another thread."""
    answer: Any = None
    while True:
        try:
            request = transaction.send(answer)
        except StopIteration as stop:
            return stop.value
        if request is LEAVE_EVENT_LOOP:
            if until_aside:
                return LEAVE_EVENT_LOOP
            answer = None
            continue
        try:
            answer = running.answer(request)
        except Exception as fault:
            transaction.close()
            raise translate_error(fault) from fault


def _undo(connection: apsw.Connection, fault: BaseException) -> None:
    """Roll back after an error, and raise the translated error if there is one."""
    _roll_back(connection)
    if isinstance(fault, Exception) and (known := translate_error(fault)) is not fault:
        raise known from fault


def _roll_back(connection: apsw.Connection) -> None:
    """Roll back, unless SQLite has done so by itself (for example after a full disk)."""
    if connection.in_transaction:
        connection.execute("rollback")
