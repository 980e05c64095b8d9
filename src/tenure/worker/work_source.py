"""Where a worker gets its leases and sends its messages: a database (`LocalWorkSource`) or a server (`RemoteWorkSource`).

Law: a worker reaches the rest of the system only through its work source, and both kinds behave alike.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

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
from tenure.sdk.replay_log import ReplayLog
from tenure.store.log_lines import append_log_lines
from tenure.store.port import Store
from tenure.store.replay import ReplayWait
from tenure.store.workers import delete_worker, delete_worker_process, register_worker
from tenure.worker.heartbeat import HeartbeatCallback, Heartbeater, StoreHeartbeatChannel
from tenure.worker.timers import HOST_TIMERS, Timers

log = get_logger(__name__)

_HOST = HostClock()
SESSION_BITS = 53
"""As many as every JSON parser keeps exactly."""
LOG_PAUSE_SECONDS = 0.2
LOG_LINES_WAITING_MAX = 10_000


class WorkSource(Protocol):
    timers: Timers
    session: int | None
    """Names this process in its leases, so that they end when it is proven dead. None where that cannot be proven."""

    async def claim(self, worker: str, queues: Sequence[str], limit: int, wait_seconds: float) -> list[Lease]:
        """Lease up to `limit` steps; wait if there are none. `Lease.asked_at` is set."""

    async def wait_for_work(self, wait_seconds: float) -> None:
        """Wait until there may be something new to claim."""

    def submit(self, message: LeaseCommand) -> asyncio.Future[LeaseReply]:
        """Send a message of a lease. Messages of one lease are carried out in the order in which they are sent."""

    async def renew(self, lease: Lease) -> bool:
        """Extend a lease that may have expired; whether it is certainly ours."""

    def forget_lease(self, lease: Lease) -> None: ...

    def make_heartbeater(self, on_replies: HeartbeatCallback) -> Heartbeater:
        """A heartbeater that does not need the worker's loop."""

    async def load_replay_log(self, lease: Lease) -> ReplayLog:
        """What the lease's step recorded before."""

    async def load_waits(self, lease: Lease, first: int, last: int) -> list[ReplayWait]:
        """The waits of the lease's step with numbers from `first` to `last`."""

    async def act(self, lease: Lease, request: ActRequest, held_until: Callable[[], float]) -> ActResult:
        """Have a governor act. `held_until` returns until when the lease is certainly ours, by `clock.boot_seconds`."""

    async def actions(self) -> Sequence[str]:
        """The actions that its governor can do."""

    def system_workflows(self) -> Sequence[Workflow[..., Any]]:
        """Tenure's own workflows that a worker of this source serves too."""

    def now_us(self) -> int:
        """The store's time, as far as it is known here."""

    def new_run_id(self, tenant: str) -> int: ...

    def succeeded(self, run_id: int, output: bytes | None) -> None:
        """A run has succeeded: its waiters in this process get the output."""

    def ended(self, run_id: int) -> None:
        """This worker is done with a run: its waiters in this process read its state."""

    def log(self, lease: Lease, line: LogLineRow) -> None:
        """Add a line to a run's log soon. May be called from any thread."""

    async def store_artifact(self, lease: Lease, body: bytes) -> bytes:
        """Store a large payload as an artifact of the lease's run, and return the reference to record."""

    async def load_artifact(self, lease: Lease, reference: bytes) -> bytes: ...

    async def register(self, worker: str, queues: Sequence[str], slots: int) -> None:
        """Announce a worker; again now and then."""

    async def leave(self, worker: str) -> None:
        """Send what is left, and withdraw a worker that stops."""


