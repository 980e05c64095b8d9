"""Where a lab's workers get their work: as beside any database, but for time, crashes and being asked to look.

Laws:
1. A worker that has nothing to do looks again when the bell is rung, and says so when it found nothing.
2. Everything a worker says goes through `say`, in order, and what its acts say and call through `alive`: that is where crashes
   are put.
3. Nobody hears a dead worker: what it says after its end is never sent, and never answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from tenure.futures import take_outcome
from tenure.govern.connector import Call, Connector
from tenure.govern.governor import Governor
from tenure.kernel.actions import ActMessage, ActReply
from tenure.kernel.commands import LeaseMessage
from tenure.kernel.decide.leases import Lease, Reply
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.heartbeats import LeaseKey
from tenure.sdk.acting import Ask, Told
from tenure.sdk.definitions import Registry, Tool, Workflow
from tenure.store.port import Store
from tenure.testing.clock import Alarms, LabClock
from tenure.testing.heart import LabHeart
from tenure.worker import LocalStation, Worker
from tenure.worker.heart import Heart
from tenure.worker.station import key_of

if TYPE_CHECKING:
    from tenure.testing.crashes import Crashes
    from tenure.testing.engine import LabEngine
    from tenure.worker.held import Held

LOOK_SECONDS = 0.05


_ACTS_FOR: ContextVar[str] = ContextVar("lab_acts_for")
"""The worker that an act is done for."""
T = TypeVar("T")


class Calling(msgspec.Struct, frozen=True):
    """A call on the world: a place for a crash, like a commit."""

    name: str


Said = LeaseMessage | ActMessage | Calling
"""What a worker may die of."""


class _Office:
    """Where a lab's governor sends its messages."""

    def __init__(self, orchestrator: Orchestrator, station: LabStation) -> None:
        self._orchestrator = orchestrator
        self._station = station

    @property
    def store(self) -> Store:
        return self._orchestrator.store

    async def send(self, command: ActMessage) -> ActReply:
        begin = partial(self._orchestrator.submit, command)
        reply: ActReply = await self._station.alive(_ACTS_FOR.get(), command, begin)
        return reply


class _Struck:
    """A connector whose calls are places for crashes."""

    def __init__(self, inner: Connector, station: LabStation) -> None:
        self._inner = inner
        self._station = station

    async def call(self, call: Call) -> Any:
        def begin() -> asyncio.Future[Any]:
            return asyncio.ensure_future(self._inner.call(call))

        return await self._station.alive(_ACTS_FOR.get(), Calling(call.operation), begin)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class LabStation(LocalStation):
    """See the laws above."""

    def __init__(self, engine: LabEngine, clock: LabClock, alarms: Alarms, crashes: Crashes) -> None:
        struck = [_Struck(engine.connectors[name], self) for name in engine.connectors]
        governor = Governor(_Office(engine.orchestrator, self), engine.artifacts, struck)
        ends = engine.ends
        super().__init__(
            engine.url, engine.orchestrator, engine.artifacts, ends.succeeded, ends.ended, governor
        )
        self.pace = alarms
        self.clock = clock
        self.crashes = crashes
        self.hearts: list[LabHeart] = []
        self.dead: set[str] = set()
        self.holders: dict[LeaseKey, str] = {}
        """Which worker holds a lease."""
        self.claimed = 0
        self.rings = 0
        self.looked: dict[str, int] = {}
        """The ring after which a worker has looked and found nothing."""
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Have every idle worker look for work."""
        self.rings += 1
        self._bell.set()
        self._bell = asyncio.Event()

    async def claim(self, worker: str, queues: Sequence[str], limit: int, wait_seconds: float) -> list[Lease]:
        """Take up to `limit` steps; see law 1."""
        del wait_seconds  # it waits for the bell
        while True:
            ring, bell = self.rings, self._bell
            leases = await super().claim(worker, queues, limit, 0.0)
            self.claimed += len(leases)
            if leases and self.crashes.strikes(worker, "claim", None):
                leases = []
            if leases or worker in self.dead:
                return leases
            self.looked[worker] = ring
            rung = asyncio.ensure_future(bell.wait())
            news = asyncio.ensure_future(self.store.wait_for_work(LOOK_SECONDS))
            try:
                await asyncio.wait((rung, news), return_when=asyncio.FIRST_COMPLETED)
            finally:
                rung.cancel()
                news.cancel()

    def say(self, message: LeaseMessage) -> asyncio.Future[Reply]:
        """Send a message, unless its worker is dead or dies of it; see laws 2 and 3."""
        worker = message.context.actor.removeprefix("worker:")
        return self.alive(worker, message, partial(super().say, message))

    def alive(self, worker: str, message: Said, begin: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        """Begin something that a worker does, unless it is dead or dies of it."""
        gone = worker in self.dead or worker in self.crashes.doomed
        if gone or self.crashes.strikes(worker, "before", message):
            return asyncio.get_running_loop().create_future()
        answer = begin()
        if self.crashes.said(worker, message, answer):
            return asyncio.get_running_loop().create_future()
        return answer

    async def act(self, lease: Lease, ask: Ask, held_until: Callable[[], float]) -> Told:
        """Have the governor do something, for the worker that holds the lease."""
        _ACTS_FOR.set(self.holders[key_of(lease)])  # in this act's own task
        return await super().act(lease, ask, held_until)

    def heart(self, heard: Any) -> Heart:
        """Heartbeats by the lab's clock."""
        made = LabHeart(self.store, self.clock, heard)
        self.hearts.append(made)
        return cast("Heart", made)


