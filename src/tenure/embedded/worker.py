"""A worker inside the program: claims steps, runs their tools, says how it went.

Laws:
1. Every lease is held by one task here, which sends its messages in order: heartbeats, then one last word.
2. Async tools are stopped by cancellation. A thread cannot be stopped: a sync tool is told (`job.canceled`), and
   keeps its slot until it returns.
3. A lease that is no longer ours (stale, or not extended within its length) is dropped without a word.
4. A tool that is not here is no failure of the step: the run is parked, uncharged, until somebody looks.
5. `stop` gives back what is unfinished, charge and all; `kill` says nothing, like a crash: leases expire.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import structlog

from tenure import ids
from tenure.embedded.plan import payload
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.decide.leases import Lease, Reply
from tenure.orchestrator.presence import Presence
from tenure.orchestrator.views import decoded

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine

log = structlog.get_logger(__name__)

CLAIM_WAIT_SECONDS = 0.25
"""How long one claim waits for work; also what a graceful stop may have to wait for."""
CLAIM_PAUSE_SECONDS = 0.2
LAST_WORD_PAUSE_SECONDS = 0.05
MESSAGE_CHARS_MAX = 4_000

Tool = Callable[["Job"], Any | Awaitable[Any]]


class ToolError(Exception):
    """A failure with a code of the tool's own; without `retryable` the profile's rules say whether to try again."""

    def __init__(self, code: str, message: str = "", retryable: bool | None = None) -> None:
        self.code = code
        self.message = message
        self.retryable = retryable
        super().__init__(f"{code}: {message}" if message else code)


class Job:
    """One try of a step, as its tool sees it."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._progress = ""
        self._told = threading.Event()
        self.run_id = ids.run_text(lease.run_id)
        self.workflow = lease.workflow
        self.step = lease.name
        self.tool = lease.tool or lease.name
        self.attempt = lease.n
        self.key = lease.idempotency_key
        """Stable over the tries of this step: pass it on to whatever can recognise a repeat."""
        self.input = decoded(lease.input)

    @property
    def canceled(self) -> bool:
        """Whether the step should stop: for code in threads, which nobody can interrupt."""
        return self._told.is_set()

    def progress(self, text: str) -> None:
        """Say how far it is; sent with the next heartbeat."""
        self._progress = text


class _Held:
    """A lease, the work under it, and where its conversation stands."""

    def __init__(self, lease: Lease, worker: str) -> None:
        self.lease = lease
        self.job = Job(lease)
        self.context = c.Context(f"worker:{worker}", "system", lease.idempotency_key)
        self.seq = 0
        self.work: asyncio.Future[Any] | None = None
        self.beat_now = asyncio.Event()
        self.cancel = False
        self.lost = False
        self.dropped = False
        self.extended_at = time.monotonic()

    def address(self) -> dict[str, Any]:
        """The next message's head."""
        self.seq += 1
        lease = self.lease
        return {
            "run_id": lease.run_id,
            "idx": lease.idx,
            "n": lease.n,
            "seq": self.seq,
            "tenant": lease.tenant,
            "context": self.context,
        }

    def stop_work(self) -> None:
        """Interrupt an async tool, tell a sync one."""
        self.job._told.set()
        if self.work is not None:
            self.work.cancel()


