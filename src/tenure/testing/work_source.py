"""The work source of a lab's workers: a local one with the lab's clock, planned crashes, and claims on demand.

Laws:
1. An idle worker claims again when `wake_workers` is called, and notes when it found nothing.
2. All messages of a worker pass through `submit`, and the messages and calls of its acts through `send_alive`: crashes happen there.
3. Nothing that a dead worker sends is carried out or gets a reply.
4. Heartbeats need no thread and no connection: the lab sends them when it moves its clock.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from tenure.clock import us
from tenure.futures import ignore_outcome
from tenure.govern.connector import Connector, ConnectorCall
from tenure.govern.governor import Governor
from tenure.kernel.act_commands import ActCommand, ActReply
from tenure.kernel.commands import Heartbeat, LeaseCommand
from tenure.kernel.lease_types import Lease, LeaseKey, LeaseReply
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.heartbeats import extend_leases
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.sdk.definitions import Registry, Tool, Workflow
from tenure.store.port import Store
from tenure.testing.lab_clock import LabClock, LabTimers
from tenure.worker import LocalWorkSource, Worker
from tenure.worker.heartbeat import HeartbeatCallback, Heartbeater
from tenure.worker.work_source import lease_key

if TYPE_CHECKING:
    from tenure.testing.crashes import CrashPlan
    from tenure.testing.lab import LabEngine
    from tenure.worker.lease_session import LeaseSession

LOOK_SECONDS = 0.05


_ACTS_FOR: ContextVar[str] = ContextVar("lab_acts_for")
"""The worker whose act is running."""
T = TypeVar("T")


class ConnectorCallPoint(msgspec.Struct, frozen=True):
    """A connector's call: a point for a crash, like a commit."""

    name: str


CrashPoint = LeaseCommand | ActCommand | ConnectorCallPoint


class _GovernorPort:
    def __init__(self, orchestrator: Orchestrator, work_source: LabWorkSource) -> None:
        self._orchestrator = orchestrator
        self._work_source = work_source

    @property
    def store(self) -> Store:
        return self._orchestrator.store

    async def send(self, command: ActCommand) -> ActReply:
        begin = partial(self._orchestrator.submit, command)
        reply: ActReply = await self._work_source.send_alive(_ACTS_FOR.get(), command, begin)
        return reply


class _CrashingConnector:
    def __init__(self, inner: Connector, work_source: LabWorkSource) -> None:
        self._inner = inner
        self._work_source = work_source

    async def call(self, call: ConnectorCall) -> Any:
        def begin() -> asyncio.Future[Any]:
            return asyncio.ensure_future(self._inner.call(call))

        return await self._work_source.send_alive(_ACTS_FOR.get(), ConnectorCallPoint(call.operation), begin)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _LabLease(msgspec.Struct):
    message: Heartbeat
    every_us: int
    due_us: int


class LabHeartbeater:
    """The heartbeater of a lab's worker; it has the methods of `Heartbeater`."""

    def __init__(self, store: Store, clock: LabClock, on_replies: HeartbeatCallback) -> None:
        self._store = store
        self._clock = clock
        self._on_replies = on_replies
        self._leases: dict[LeaseKey, _LabLease] = {}
        self._sending: set[asyncio.Task[int]] = set()
        self._stopped = False

    def start(self) -> None:
        """Nothing to start: the lab calls `send_due`."""

    def stop(self) -> None:
        self._stopped = True
        self._leases.clear()

    async def stopped(self) -> None:
        await asyncio.gather(*self._sending, return_exceptions=True)

    def track(
        self,
        message: Heartbeat,
        every_seconds: float,
        lease_seconds: float,
        stop: threading.Event | None = None,
        *,
        asked_at: float | None = None,
        ends_at: float = math.inf,
    ) -> None:
        del lease_seconds, stop, asked_at, ends_at  # in a lab no heartbeat is late
        every = us(every_seconds)
        self._leases[lease_key(message)] = _LabLease(message, every, self._clock.now_us() + every)

    def heartbeat_now(self, run_id: int) -> None:
        for key, lease in self._leases.items():
            if key[0] == run_id:
                lease.due_us = 0
        task = asyncio.get_running_loop().create_task(self.send_due())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def progress(self, key: LeaseKey, text: str) -> None:
        if (lease := self._leases.get(key)) is not None:
            lease.message = msgspec.structs.replace(lease.message, progress=text)

    def held_until(self, key: LeaseKey) -> float:
        """In a lab a lease is held while it is tracked."""
        return math.inf if key in self._leases else -math.inf

    def forget_lease(self, key: LeaseKey) -> None:
        self._leases.pop(key, None)

    def next_us(self) -> int | None:
        return min((lease.due_us for lease in self._leases.values()), default=None)

    async def send_due(self) -> int:
        now = self._clock.now_us()
        due = {key: lease for key, lease in self._leases.items() if lease.due_us <= now}
        if not due:
            return 0
        for lease in due.values():
            lease.due_us = now + lease.every_us
        replies = await self._store.transact(
            partial(extend_leases, [lease.message for lease in due.values()])
        )
        lost = [key for key in due if key not in replies and key in self._leases]
        for key in lost:
            del self._leases[key]
        if not self._stopped:
            self._on_replies(replies, lost)
        return len(due)


