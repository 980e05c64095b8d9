"""The real SQLite store in memory, with faults.

Laws:
1. A transaction happens at one moment. The wait for the lock and the transfer of the answer take time, in which others run.
2. The world sees every commit immediately, before any process can act on it.
3. If the process dies here, its call never returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from tenure.clock import ManualClock
from tenure.doctor.examination import run_inline
from tenure.errors import TenureError
from tenure.kernel.run_rows import Cap, OutboxRow
from tenure.store.port import AmbiguousCommit, Query, Save, Saved, Transaction, WriteConflict
from tenure.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from tenure.simulate.process import Process
    from tenure.simulate.world import World

T = TypeVar("T")

_TRANSACTION_FAULTS = (
    "conflict",
    "busy",
    "crash_before",
    "ambiguous_before",
    "crash_after",
    "ambiguous_after",
)
_ROLLED_BACK = ("crash_before", "ambiguous_before")


@cache
def _migrated_bytes() -> bytes:
    """A migrated, empty database file. Its clock begins at 0."""
    connection = apsw.Connection(":memory:")
    store = SqliteStore(":memory:", inline=True, connection=connection, clock=ManualClock(0))
    run_inline(store.migrate())
    return bytes(connection.serialize("main"))


def new_database() -> apsw.Connection:
    connection = apsw.Connection(":memory:", statementcachesize=256)
    connection.deserialize("main", _migrated_bytes())
    return connection


class _RolledBack(Exception):
    """The transaction did all its work, and is rolled back."""


class WriteLog:
    """The writes of a transaction."""

    __slots__ = ("beats", "saves")

    def __init__(self) -> None:
        self.saves: list[tuple[Save, Saved]] = []
        self.beats: list[Any] = []

    @property
    def run_ids(self) -> list[int]:
        """Every run that it touched, in order."""
        beats = {beat.run_id for beat in self.beats}
        return sorted(beats.union(*(saved.ids for _, saved in self.saves)))

    @property
    def wrote(self) -> bool:
        return bool(self.beats) or any(saved.ids or save.delivered for save, saved in self.saves)


class FaultyStore:
    name = "sqlite"
    lanes_max = 2

    def __init__(self, world: World, process: Process, inner: SqliteStore, rng: Random) -> None:
        self._world = world
        self._process = process
        self._inner = inner
        self._rng = rng
        self._listeners: dict[asyncio.Future[None], None] = {}
        self._delivered: list[OutboxRow] = []

    # -------------------------------------------------------------------------------- transactions

    async def transact(self, make: Callable[[], Transaction[T]], *, lane: int = 0, single: bool = False) -> T:
        """Run a transaction, possibly with a fault."""
        await self._travel()
        fault = self._draw_fault()
        seen = WriteLog()
        try:
            result = await self._inner.transact(
                lambda: _logged(make(), seen, undo=fault in _ROLLED_BACK), lane=lane, single=single
            )
        except _RolledBack:
            self._note(fault)
            if fault == "crash_before":
                await self._die()
            raise AmbiguousCommit("simulated: it did not happen") from None
        self._show(seen, fault)
        if fault == "crash_after":
            await self._die()
        if fault == "ambiguous_after" and seen.wrote:
            raise AmbiguousCommit("simulated: it did happen")
        await self._travel()
        return result

    @property
    def commits_inline(self) -> bool:
        return self._rng.random() < 0.5

    def commit_inline(self, decide: Callable[[int], Save | None]) -> Saved | None:
        """The same without an event loop. If the process dies here, the call returns, but the process can no longer send anything."""
        fault = self._draw_fault()
        seen = WriteLog()
        decided: list[Save] = []

        def logged(now: int) -> Save | None:
            if (save := decide(now)) is not None:
                decided.append(save)
            if fault in _ROLLED_BACK:
                raise _RolledBack
            return save

        try:
            saved = self._inner.commit_inline(logged)
        except _RolledBack:
            self._note(fault)
            if fault == "crash_before":
                self._world.kill(self._process)
            raise AmbiguousCommit("simulated: it did not happen") from None
        if saved is not None:
            seen.saves.append((decided[0], saved))
        self._show(seen, fault)
        if fault == "crash_after":
            self._world.kill(self._process)
            raise AmbiguousCommit("simulated: the process is dead")
        if fault == "ambiguous_after" and seen.wrote:
            raise AmbiguousCommit("simulated: it did happen")
        return saved

    def _draw_fault(self) -> str:
        """The fault of a transaction, or "". A fault that prevents the transaction is raised."""
        self._check_reachable()
        luck = self._rng.random()
        for fault in _TRANSACTION_FAULTS:
            luck -= getattr(self._world.faults, fault)
            if luck < 0:
                break
        else:
            return ""
        if fault in ("conflict", "busy"):
            self._note(fault)
            raise (
                WriteConflict("simulated") if fault == "conflict" else TenureError("STORE_BUSY", "simulated")
            )
        return fault

    def _show(self, seen: WriteLog, fault: str) -> None:
        if seen.wrote:
            self._world.on_commit(self._process, seen)
        if fault:
            self._note(fault)

    def _note(self, text: str) -> None:
        self._world.note(self._process.name, text)

    async def _travel(self) -> None:
        rng = self._rng
        if rng.random() < self._world.faults.slow:
            await asyncio.sleep(rng.choice((0.5, 2.0, 20.0)) * rng.random())
        elif rng.random() < 0.5:
            await asyncio.sleep(0.01 * rng.random())
        else:
            await asyncio.sleep(0)

    def _check_reachable(self) -> None:
        if self._world.out_until > self._world.loop.time():
            raise TenureError("STORE_UNAVAILABLE", "simulated")

    async def _die(self) -> None:
        self._world.kill(self._process)
        await self._world.loop.create_future()

    # ---------------------------------------------------------------------------------- other calls

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Run one named query. Its answer may be outdated when it arrives."""
        self._check_reachable()
        found = await self._inner.read(name, *scalars, rows=rows)
        if name == "outbox_pending":
            if self._delivered and self._rng.random() < self._world.faults.redeliver:
                found = [*found, self._rng.choice(self._delivered)]
                self._note("redeliver")
            self._delivered += found
        await self._travel()
        return found

    async def put_caps(self, caps: list[Cap]) -> None:
        await self._inner.put_caps(caps)

    async def wait_for_work(self, timeout_s: float) -> bool:
        """Wait until `wake` is called; False after the timeout."""
        woken: asyncio.Future[None] = self._world.loop.create_future()
        self._listeners[woken] = None
        try:
            async with asyncio.timeout(timeout_s):
                await woken
        except TimeoutError:
            return False
        finally:
            self._listeners.pop(woken, None)
        return True

    async def notify_work(self) -> None:
        self._world.notify_work()

    def wake(self) -> None:
        """End every `wait_for_work`."""
        wake_all(self._listeners)

    def estimate_us(self) -> int | None:
        return self._inner.estimate_us()

    def shift_clock(self, offset_us: int) -> None:
        self._inner.shift_clock(offset_us)

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        """Simulated processes are killed, so there is nothing to close."""


def wake_all(sleepers: Iterable[asyncio.Future[None]]) -> None:
    for sleeper in list(sleepers):
        if not sleeper.done():
            sleeper.set_result(None)


def _logged(transaction: Transaction[T], seen: WriteLog, *, undo: bool) -> Transaction[T]:
    """The transaction with its writes logged. With `undo`, it is rolled back at its end."""
    answer: Any = None
    while True:
        try:
            request = transaction.send(answer)
        except StopIteration as stop:
            if undo:
                raise _RolledBack from None
            result: T = stop.value
            return result
        answer = yield request
        if type(request) is Save:
            seen.saves.append((request, answer))
        elif isinstance(request, Query) and request.name == "beat":
            seen.beats += answer