class Worker:
    """See the laws above. An async context manager, or `start` and `stop`."""

    def __init__(
        self,
        engine: Engine,
        tools: Mapping[str, Tool],
        *,
        slots: int = 8,
        queues: Iterable[str] = ("default",),
        name: str | None = None,
    ) -> None:
        if slots < 1:
            raise TenureError("INVALID_INPUT", f"a worker has at least one slot, not {slots}")
        self.engine = engine
        self.tools = dict(tools)
        self.slots = slots
        self.queues = tuple(queues)
        self.name = name or f"embedded-{os.getpid()}-{secrets.token_hex(3)}"
        self.claimed = self.succeeded = self.failed = self.canceled = self.released = self.lost = 0
        self._held: dict[asyncio.Task[None], _Held] = {}
        self._claiming: asyncio.Task[None] | None = None
        self._presence: Presence | None = None
        self._stopping = False
        self._dead = False

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # ----------------------------------------------------------------------------------------- life cycle

    def start(self) -> None:
        """Begin to claim."""
        self._presence = Presence(self.engine.store, self.name, self.queues, self.slots)
        self._presence.start()
        self._claiming = asyncio.get_running_loop().create_task(self._claim(), name=f"tenure-{self.name}")
        self.engine.workers.add(self)

    async def stop(self) -> None:
        """Claim nothing more, give back what is unfinished, and end. Threads are waited for."""
        self._stopping = True
        self.engine.workers.discard(self)
        if self._claiming is not None and not self._dead:
            await asyncio.gather(self._claiming, return_exceptions=True)
        for held in self._held.values():
            held.stop_work()
        await asyncio.gather(*self._held, return_exceptions=True)
        if self._presence is not None and not self._dead:
            await self._presence.stop()

    def kill(self) -> list[tuple[str, str]]:
        """Drop everything without a word, as a crash would; the (run, step) pairs it held."""
        self._dead = self._stopping = True
        self.engine.workers.discard(self)
        lost = [(held.job.run_id, held.job.step) for held in self._held.values()]
        if self._presence is not None:
            self._presence.kill()
        if self._claiming is not None:
            self._claiming.cancel()
        for task, held in self._held.items():
            held.dropped = True
            held.stop_work()
            task.cancel()
        return lost

    def hurry(self, run_id: int) -> None:
        """Heartbeat the leases of this run at once: there may be news."""
        for held in self._held.values():
            if held.lease.run_id == run_id:
                held.beat_now.set()

    @property
    def busy(self) -> list[tuple[str, str]]:
        """The (run, step) pairs it works on now."""
        return [(held.job.run_id, held.job.step) for held in self._held.values()]

    async def _claim(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            free = self.slots - len(self._held)
            if free <= 0:
                await asyncio.wait(
                    self._held, return_when=asyncio.FIRST_COMPLETED, timeout=CLAIM_WAIT_SECONDS
                )
                continue
            try:
                leases = await self.engine.orchestrator.claim(
                    self.name, queues=self.queues, limit=free, wait_seconds=CLAIM_WAIT_SECONDS
                )
            except TenureError as refused:
                log.warning("claim_failed", worker=self.name, error=refused.code, message=refused.message)
                await asyncio.sleep(CLAIM_PAUSE_SECONDS)
                continue
            for lease in leases:
                self.claimed += 1
                held = _Held(lease, self.name)
                task = loop.create_task(self._hold(held), name=f"tenure-step-{lease.name}")
                self._held[task] = held
                task.add_done_callback(self._let_go)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        self._held.pop(task, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("step_task_failed", worker=self.name, error=repr(fault))

    # ---------------------------------------------------------------------------------------- one lease

    async def _hold(self, held: _Held) -> None:
        """Work under one lease until its last word."""
        tool = self.tools.get(held.job.tool)
        if self._stopping:
            await self._say(held, c.Release(**held.address()))
            return
        if tool is None:
            why = f"step {held.job.step!r} uses the tool {held.job.tool!r}, which {self.name} does not have"
            await self._say(held, c.Park(**held.address(), why=why))
            return
        loop = asyncio.get_running_loop()
        if inspect.iscoroutinefunction(inspect.unwrap(tool)) or inspect.iscoroutinefunction(
            type(tool).__call__
        ):
            held.work = loop.create_task(_awaited(tool, held.job))
        else:
            held.work = loop.create_task(_in_thread(tool, held.job))
        held.work.add_done_callback(_looked_at)
        heart = loop.create_task(self._beat(held))
        try:
            await asyncio.wait((held.work,))
        finally:
            heart.cancel()
            if held.dropped:
                held.stop_work()
        await asyncio.gather(heart, return_exceptions=True)
        await self._conclude(held)

    async def _beat(self, held: _Held) -> None:
        """Extend the lease until cancelled; obeys a cancel, and fences itself when the store cannot be reached."""
        every = held.lease.heartbeat_seconds
        while True:
            try:
                async with asyncio.timeout(every):
                    await held.beat_now.wait()
            except TimeoutError:
                pass
            held.beat_now.clear()
            message = c.Heartbeat(**held.address(), progress=held.job._progress)
            try:
                reply = await self.engine.orchestrator.heartbeat(message)
            except TenureError as refused:
                if not refused.retryable or time.monotonic() - held.extended_at > 2 * every:
                    held.lost = True
                    held.stop_work()
                    return
                continue
            held.extended_at = time.monotonic()
            if reply.cancel:
                held.cancel = True
                held.stop_work()

    async def _conclude(self, held: _Held) -> None:
        """The last word of a lease, by how its work ended."""
        work = held.work
        assert work is not None
        if held.dropped:
            return
        if held.lost:
            self.lost += 1
            return
        if work.cancelled():
            if held.cancel:
                self.canceled += await self._say(held, c.CancelAck(**held.address()))
            else:
                self.released += await self._say(held, c.Release(**held.address()))
            return
        fault = work.exception()
        if fault is not None:
            if held.cancel:
                self.canceled += await self._say(held, c.CancelAck(**held.address()))
            else:
                await self._fail(held, fault)
            return
        try:
            last = c.Complete(**held.address(), output=payload(work.result()))
            self.succeeded += await self._say(held, last)
        except TenureError as refused:
            await self._fail(held, ToolError(refused.code, refused.message, retryable=False))

    async def _fail(self, held: _Held, fault: BaseException) -> None:
        code, message = "STEP_FAILED", f"{type(fault).__name__}: {fault}"
        retryable: bool | None = None
        if isinstance(fault, ToolError | TenureError):
            code, message, retryable = fault.code, fault.message, fault.retryable
        text = message[:MESSAGE_CHARS_MAX].encode()
        last = c.Fail(**held.address(), code=code, message=text, retryable=retryable)
        self.failed += await self._say(held, last)

    async def _say(self, held: _Held, message: c.LeaseMessage) -> bool:
        """Send a last word, again while that may help; whether it was accepted. A refusal of its content is raised."""
        while True:
            try:
                reply: Reply = await self.engine.orchestrator.send(message)
            except TenureError as refused:
                if refused.code in ("LEASE_STALE", "LEASE_NOT_FOUND", "RUN_NOT_FOUND", "RUN_TERMINAL_STATE"):
                    self.lost += 1
                    return False
                if not refused.retryable:
                    raise
                if time.monotonic() - held.extended_at > 3 * held.lease.heartbeat_seconds:
                    self.lost += 1
                    return False
                await asyncio.sleep(LAST_WORD_PAUSE_SECONDS)
                continue
            if reply.late:
                self.canceled += 1
                return False
            return True


async def _awaited(tool: Tool, job: Job) -> Any:
    result = tool(job)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(tool: Tool, job: Job) -> Any:
    """Run a plain function; a cancellation does not interrupt it, its end is waited for."""
    work = asyncio.ensure_future(asyncio.to_thread(tool, job))
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.cancelled():
                raise
        except Exception:
            break
    result = work.result()
    return await result if inspect.isawaitable(result) else result


def _looked_at(work: asyncio.Future[Any]) -> None:
    """Whether or not anybody still wants the outcome, asyncio need not complain about it."""
    if not work.cancelled():
        work.exception()