class LabWorkSource(LocalWorkSource):
    def __init__(self, engine: LabEngine, clock: LabClock, timers: LabTimers, crashes: CrashPlan) -> None:
        connectors = [_CrashingConnector(engine.connectors[name], self) for name in engine.connectors]
        governor = Governor(_GovernorPort(engine.orchestrator, self), engine.artifacts, connectors)
        ends = engine.runtime.waiters
        super().__init__(
            engine.url, engine.orchestrator, engine.artifacts, ends.succeeded, ends.ended, governor
        )
        self.timers = timers
        self.clock = clock
        self.crashes = crashes
        self.heartbeaters: list[LabHeartbeater] = []
        self.dead: set[str] = set()
        self.holders: dict[LeaseKey, str] = {}
        self.claimed = 0
        self.wake_ups = 0
        self.looked: dict[str, int] = {}
        """The number of the last wake-up after which a worker found nothing to claim."""
        self._wake_event = asyncio.Event()

    def wake_workers(self) -> None:
        self.wake_ups += 1
        self._wake_event.set()
        self._wake_event = asyncio.Event()

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> list[Lease]:
        """Lease up to `limit` steps. While there are none, wait to be woken up."""
        while True:
            number, event = self.wake_ups, self._wake_event
            leases = await super().claim(worker, queues, limit)
            self.claimed += len(leases)
            if leases and self.crashes.strikes(worker, "claim", None):
                leases = []
            if leases or worker in self.dead:
                return leases
            self.looked[worker] = number
            woken = asyncio.ensure_future(event.wait())
            new_work = asyncio.ensure_future(self.store.wait_for_work(LOOK_SECONDS))
            try:
                await asyncio.wait((woken, new_work), return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
                new_work.cancel()

    def submit(self, message: LeaseCommand) -> asyncio.Future[LeaseReply]:
        worker = message.context.actor.removeprefix("worker:")
        return self.send_alive(worker, message, partial(super().submit, message))

    def send_alive(
        self, worker: str, message: CrashPoint, begin: Callable[[], asyncio.Future[T]]
    ) -> asyncio.Future[T]:
        """Begin something for a worker, unless it is dead or crashes at it."""
        gone = worker in self.dead or worker in self.crashes.doomed
        if gone or self.crashes.strikes(worker, "before", message):
            return asyncio.get_running_loop().create_future()
        reply = begin()
        if self.crashes.sent(worker, message, reply):
            return asyncio.get_running_loop().create_future()
        return reply

    async def act(self, lease: Lease, request: ActRequest, held_until: Callable[[], float]) -> ActResult:
        _ACTS_FOR.set(self.holders[lease_key(lease)])  # in this act's own task
        return await super().act(lease, request, held_until)

    def make_heartbeater(self, on_replies: HeartbeatCallback) -> Heartbeater:
        made = LabHeartbeater(self.store, self.clock, on_replies)
        self.heartbeaters.append(made)
        return cast("Heartbeater", made)


class LabWorker(Worker):
    work_source: LabWorkSource

    def __init__(
        self,
        work_source: LabWorkSource,
        *definitions: Workflow[..., Any] | Tool | Registry,
        **how: Any,
    ) -> None:
        super().__init__(work_source, *definitions, **how)
        self.definitions = definitions
        self.how = {**how, "name": None}

    def kill(self) -> None:
        self.work_source.dead.add(self.name)
        for session in self._sessions.values():
            if session.work is not None:
                session.work.add_done_callback(ignore_outcome)
        super().kill()

    def _begin(self, lease: Lease) -> None:
        self.work_source.holders[lease_key(lease)] = self.name
        super()._begin(lease)

    def take(self, lease: Lease | None) -> None:
        if lease is not None and self.work_source.crashes.strikes(self.name, "claim", None):
            lease = None
        super().take(lease)

    async def wait_until_gone(self) -> None:
        """After `kill`: wait until nothing of it runs any more."""
        works = [session.work for session in self._sessions.values() if session.work is not None]
        await asyncio.gather(*self._tasks, *works, *self._loops, return_exceptions=True)

    @property
    def is_looking(self) -> bool:
        """Whether it has a free slot, so that it claims when it is woken up."""
        return not self._stopping and self.free > 0

    def running_steps(self) -> dict[LeaseSession, list[str]]:
        return {session: _steps_of(session) for session in self._sessions.values()}

    def activity(self, leave: Sequence[str]) -> str:
        """`resting` if no lease can continue until time passes; `unseen` if code awaits something that the SDK cannot see; else `working`. Steps named
        in `leave` do not count."""
        if self._killed:
            return "resting"
        found = [self._session_activity(session, leave) for session in self._sessions.values()]
        return next((word for word in ("working", "unseen") if word in found), "resting")

    @staticmethod
    def _session_activity(session: LeaseSession, leave: Sequence[str]) -> str:
        if session.execution is None:
            return "resting" if session.lease.kind != "body" and session.lease.name in leave else "working"
        return session.execution.waits.activity(sum(name in leave for name in _steps_of(session)))


def _steps_of(session: LeaseSession) -> list[str]:
    if session.execution is None:
        return [session.lease.name]
    return [step_name(key) for key in session.execution.steps.running]


def step_name(key: str) -> str:
    return key.rpartition("/")[2].partition("#")[0]
