"""A lease in a worker's hands: its conversation with the station, and what its code needs from outside.

Laws:
1. One sequence for everything said under a lease, in the order in which it is said.
2. Work that does not let itself be stopped keeps the lease's slot until it ends; what it comes to is dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import clock, ids
from tenure.errors import TenureError
from tenure.futures import take_outcome
from tenure.kernel import commands as c
from tenure.kernel.beside import LogLine
from tenure.kernel.costs import Cost, added_up
from tenure.kernel.decide.leases import Lease, Reply
from tenure.sdk.faults import HandedOver, LeaseLost, NotBegun
from tenure.store.port import Waited
from tenure.worker.isolated import run_isolated

if TYPE_CHECKING:
    from tenure.sdk.acting import Ask, Told
    from tenure.sdk.body import Body
    from tenure.sdk.definitions import Step
    from tenure.worker.heart import Heart
    from tenure.worker.station import Station
    from tenure.worker.threads import Threads

LOG_TEXT_CHARS_MAX = 4_000


class Held:
    """See the laws above. It is the `Line` of the workflow under its lease."""

    __slots__ = (
        "_abandoned",
        "_context",
        "_heart",
        "_progress",
        "_seq",
        "_station",
        "_threads",
        "body",
        "cancel",
        "cost",
        "costs",
        "drained",
        "draining",
        "last",
        "lease",
        "lost",
        "output",
        "over",
        "run_id",
        "stop",
        "succeeded",
        "work",
    )

    def __init__(
        self,
        lease: Lease,
        worker: str,
        station: Station,
        heart: Heart,
        threads: Threads,
        abandoned: Callable[[asyncio.Future[Any]], None],
    ) -> None:
        self.lease = lease
        self.run_id = ids.run_text(lease.run_id)
        self._station = station
        self._heart = heart
        self._threads = threads
        self._abandoned = abandoned
        self._context = c.Context(f"worker:{worker}", "system", lease.idempotency_key)
        self._seq = 0
        self.stop = threading.Event()
        self.work: asyncio.Task[Any] | None = None
        self.over: asyncio.Future[None] | None = None
        """Done when its work has ended, or was told to stop and has not for too long."""
        self.cancel = False
        """Whether its cancellation was requested."""
        self.lost = False
        """Whether it is no longer ours."""
        self.draining = False
        """Whether the worker ends: nothing new begins under it."""
        self.drained = asyncio.Event()
        """Set with `draining`, for what only lets time pass."""
        self.last: c.RecordCheckpoint | None = None
        self.succeeded = False
        self.output: bytes | None = None
        """What a run came to that ended with it."""
        self._progress = ""
        self.costs: list[Cost] = []
        """What was spent and not told of yet."""
        self.cost: str | None = None
        """What a tool's try has cost in all, to be shown with it."""
        self.body: Body | None = None
        """The workflow that runs under it now."""

    @property
    def progress(self) -> str:
        """How far its code says it is; told with the next heartbeat."""
        return self._progress

    @progress.setter
    def progress(self, text: str) -> None:
        self._progress = text
        lease = self.lease
        self._heart.progress((lease.run_id, lease.idx, lease.n), text)

    def drain(self) -> None:
        """The worker ends: what is at work may end, and nothing new begins."""
        self.draining = True
        self.drained.set()
        if self.body is not None:
            self.body.drain()

    @property
    def until(self) -> float:
        """Until when the lease is ours for certain, by `clock.boot_seconds`."""
        lease = self.lease
        return self._heart.held_until((lease.run_id, lease.idx, lease.n))

    @property
    def steps(self) -> list[str]:
        """What is at work under it now."""
        return [self.lease.name] if self.body is None else list(self.body.at_work)

    def check_begin(self) -> None:
        """Look whether code may begin under the lease now; see `sdk.line.Line`."""
        if self.draining:
            raise NotBegun
        if clock.boot_seconds() >= self.until:
            raise LeaseLost("the lease may have ended meanwhile")

    def head(self) -> dict[str, Any]:
        """The address of the next message."""
        self._seq += 1
        lease = self.lease
        return {
            "run_id": lease.run_id,
            "idx": lease.idx,
            "n": lease.n,
            "seq": self._seq,
            "tenant": lease.tenant,
            "context": self._context,
        }

    def spend(self, cost: Cost) -> None:
        """Tell of a cost with the next message; from whichever thread."""
        self.costs.append(cost)

    def told(self) -> tuple[Cost, ...]:
        """What the next message has to tell of costs. (Threads may add to them meanwhile.)"""
        told = self.costs[:]
        del self.costs[: len(told)]
        return tuple(added_up(told))

    # ---------------------------------------------------------------------------------- conversation

    def say(self, message: c.LeaseMessage) -> asyncio.Future[Reply]:
        """Send a message."""
        return self._station.say(message)

    def record(self, checkpoint: c.RecordCheckpoint) -> asyncio.Future[Reply]:
        """Record a checkpoint; the answer is there when it is durable."""
        return self._station.say(checkpoint)

    def open_wait(self, label: str, **what: Any) -> asyncio.Future[Reply]:
        """Open a wait, or find it opened; the answer is there when it is durable."""
        return self._station.say(c.OpenWait(**self.head(), label=label, **what))

    async def suspend(self, waits: tuple[int, ...]) -> Reply:
        """Let go of the lease until one of these settles."""
        return await self._station.say(c.Suspend(**self.head(), waits=waits))

    async def waited(self, first: int, last: int) -> list[Waited]:
        """The waits of this step from one number to another, with their answers."""
        return await self._station.waited(self.lease, first, last)

    async def act(self, ask: Ask) -> Told:
        """Have a governor do something. What was begun is held until it has ended, unless the lease is somebody else's."""
        if clock.boot_seconds() >= self.until:
            raise TenureError("LEASE_STALE", "the lease may have ended meanwhile: nothing is begun under it")
        doing = asyncio.ensure_future(self._station.act(self.lease, ask, lambda: self.until))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            if self.lost:
                doing.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait((doing,))
            take_outcome(doing)
            raise

    # --------------------------------------------------------------------------------------- outside

    def now_us(self) -> int:
        """The store's time, as well as it is known here."""
        return self._station.now_us()

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await self._station.pace.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Let time pass with nothing at work: HandedOver where the worker ends meanwhile."""
        passing = asyncio.ensure_future(self.sleep(seconds))
        draining = asyncio.ensure_future(self.drained.wait())
        try:
            await asyncio.wait((passing, draining), return_when=asyncio.FIRST_COMPLETED)
        finally:
            passing.cancel()
            draining.cancel()
        if self.draining:
            raise HandedOver("the worker ends")

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """TimeoutError for what takes longer."""
        return self._station.pace.timeout(seconds)

    @property
    def quiet_seconds(self) -> float:
        """How long a strand may do something we cannot see."""
        return self._station.pace.quiet_seconds

    def hurry(self) -> None:
        """There is news of this run: the next heartbeat brings it."""
        self._heart.hurry(self.lease.run_id)

    def new_run_id(self) -> int:
        """An id for a child."""
        return self._station.new_run_id(self.lease.tenant)

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run plain code where it blocks nobody; it sees the same context."""
        context = contextvars.copy_context()
        job = self._threads.submit(partial(context.run, function))
        work = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not job.cancel():  # it has begun
                self.abandon(work)
            raise

    async def in_process(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a step's function in a process of its own; cancelling this kills it."""
        return await run_isolated(step, args, kwargs, self._begin_by)

    def _begin_by(self) -> float:
        """For a process that is about to begin: by when it must."""
        self.check_begin()
        return self.until

    def is_over(self, _work: asyncio.Future[Any] | None = None) -> None:
        """Nobody waits for its work any more."""
        if self.over is not None and not self.over.done():
            self.over.set_result(None)

    def abandon(self, work: asyncio.Future[Any]) -> None:
        """Work that does not let itself be stopped; see law 2."""
        work.add_done_callback(take_outcome)
        if not work.done():
            self._abandoned(work)

    def log(self, step: str, level: str, text: str, fields: dict[str, Any]) -> None:
        """Keep a line beside the run's history."""
        try:
            encoded = msgspec.json.encode(fields, enc_hook=repr).decode() if fields else "{}"
        except (TypeError, ValueError, RecursionError):
            encoded = "{}"
        self._station.log(
            self.lease,
            LogLine(
                self.lease.run_id,
                at=self.now_us(),
                step=step or self.lease.name,
                level=level,
                text=text[:LOG_TEXT_CHARS_MAX],
                fields=encoded,
            ),
        )

    async def put_aside(self, body: bytes) -> bytes:
        """Put a large payload among the artifacts; what to store instead."""
        return await self._station.put_aside(self.lease, body)

    async def fetch(self, body: bytes | None) -> bytes | None:
        """A stored payload as it was."""
        return None if body is None else await self._station.fetch(self.lease, body)
