"""Where a worker gets its work and takes its messages: a database beside it, or a server.

Law: a worker knows nothing else of the system. Whatever a station offers works the same over both.
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
from tenure.artifacts import Artifacts
from tenure.clock import HostClock
from tenure.errors import TenureError
from tenure.futures import fail
from tenure.govern.governor import Fence, Governor
from tenure.govern.undo import undo_workflow
from tenure.ids import run_text
from tenure.kernel.beside import LogLine, WorkerProcess
from tenure.kernel.commands import Heartbeat, LeaseMessage
from tenure.kernel.decide.leases import Lease, Reply
from tenure.kernel.model import Run
from tenure.logs import get_logger
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.heartbeats import LeaseKey
from tenure.orchestrator.resuming import resume_view
from tenure.processes import own_identity
from tenure.sdk.acting import Ask, Told
from tenure.sdk.definitions import Workflow
from tenure.sdk.past import Past
from tenure.store.port import Store, Waited
from tenure.worker.heart import Heart, StoreBeats
from tenure.worker.pace import HOST_PACE, Pace

log = get_logger(__name__)

_HOST = HostClock()
SESSION_BITS = 53
"""As many as every JSON parser keeps."""
LOG_PAUSE_SECONDS = 0.2
LOG_LINES_WAITING_MAX = 10_000


class Station(Protocol):
    """See the law above."""

    pace: Pace
    session: int | None
    """What leases of this process are known by, so that they are free when it is dead; None where that cannot be proven."""

    async def claim(self, worker: str, queues: Sequence[str], limit: int, wait_seconds: float) -> list[Lease]:
        """Take up to `limit` steps; wait for some when there are none. Each lease says when it was asked for."""
        ...

    async def wait_for_work(self, wait_seconds: float) -> None:
        """Wait until there may be something to claim that was not there before the last claim."""
        ...

    def say(self, message: LeaseMessage) -> asyncio.Future[Reply]:
        """Send a message of a lease; messages of one lease are carried out in the order in which they are said."""
        ...

    async def renew(self, lease: Lease) -> bool:
        """Extend a lease that may have ended; whether it is certainly ours."""
        ...

    def let_go(self, lease: Lease) -> None:
        """Nothing more is said under a lease."""
        ...

    def heart(self, heard: Any) -> Heart:
        """Something that beats for leases without needing the worker's loop."""
        ...

    async def past(self, lease: Lease) -> Past:
        """What the step of a lease has recorded before."""
        ...

    async def waited(self, lease: Lease, first: int, last: int) -> list[Waited]:
        """The waits of a lease's step from one number to another, with their answers."""
        ...

    async def act(self, lease: Lease, ask: Ask, held_until: Callable[[], float]) -> Told:
        """Have a governor do something for a lease. `held_until` says until when it is ours for certain, by `clock.boot_seconds`."""
        ...

    async def actions(self) -> Sequence[str]:
        """What its governor can do."""
        ...

    def own(self) -> Sequence[Workflow[..., Any]]:
        """Workflows of the system's own that a worker here does besides."""
        ...

    def now_us(self) -> int:
        """The store's time, as well as it is known here."""
        ...

    def new_run_id(self, tenant: str) -> int:
        """An id for a new run of this tenant."""
        ...

    def succeeded(self, run_id: int, output: bytes | None) -> None:
        """A run has succeeded with this output: for whoever waits for it in this process."""
        ...

    def ended(self, run_id: int) -> None:
        """Nothing more is done about a run here: whoever waits for it should look."""
        ...

    def log(self, lease: Lease, line: LogLine) -> None:
        """Keep a line of a run's log, some time soon."""
        ...

    async def put_aside(self, lease: Lease, body: bytes) -> bytes:
        """Put a large payload of a lease's run among the artifacts; what to store instead."""
        ...

    async def fetch(self, lease: Lease, reference: bytes) -> bytes:
        """The payload behind a reference that a lease's run has."""
        ...

    async def register(self, worker: str, queues: Sequence[str], slots: int) -> None:
        """Say that a worker is here."""
        ...

    async def leave(self, worker: str) -> None:
        """Say that a worker stops in peace."""
        ...