class LocalWorkSource:
    """The work source of a worker with its own access to the database."""

    timers: Timers = HOST_TIMERS

    def __init__(
        self,
        url: str,
        orchestrator: Orchestrator,
        artifacts: ArtifactStore,
        succeeded: Callable[[int, bytes | None], None],
        ended: Callable[[int], None],
        governor: Governor,
    ) -> None:
        self.url = url
        self.governor = governor
        self.orchestrator = orchestrator
        self.artifacts = artifacts
        self.succeeded = succeeded
        self.ended = ended
        self.session = secrets.randbits(SESSION_BITS) if own_identity() is not None else None
        self._registered: set[str] = set()
        self._lines: list[LogLineRow] = []
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._writing: asyncio.Task[None] | None = None
        self._unsent: deque[tuple[LeaseCommand, asyncio.Future[LeaseReply]]] = deque()
        """Messages that found the queue full, with their replies to come. Later messages queue behind them, because messages of a lease
        that overtake each other are refused (MESSAGE_OUT_OF_ORDER)."""
        self._resending: asyncio.Task[None] | None = None

    @property
    def store(self) -> Store:
        return self.orchestrator.store

    async def claim(self, worker: str, queues: Sequence[str], limit: int, wait_seconds: float) -> list[Lease]:
        """Lease up to `limit` steps. A caller that is canceled meanwhile still gets the leases: one that nobody knows of would cost an
        attempt."""
        claiming = asyncio.ensure_future(self._claim(worker, queues, limit))
        try:
            leases = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            return await claiming
        if not leases and wait_seconds > 0:
            await self.wait_for_work(wait_seconds)
        return leases

    async def _claim(self, worker: str, queues: Sequence[str], limit: int) -> list[Lease]:
        asked_at = clock.boot_seconds()
        leases = await self.orchestrator.claim(worker, queues=queues, limit=limit, session=self.session)
        for lease in leases:
            lease.asked_at = asked_at
        return leases

    async def renew(self, lease: Lease) -> bool:
        try:
            reply = await self.orchestrator.heartbeat(heartbeat_for(lease, ""))
        except TenureError as refused:
            log.warning("lease_not_renewed", run=run_text(lease.run_id), error=refused.code)
            return False
        return reply.expires_at is not None

    async def wait_for_work(self, wait_seconds: float) -> None:
        await self.orchestrator.wait_for_work(wait_seconds)

    def submit(self, message: LeaseCommand) -> asyncio.Future[LeaseReply]:
        """Send a message. If the queue is full, it waits for room, and so does every later one, in order."""
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
        """Send what found the queue full. Each message waits for room as long as a command may."""
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
        """Nothing is kept of a lease."""

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
        return self.store.estimate_us() or _HOST.now_us()

    def new_run_id(self, tenant: str) -> int:
        return self.orchestrator.new_id(tenant)

    async def store_artifact(self, lease: Lease, body: bytes) -> bytes:
        return await self.artifacts.put(body, run_text(lease.run_id))

    async def load_artifact(self, lease: Lease, reference: bytes) -> bytes:
        del lease  # with the database at hand every artifact can be read
        return await self.artifacts.get(reference)

    def log(self, lease: Lease, line: LogLineRow) -> None:
        """Lines are collected and written together."""
        del lease  # the line names its run
        if threading.get_ident() == self._thread:
            self._add_line(line)
        else:
            self._loop.call_soon_threadsafe(self._add_line, line)

    def _add_line(self, line: LogLineRow) -> None:
        if len(self._lines) >= LOG_LINES_WAITING_MAX:
            return  # the database cannot keep up: lines are dropped, and work goes on
        self._lines.append(line)
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        while self._lines:
            await asyncio.sleep(LOG_PAUSE_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            try:
                await append_log_lines(self.store, lines)
            except TenureError as refused:
                log.warning("log_lines_lost", lines=len(lines), error=refused.code)

    async def register(self, worker: str, queues: Sequence[str], slots: int) -> None:
        await register_worker(self.store, worker, queues, slots, "", self._process(worker))
        self._registered.add(worker)

    def _process(self, worker: str) -> WorkerProcessRow | None:
        own = own_identity()
        if self.session is None or own is None:
            return None
        return WorkerProcessRow(
            self.session, "", worker, own.boot_id, own.namespaces, own.pid, own.start_ticks
        )

    async def leave(self, worker: str) -> None:
        if self._writing is not None:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        await self.flush()
        self._registered.discard(worker)
        with suppress(TenureError):
            await delete_worker(self.store, worker)
            if not self._registered and self.session is not None:
                await delete_worker_process(self.store, self.session)


def heartbeat_for(lease: Lease, progress: str) -> Heartbeat:
    """A heartbeat without a sequence number: it only extends the lease."""
    return Heartbeat(
        run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=0, tenant=lease.tenant, progress=progress
    )


def lease_key(lease: Lease) -> LeaseKey:
    return lease.run_id, lease.idx, lease.n


def _copy_outcome(reply: asyncio.Future[LeaseReply], sent: asyncio.Future[LeaseReply]) -> None:
    if sent.cancelled():
        reply.cancel()
    elif (fault := sent.exception()) is not None:
        fail_future(reply, fault)
    elif not reply.done():
        reply.set_result(sent.result())
