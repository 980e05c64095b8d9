"""Where a worker gets its leases and sends its messages: a database (`LocalWorkSource`) or a server (`RemoteWorkSource`).

Laws:
1. A worker reaches the rest of the system only through its work source, and both kinds behave alike.
2. Whatever a worker waits for in memory (a short sleep, a backoff, the timeout of a step) uses the work source's `timers`.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any

from tenure import clock
from tenure.artifacts import ArtifactStore
from tenure.clock import HostClock
from tenure.errors import TenureError
from tenure.futures import fail_future
from tenure.govern.governor import ActLease, Governor
from tenure.govern.undo import undo_workflow
from tenure.ids import run_text
from tenure.kernel.commands import Heartbeat, LeaseCommand
from tenure.kernel.lease_types import Lease, LeaseKey, LeaseReply
from tenure.kernel.registry_rows import LogLineRow, WorkerProcessRow
from tenure.logs import get_logger
from tenure.orchestrator import Orchestrator
from tenure.processes import own_identity
from tenure.reads.resume_state import read_resume_state
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.sdk.definitions import Workflow
from tenure.sdk.lease_port import Timers
from tenure.sdk.replay_log import ReplayLog
from tenure.store.log_lines import append_log_lines
from tenure.store.port import Store
from tenure.store.replay import ReplayWait
from tenure.store.workers import delete_worker, delete_worker_process, register_worker
from tenure.worker.heartbeat import HeartbeatCallback, Heartbeater, StoreHeartbeatChannel

log = get_logger(__name__)

HOST_CLOCK = HostClock()
SESSION_BITS = 53
"""As many bits as every JSON parser keeps exactly."""
LOG_PAUSE_SECONDS = 0.2
LOG_LINES_WAITING_MAX = 10_000


class HostTimers:
    quiet_seconds = 1.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        return asyncio.timeout(seconds)


class WorkSource(ABC):
    timers: Timers = HostTimers()

    def __init__(self, succeeded: Callable[[int, bytes | None], None], ended: Callable[[int], None]) -> None:
        self.succeeded = succeeded
        """Called with a run that has succeeded and its output, for waiters in this process."""
        self.ended = ended
        """Called with any other run that this worker is done with, for waiters in this process."""
        self.session = secrets.randbits(SESSION_BITS) if own_identity() is not None else None
        """Identifies this process in its leases, so that they end when it is proven dead. None if that cannot be proven on this host."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lines_waiting = 0
        self._flushing: asyncio.Task[None] | None = None

    @abstractmethod
    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> list[Lease]:
        """Lease up to `limit` steps. `Lease.asked_at` is set."""

    @abstractmethod
    async def wait_for_work(self, wait_seconds: float) -> None:
        """Wait until there may be something new to claim."""

    @abstractmethod
    def submit(self, message: LeaseCommand) -> asyncio.Future[LeaseReply]:
        """Send a message of a lease. Messages of one lease are carried out in the order in which they are sent."""

    @abstractmethod
    async def renew(self, lease: Lease) -> bool:
        """Extend a lease that may have expired. Returns whether it is certainly ours."""

    @abstractmethod
    def forget_lease(self, lease: Lease) -> None: ...

    @abstractmethod
    def make_heartbeater(self, on_replies: HeartbeatCallback) -> Heartbeater:
        """A heartbeater that does not need the worker's loop."""

    @abstractmethod
    async def load_replay_log(self, lease: Lease) -> ReplayLog:
        """What the lease's step recorded before."""

    @abstractmethod
    async def load_waits(self, lease: Lease, first: int, last: int) -> list[ReplayWait]:
        """The waits of the lease's step with numbers from `first` to `last`."""

    @abstractmethod
    async def act(self, lease: Lease, request: ActRequest, held_until: Callable[[], float]) -> ActResult:
        """Have a governor act. `held_until` returns until when the lease is certainly ours, by `clock.boot_seconds`."""

    @abstractmethod
    async def actions(self) -> Sequence[str]:
        """The actions that the governor can do."""

    def system_workflows(self) -> Sequence[Workflow[..., Any]]:
        """Tenure's own workflows that a worker of this source serves too."""
        return ()

    @abstractmethod
    def now_us(self) -> int:
        """The store's time, as far as it is known here."""

    @abstractmethod
    def new_run_id(self, tenant: str) -> int: ...

    @abstractmethod
    async def store_artifact(self, lease: Lease, body: bytes) -> bytes:
        """Store a large payload as an artifact of the lease's run, and return the reference to record."""

    @abstractmethod
    async def load_artifact(self, lease: Lease, reference: bytes) -> bytes: ...

    @abstractmethod
    async def register(self, worker: str, queues: Sequence[str], slots: int) -> None:
        """Announce a worker. Repeated every few seconds."""

    @abstractmethod
    async def leave(self, worker: str) -> None:
        """Send buffered log lines, and withdraw a worker that stops."""

    # ------------------------------------------------------- log lines, which are collected and sent together

    def log(self, lease: Lease, line: LogLineRow) -> None:
        """Add a line to a run's log a moment later. May be called from any thread."""
        if threading.get_ident() == self._thread:
            self._add_line(lease, line)
        else:
            self._loop.call_soon_threadsafe(self._add_line, lease, line)

    def _add_line(self, lease: Lease, line: LogLineRow) -> None:
        if self._lines_waiting >= LOG_LINES_WAITING_MAX:
            return  # the database or the server cannot keep up: lines are dropped, and work continues
        self._lines_waiting += 1
        self._buffer_line(lease, line)
        if self._flushing is None or self._flushing.done():
            self._flushing = self._loop.create_task(self._flush_soon())

    @abstractmethod
    def _buffer_line(self, lease: Lease, line: LogLineRow) -> None: ...

    @abstractmethod
    async def flush(self) -> None:
        """Send all buffered lines, and subtract them from `_lines_waiting`."""

    async def _flush_soon(self) -> None:
        while self._lines_waiting:
            await asyncio.sleep(LOG_PAUSE_SECONDS)
            await self.flush()

    async def _flush_last_lines(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            with suppress(asyncio.CancelledError):
                await self._flushing
        await self.flush()


class LocalWorkSource(WorkSource):
    def __init__(
        self,
        url: str,
        orchestrator: Orchestrator,
        artifacts: ArtifactStore,
        succeeded: Callable[[int, bytes | None], None],
        ended: Callable[[int], None],
        governor: Governor,
    ) -> None:
        super().__init__(succeeded, ended)
        self.url = url
        self.governor = governor
        self.orchestrator = orchestrator
        self.artifacts = artifacts
        self._registered: set[str] = set()
        self._lines: list[LogLineRow] = []
        self._unsent: deque[tuple[LeaseCommand, asyncio.Future[LeaseReply]]] = deque()
        """Messages that found the queue full, with their replies to come. Later messages queue behind them, because messages of a lease
        that overtake each other are refused (MESSAGE_OUT_OF_ORDER)."""
        self._resending: asyncio.Task[None] | None = None

    @property
    def store(self) -> Store:
        return self.orchestrator.store

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> list[Lease]:
        """Lease up to `limit` steps. A caller that is canceled meanwhile still gets the leases: a lease without a holder would cost an
        attempt."""
        claiming = asyncio.ensure_future(self._claim(worker, queues, limit))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            return await claiming

    async def _claim(self, worker: str, queues: Sequence[str], limit: int) -> list[Lease]:
        asked_at = clock.boot_seconds()
        leases = await self.orchestrator.claim(worker, queues=queues, limit=limit, session=self.session)
        for lease in leases:
            lease.asked_at = asked_at
        return leases

    async def renew(self, lease: Lease) -> bool:
        try:
            reply = await self.orchestrator.heartbeat(heartbeat_for(lease))
        except TenureError as refused:
            log.warning("lease_not_renewed", run=run_text(lease.run_id), error=refused.code)
            return False
        return reply.expires_at is not None

    async def wait_for_work(self, wait_seconds: float) -> None:
        await self.orchestrator.wait_for_work(wait_seconds)

    def submit(self, message: LeaseCommand) -> asyncio.Future[LeaseReply]:
        """Send a message. If the queue is full, this message and all later ones wait for room, in order."""
        if not self._unsent:
            try:
                return self.orchestrator.submit(message)
            except TenureError as refused:
                if refused.code != "QUEUE_FULL":
                    raise
            self._resending = self._loop.create_task(self._resend())
        reply: asyncio.Future[LeaseReply] = self._loop.create_future()
        self._unsent.append((message, reply))
        return reply

    async def _resend(self) -> None:
        """Send the messages that found the queue full. Each waits for room as long as a command may."""
        while self._unsent:
            message, reply = self._unsent[0]
            try:
                await self.orchestrator.wait_for_room()
                sent = self.orchestrator.submit(message)
            except Exception as fault:
                fail_future(reply, fault)
            else:
                sent.add_done_callback(partial(_copy_outcome, reply))
            self._unsent.popleft()

    def forget_lease(self, lease: Lease) -> None:
        """Nothing to forget: a local lease has no token."""

    def make_heartbeater(self, on_replies: HeartbeatCallback) -> Heartbeater:
        return Heartbeater(partial(StoreHeartbeatChannel, self.url), on_replies)

    async def load_replay_log(self, lease: Lease) -> ReplayLog:
        view = await read_resume_state(self.store, lease)
        return ReplayLog(view.checkpoints, view.waits, view.acts)

    async def load_waits(self, lease: Lease, first: int, last: int) -> list[ReplayWait]:
        rows: list[ReplayWait] = await self.store.read("resume_waits", lease.run_id, lease.idx, first, last)
        return rows

    async def act(self, lease: Lease, request: ActRequest, held_until: Callable[[], float]) -> ActResult:
        return await self.governor.act(ActLease.of(lease, held_until), request)

    async def actions(self) -> Sequence[str]:
        return self.governor.actions()

    def system_workflows(self) -> Sequence[Workflow[..., Any]]:
        """`undo`, if there are actions that it could undo."""
        if not self.governor.actions():
            return ()
        return (undo_workflow(self.store, self.artifacts, self.governor.connectors),)

    def now_us(self) -> int:
        return self.store.estimate_us() or HOST_CLOCK.now_us()

    def new_run_id(self, tenant: str) -> int:
        return self.orchestrator.new_id(tenant)

    async def store_artifact(self, lease: Lease, body: bytes) -> bytes:
        return await self.artifacts.put(body, run_text(lease.run_id))

    async def load_artifact(self, lease: Lease, reference: bytes) -> bytes:
        del lease  # with the database at hand every artifact can be read
        return await self.artifacts.get(reference)

    def _buffer_line(self, lease: Lease, line: LogLineRow) -> None:
        del lease  # the line names its run
        self._lines.append(line)

    async def flush(self) -> None:
        lines, self._lines = self._lines, []
        self._lines_waiting = 0
        if lines:
            try:
                await append_log_lines(self.store, lines)
            except TenureError as refused:
                log.warning("log_lines_lost", lines=len(lines), error=refused.code)

    async def register(self, worker: str, queues: Sequence[str], slots: int) -> None:
        own, process = own_identity(), None
        if own is not None and self.session is not None:
            process = WorkerProcessRow(
                self.session, "", worker, own.boot_id, own.namespaces, own.pid, own.start_ticks
            )
        await register_worker(self.store, worker, queues, slots, "", process)
        self._registered.add(worker)

    async def leave(self, worker: str) -> None:
        await self._flush_last_lines()
        self._registered.discard(worker)
        with suppress(TenureError):
            await delete_worker(self.store, worker)
            if not self._registered and self.session is not None:
                await delete_worker_process(self.store, self.session)


def heartbeat_for(lease: Lease) -> Heartbeat:
    """A heartbeat without a sequence number: it only extends the lease."""
    return Heartbeat(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=0, tenant=lease.tenant)


def lease_key(lease: Lease | LeaseCommand) -> LeaseKey:
    return lease.run_id, lease.idx, lease.n


def _copy_outcome(reply: asyncio.Future[LeaseReply], sent: asyncio.Future[LeaseReply]) -> None:
    if sent.cancelled():
        reply.cancel()
    elif (fault := sent.exception()) is not None:
        fail_future(reply, fault)
    elif not reply.done():
        reply.set_result(sent.result())
