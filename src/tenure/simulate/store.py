"""The real SQLite store, as a process that has bad luck sees it.

Laws:
1. Whole transactions happen at one moment; what lies around them (the wait for the lock, the way of the
   answer) takes time, and that is where everything else gets in between.
2. Whatever was committed is shown to the world at once, before anybody can act on it.
3. A process that dies here never returns from its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.errors import TenureError
from tenure.kernel.run_rows import Cap, OutboxRow
from tenure.store.port import AmbiguousCommit, Query, Save, Saved, Transaction, WriteConflict
from tenure.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from tenure.simulate.process import Process
    from tenure.simulate.world import World

T = TypeVar("T")


_UNDONE = ("crash_before", "ambiguous_before")


class _Undone(Exception):
    """The transaction is rolled back after all its work."""


class WriteLog:
    """What a transaction wrote."""

    __slots__ = ("beats", "saves")

    def __init__(self) -> None:
        self.saves: list[tuple[Save, Saved]] = []
        self.beats: list[Any] = []

    @property
    def run_ids(self) -> list[int]:
        """Every run it touched, in order."""
        ids: set[int] = set()
        for _, saved in self.saves:
            ids |= saved.ids
        ids |= {beat.run_id for beat in self.beats}
        return sorted(ids)

    @property
    def wrote(self) -> bool:
        """Whether anything was written at all."""
        return bool(self.beats) or any(saved.ids or save.delivered for save, saved in self.saves)


class FaultyStore:
    """See the laws above."""

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
        """Run one transaction, with whatever goes wrong around it."""
        await self._travel()
        name = self._fate()
        seen = WriteLog()
        try:
            result = await self._inner.transact(
                lambda: _watched(make(), seen, undo=name in _UNDONE), lane=lane, single=single
            )
        except _Undone:
            self._note(name)
            if name == "crash_before":
                await self._die()
            raise AmbiguousCommit("simulated: it did not happen") from None
        self._shown(seen, name)
        if name == "crash_after":
            await self._die()
        if name == "ambiguous_after" and seen.wrote:
            raise AmbiguousCommit("simulated: it did happen")
        await self._travel()
        return result

    @property
    def commits_inline(self) -> bool:
        """The disk is quick every other time."""
        return self._rng.random() < 0.5

    def commit_inline(self, decide: Callable[[int], Save | None]) -> Saved | None:
        """Likewise. Who dies here comes back from its call, but never to anything it could tell somebody."""
        name = self._fate()
        seen = WriteLog()
        decided: list[Save] = []

        def watched(now: int) -> Save | None:
            if (save := decide(now)) is not None:
                decided.append(save)
            if name in _UNDONE:
                raise _Undone
            return save

        try:
            saved = self._inner.commit_inline(watched)
        except _Undone:
            self._note(name)
            if name == "crash_before":
                self._world.kill(self._process)
            raise AmbiguousCommit("simulated: it did not happen") from None
        if saved is not None:
            seen.saves.append((decided[0], saved))
        self._shown(seen, name)
        if name == "crash_after":
            self._world.kill(self._process)
            raise AmbiguousCommit("simulated: nobody is left to know")
        if name == "ambiguous_after" and seen.wrote:
            raise AmbiguousCommit("simulated: it did happen")
        return saved

    def _fate(self) -> str:
        """What goes wrong with a transaction; nothing, mostly. Raises where it does not even begin."""
        self._reach()
        faults = self._world.faults
        luck = self._rng.random()
        for name in (
            "conflict",
            "busy",
            "crash_before",
            "ambiguous_before",
            "crash_after",
            "ambiguous_after",
        ):
            luck -= getattr(faults, name)
            if luck < 0:
                break
        else:
            return ""
        if name == "conflict":
            self._note(name)
            raise WriteConflict("simulated")
        if name == "busy":
            self._note(name)
            raise TenureError("STORE_BUSY", "simulated")
        return name

    def _shown(self, seen: WriteLog, name: str) -> None:
        if seen.wrote:
            self._world.committed(self._process, seen)
        if name:
            self._note(name)

    def _note(self, name: str) -> None:
        self._world.note(self._process.name, name)

    async def _travel(self) -> None:
        rng = self._rng
        if rng.random() < self._world.faults.slow:
            await asyncio.sleep(rng.choice((0.5, 2.0, 20.0)) * rng.random())
        elif rng.random() < 0.5:
            await asyncio.sleep(0.01 * rng.random())
        else:
            await asyncio.sleep(0)

    def _reach(self) -> None:
        if self._world.out_until > self._world.loop.time():
            raise TenureError("STORE_UNAVAILABLE", "simulated")

    async def _die(self) -> None:
        self._world.kill(self._process)
        await self._world.loop.create_future()

    # ---------------------------------------------------------------------------------- other calls

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Ask one named query on its own; its answer is old by the time it arrives."""
        self._reach()
        found = await self._inner.read(name, *scalars, rows=rows)
        if name == "outbox_pending":
            if self._delivered and self._rng.random() < self._world.faults.redeliver:
                found = [*found, self._rng.choice(self._delivered)]
                self._world.note(self._process.name, "redeliver")
            self._delivered += found
        await self._travel()
        return found

    async def put_caps(self, caps: list[Cap]) -> None:
        """Insert or replace caps."""
        await self._inner.put_caps(caps)

    async def wait_for_work(self, timeout_s: float) -> bool:
        """Return early when the bell rings."""
        told: asyncio.Future[None] = self._world.loop.create_future()
        self._listeners[told] = None
        try:
            async with asyncio.timeout(timeout_s):
                await told
        except TimeoutError:
            return False
        finally:
            self._listeners.pop(told, None)
        return True

    async def notify_work(self) -> None:
        """Ring the bell everywhere; it is not always heard."""
        self._world.ring()

    def wake(self) -> None:
        """The bell is heard here."""
        for told in list(self._listeners):
            if not told.done():
                told.set_result(None)

    def estimate_us(self) -> int | None:
        """The store's time, as this process believes."""
        return self._inner.estimate_us()

    def shift_clock(self, offset_us: int) -> None:
        """Move this store's clock."""
        self._inner.shift_clock(offset_us)

    async def open(self) -> None:
        """Open the store beneath."""
        await self._inner.open()

    async def close(self) -> None:
        """Processes here do not end in peace."""


def _watched(transaction: Transaction[T], seen: WriteLog, *, undo: bool) -> Transaction[T]:
    """The transaction, with its writes noted; undone at the end where that is its fate."""
    answer: Any = None
    while True:
        try:
            request = transaction.send(answer)
        except StopIteration as stop:
            if undo:
                raise _Undone from None
            result: T = stop.value
            return result
        answer = yield request
        if type(request) is Save:
            seen.saves.append((request, answer))
        elif isinstance(request, Query) and request.name == "beat":
            seen.beats += answer
