"""A simulated process: its own orchestrator, cache, chance, clock and sweeper on the one database."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.chance import SeededChance
from tenure.clock import SECOND_US
from tenure.errors import TenureError
from tenure.ids import RunIds
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.sweeper import OUTBOX_GRACE_SECONDS, Sweeper
from tenure.simulate.loop import Host, SimLoop
from tenure.simulate.resolver import PlainResolver
from tenure.simulate.store import FaultyStore
from tenure.store.port import AmbiguousCommit, WriteConflict
from tenure.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from tenure.simulate.world import World

EPOCH_US = 1_767_225_600 * SECOND_US
SWEEP_SECONDS = 1.0
SWEEP_IDLE_SECONDS_MAX = 30.0


class MachineClock:
    """A host's clock: the virtual time, plus what it is off by.

    `lasting_us` is what it is off by for good; `offset_us` is what it is off by now."""

    def __init__(self, loop: SimLoop, lasting_us: int = 0) -> None:
        self._loop = loop
        self.lasting_us = lasting_us
        self.offset_us = lasting_us

    def now_us(self) -> int:
        """Wall time as this machine has it."""
        return EPOCH_US + int(self._loop.time() * SECOND_US) + self.offset_us

    def monotonic_us(self) -> int:
        """Time that never goes back."""
        return int(self._loop.time() * SECOND_US)


class SimulatedClaim(msgspec.Struct, frozen=True):
    """What a worker asks for."""

    worker: str
    limit: int
    ack: bool
    wait_seconds: float
    queues: tuple[str, ...] = ("default",)
    session: int | None = None


class Process(Host):
    """One life of a process; its next life is another object."""

    __slots__ = ("_context", "_world", "clock", "orchestrator", "store", "sweeper", "unswept_until")

    def __init__(self, world: World, name: str, life: int, clock: MachineClock, lanes: int) -> None:
        super().__init__(name)
        self._world = world
        self.clock = clock
        self._context = self.context()
        rng = Random(f"{world.seed}/{name}/{life}")
        inner = SqliteStore(":memory:", clock=clock, inline=True, connection=world.connection)
        self.store = FaultyStore(world, self, inner, rng)
        self.orchestrator: Orchestrator = self._context.run(
            Orchestrator,
            self.store,
            chance=SeededChance(f"{world.seed}/{name}/{life}/chance"),
            ids=RunIds(rng.getrandbits(31)),
            clock=clock,
            lanes=lanes,
            command_seconds=rng.choice((5.0, 30.0)),
        )
        self.orchestrator.resolver = PlainResolver(self.store)
        self.sweeper = Sweeper(self.orchestrator)
        self.unswept_until = 0.0

    def start(self) -> None:
        """Begin to serve."""
        self._world.loop.create_task(self._live(), context=self._context)

    async def _live(self) -> None:
        await self.store.open()
        while True:
            try:
                await self.orchestrator.start()
                break
            except TenureError:
                await asyncio.sleep(1.0)
        self._world.serving(self)
        await self._sweep()

    async def _sweep(self) -> None:
        """What `Sweeper` does in its own loop, without the looks at nothing."""
        idle = SWEEP_SECONDS
        while True:
            await self._world.agenda.until_due(self, idle)
            if self.unswept_until > self._world.loop.time():
                await asyncio.sleep(self.unswept_until - self._world.loop.time())
                continue
            try:
                found = await self.sweeper.sweep()
            except (TenureError, WriteConflict, AmbiguousCommit):
                found = 1
            idle = SWEEP_SECONDS if found else min(2 * idle, SWEEP_IDLE_SECONDS_MAX)

    # ------------------------------------------------------------------------------------- requests

    def arrive(self, verb: str, asked: Any, answer: asyncio.Future[Any], back: contextvars.Context) -> None:
        """A request comes in over the network."""
        self._world.loop.create_task(self._handle(verb, asked, answer, back), context=self._context)

    def receive(
        self, delay: float, verb: str, asked: Any, answer: asyncio.Future[Any], back: contextvars.Context
    ) -> None:
        """Let a request arrive after a while, should the process live then."""
        self._world.loop.call_later(delay, self.arrive, verb, asked, answer, back, context=self._context)

    async def _handle(
        self, verb: str, asked: Any, answer: asyncio.Future[Any], back: contextvars.Context
    ) -> None:
        world = self._world
        known = world.oracle.arrived(verb, asked)
        result: Any = None
        error: TenureError | None = None
        try:
            result = await self._do(verb, asked)
        except TenureError as refused:
            error = refused
        except (WriteConflict, AmbiguousCommit) as fault:
            error = TenureError("STORE_UNAVAILABLE", repr(fault))
        world.oracle.answered(verb, asked, known, result, error)
        world.network.send_back(answer, back, result, error)

    async def _do(self, verb: str, asked: Any) -> Any:
        orchestrator = self.orchestrator
        if verb == "send":
            return await orchestrator.send(asked)
        if verb == "create":
            return await orchestrator.create(asked)
        if verb == "beat":
            return await orchestrator.heartbeat(asked)
        if verb == "read":
            return await self.store.read(*asked)
        assert isinstance(asked, SimulatedClaim), f"unknown verb {verb}"
        return await orchestrator.claim(
            asked.worker,
            queues=asked.queues,
            limit=asked.limit,
            ack=asked.ack,
            wait_seconds=asked.wait_seconds,
            session=asked.session,
        )


class Agenda:
    """Knows when anything is due and whether there is work, so that nobody looks at nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._due_us: int | None = None
        self._claimable = False
        self._sleepers: dict[asyncio.Future[None], None] = {}
        self._idle: dict[asyncio.Future[None], None] = {}

    def look(self) -> None:
        """After a commit: what is due next, and is there work?"""
        world = self._world
        due = [moment.now_us for moment in world.inspect("next_wake")]
        due += [row.created_at + int(OUTBOX_GRACE_SECONDS * SECOND_US) + 1 for row in world.owed(1)]
        before, self._due_us = self._due_us, min(due, default=None)
        self._claimable = world.has_work()
        if self._claimable:
            self._wake(self._idle)
        if self._due_us is not None and (before is None or self._due_us < before):
            self._wake(self._sleepers)  # to sleep again, not as long

    def wake_everybody(self) -> None:
        """The weather has changed: let everybody look for themselves."""
        self._wake(self._sleepers)
        self._wake(self._idle)

    @staticmethod
    def _wake(sleepers: Iterable[asyncio.Future[None]]) -> None:
        for sleeper in list(sleepers):
            if not sleeper.done():
                sleeper.set_result(None)

    def _away(self, process: Process) -> float:
        """Seconds until the next thing is due by this process's estimate of the store's time: the sweeper decides by that too."""
        if self._due_us is None:
            return 1e9
        return (self._due_us - (process.store.estimate_us() or process.clock.now_us())) / SECOND_US

    async def until_due(self, process: Process, idle: float) -> None:
        """Until something may be due for a sweep of this process; at least `idle` seconds."""
        await asyncio.sleep(idle)
        while (away := self._away(process)) > 0:
            sleeper: asyncio.Future[None] = self._world.loop.create_future()
            self._sleepers[sleeper] = None
            try:
                async with asyncio.timeout(min(away, 1e8) + 0.001):
                    await sleeper
            except TimeoutError:
                pass
            finally:
                self._sleepers.pop(sleeper, None)

    async def work(self) -> None:
        """Until there is something to claim."""
        while not self._claimable:
            idle: asyncio.Future[None] = self._world.loop.create_future()
            self._idle[idle] = None
            try:
                await idle
            finally:
                self._idle.pop(idle, None)