class LabWorker(Worker):
    """A worker whose idleness can be seen from outside."""

    station: LabStation

    def __init__(
        self,
        station: LabStation,
        *definitions: Workflow[..., Any] | Tool | Registry,
        **how: Any,
    ) -> None:
        super().__init__(station, *definitions, **how)
        self.definitions = definitions
        self.how = {**how, "name": None}

    def kill(self) -> None:
        """Drop everything without a word."""
        self.station.dead.add(self.name)
        for held in self._held.values():
            if held.work is not None:
                held.work.add_done_callback(take_outcome)
        super().kill()

    def _begin(self, lease: Lease) -> None:
        self.station.holders[key_of(lease)] = self.name
        super()._begin(lease)

    def take(self, lease: Lease | None) -> None:
        """What became of a reservation; a crash can come in between."""
        if lease is not None and self.station.crashes.strikes(self.name, "claim", None):
            lease = None
        super().take(lease)

    async def gone(self) -> None:
        """After `kill`: until nothing of it runs any more."""
        works = [held.work for held in self._held.values() if held.work is not None]
        tasks = [task for task in (self._claiming, self._registering) if task is not None]
        await asyncio.gather(*self._tasks, *works, *tasks, return_exceptions=True)

    @property
    def is_looking(self) -> bool:
        """Whether it has room, so that it answers the bell."""
        return not self._stopping and self.free > 0

    def leases(self) -> list[LeaseKey]:
        """What it holds."""
        return list(self._held)

    def at_work(self) -> dict[Held, list[str]]:
        """The steps that are being tried now, by what is held."""
        return {held: _steps_of(held) for held in self._held.values()}

    def rest(self, leave: Sequence[str]) -> str:
        """`resting` where nothing it holds can go on without time; `unseen` where code awaits something of its
        own; else `working`. Steps named in `leave` are not waited for."""
        if self._killed:
            return "resting"
        found = [self._rest(held, leave) for held in self._held.values()]
        return next((word for word in ("working", "unseen") if word in found), "resting")

    @staticmethod
    def _rest(held: Held, leave: Sequence[str]) -> str:
        if held.body is None:
            return "resting" if held.lease.kind != "body" and held.lease.name in leave else "working"
        left = sum(name in leave for name in _steps_of(held))
        return held.body.rest(left)


def _steps_of(held: Held) -> list[str]:
    if held.body is None:
        return [held.lease.name]
    return [step_name(key) for key in held.body.at_work]


def step_name(key: str) -> str:
    """The step of a key."""
    return key.rpartition("/")[2].partition("#")[0]