class LocalStation:
    """A station beside the database."""

    pace: Pace = HOST_PACE

    def __init__(
        self,
        url: str,
        orchestrator: Orchestrator,
        artifacts: Artifacts,
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
        self._here: set[str] = set()
        """The workers that are registered."""
        self._lines: list[LogLine] = []
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._writing: asyncio.Task[None] | None = None
        self._unsaid: deque[tuple[LeaseMessage, asyncio.Future[Reply]]] = deque()
        """Messages that found the queue full, with their answers to come. While there are any, later ones go behind them: a lease's
        messages that overtake each other are refused (MESSAGE_OUT_OF_ORDER)."""
        self._saying: asyncio.Task[None] | None = None

    @property
    def store(self) -> Store:
        """The database."""
        return self.orchestrator.store

    async def claim(self, worker: str, queues: Sequence[str], limit: int, wait_seconds: float) -> list[Lease]:
        """Take up to `limit` steps. Whoever is interrupted while the database is asked is given what it answers: a lease
        that nobody knows of would be a lost try."""
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
        """Extend a lease that may have ended; whether it is certainly ours."""
        try:
            reply = await self.orchestrator.heartbeat(beat_of(lease, ""))
        except TenureError as refused:
            log.warning("lease_not_renewed", run=run_text(lease.run_id), error=refused.code)
            return False
        return reply.expires_at is not None

    async def wait_for_work(self, wait_seconds: float) -> None:
        """Wait until there may be something to claim."""
        await self.orchestrator.wait_for_work(wait_seconds)

    def say(self, message: LeaseMessage) -> asyncio.Future[Reply]:
        """Send a message of a lease; one that finds the queue full waits for room, and so does every later one, in order."""
        if not self._unsaid:
            try:
                return self.orchestrator.submit(message)
            except TenureError as refused:
                if refused.code != "QUEUE_FULL":
                    raise
            self._saying = self._loop.create_task(self._say_in_order())
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._unsaid.append((message, answer))
        return answer

    async def _say_in_order(self) -> None:
        """Send what found the queue full, as it has room; each message waits for room as long as a command may."""
        while self._unsaid:
            message, answer = self._unsaid[0]
            try:
                await self.orchestrator.wait_for_room()
                said = self.orchestrator.submit(message)
            except Exception as fault:
                fail(answer, fault)
            else:
                said.add_done_callback(partial(_hand_on, answer))
            self._unsaid.popleft()

    def let_go(self, lease: Lease) -> None:
        """There is nothing to let go of."""

    def heart(self, heard: Any) -> Heart:
        """Heartbeats in a thread of their own, over a connection of their own."""
        return Heart(partial(StoreBeats, self.url), heard)

    async def past(self, lease: Lease) -> Past:
        """What the step of a lease has recorded before."""
        view = await resume_view(self.store, lease)
        return Past(view.checkpoints, view.waits, view.acts)

    async def waited(self, lease: Lease, first: int, last: int) -> list[Waited]:
        """The waits of a lease's step from one number to another, with their answers."""
        rows: list[Waited] = await self.store.read("resume_waits", lease.run_id, lease.idx, first, last)
        return rows

    async def act(self, lease: Lease, ask: Ask, held_until: Callable[[], float]) -> Told:
        """Have the governor beside the database do something."""
        return await self.governor.act(Fence.of(lease, held_until), ask)

    async def actions(self) -> Sequence[str]:
        """What the governor here can do."""
        return self.governor.actions()

    def own(self) -> Sequence[Workflow[..., Any]]:
        """Where something can be done to the world, it can be undone."""
        if not self.governor.actions():
            return ()
        return (undo_workflow(self.store, self.artifacts, self.governor.connectors),)

    async def outputs(self, lease: Lease) -> tuple[bytes | None, dict[str, bytes | None], dict[str, Any]]:
        """The run's input, its finished steps' outputs by name, and facts of the run."""
        read = self.store.read
        specs, steps, payloads, runs = await asyncio.gather(
            read("get_spec", lease.run_id),
            read("steps_of", lease.run_id),
            read("payloads_of", lease.run_id),
            read("get_run", lease.run_id),
        )
        bodies = {row.ref: row.body for row in payloads}
        run: Run = runs[0]
        facts = {
            "workflow": run.workflow,
            "version": run.code_version,
            "tenant": run.tenant,
            "repo": run.repo,
            "trigger": {"type": specs[0].trigger_type, "ref": specs[0].trigger_ref},
        }
        ended = {s.name: bodies.get(s.output_ref) for s in steps if s.state == "succeeded"}
        before = specs[0].resumed_from
        while before is not None:  # what a resumed run need not do again was done by the one it goes on from
            old_specs, old_steps, old_payloads = await asyncio.gather(
                read("get_spec", before), read("steps_of", before), read("payloads_of", before)
            )
            old = {row.ref: row.body for row in old_payloads}
            for step in old_steps:
                if step.state == "succeeded":
                    ended.setdefault(step.name, old.get(step.output_ref))
            before = old_specs[0].resumed_from if old_specs else None
        return bodies.get(specs[0].input_ref), ended, facts

    def now_us(self) -> int:
        """The store's time, as well as it is known here."""
        return self.store.estimate_us() or _HOST.now_us()

    def new_run_id(self, tenant: str) -> int:
        """An id for a new run of this tenant."""
        return self.orchestrator.new_id(tenant)

    async def put_aside(self, lease: Lease, body: bytes) -> bytes:
        """Put a large payload among the artifacts; what to store instead."""
        return await self.artifacts.put(body, run_text(lease.run_id))

    async def fetch(self, lease: Lease, reference: bytes) -> bytes:
        """The payload behind a reference."""
        del lease  # beside the database everything can be read
        return await self.artifacts.get(reference)

    def log(self, lease: Lease, line: LogLine) -> None:
        """Keep a line of a run's log: collected, and written in one go beside the runs. Code in threads says it too."""
        del lease  # the line names its run
        if threading.get_ident() == self._thread:
            self._keep(line)
        else:
            self._loop.call_soon_threadsafe(self._keep, line)

    def _keep(self, line: LogLine) -> None:
        if len(self._lines) >= LOG_LINES_WAITING_MAX:
            return  # the database cannot keep up: work goes on, lines are lost
        self._lines.append(line)
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        while self._lines:
            await asyncio.sleep(LOG_PAUSE_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write the lines that wait."""
        lines, self._lines = self._lines, []
        if lines:
            try:
                await self.store.put_log_lines(lines)
            except TenureError as refused:
                log.warning("log_lines_lost", lines=len(lines), error=refused.code)

    async def register(self, worker: str, queues: Sequence[str], slots: int) -> None:
        """Say that a worker is here."""
        await self.store.put_worker(worker, queues, slots, "", self._process(worker))
        self._here.add(worker)

    def _process(self, worker: str) -> WorkerProcess | None:
        me = own_identity()
        if self.session is None or me is None:
            return None
        return WorkerProcess(self.session, "", worker, me.boot_id, me.namespaces, me.pid, me.start_ticks)

    async def leave(self, worker: str) -> None:
        """Say that a worker stops in peace."""
        if self._writing is not None:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        await self.flush()
        self._here.discard(worker)
        with suppress(TenureError):
            await self.store.drop_worker(worker)
            if not self._here and self.session is not None:
                await self.store.drop_worker_process(self.session)


def beat_of(lease: Lease, progress: str) -> Heartbeat:
    """A heartbeat without a number: it only extends."""
    return Heartbeat(
        run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=0, tenant=lease.tenant, progress=progress
    )


def key_of(lease: Lease) -> LeaseKey:
    """What a lease is known by."""
    return lease.run_id, lease.idx, lease.n


def _hand_on(answer: asyncio.Future[Reply], said: asyncio.Future[Reply]) -> None:
    """Give the answer to a message to whoever waits for it."""
    if said.cancelled():
        answer.cancel()
    elif (fault := said.exception()) is not None:
        fail(answer, fault)
    elif not answer.done():
        answer.set_result(said.result())
