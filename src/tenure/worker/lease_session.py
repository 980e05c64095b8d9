"""The session of a worker under one lease: its messages, and the `LeasePort` of the code that runs under it.

Laws:
1. All messages of a lease are numbered in the order in which they are sent.
2. Work that does not stop keeps the lease's slot until it ends, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import clock, ids
from tenure.errors import TenureError
from tenure.futures import ignore_outcome
from tenure.kernel import commands as c
from tenure.kernel.costs import Cost, sum_costs
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.registry_rows import LogLineRow
from tenure.sdk.exits import HandedOver, LeaseLost, NotBegun
from tenure.store.replay import ReplayWait
from tenure.worker.isolation import run_isolated

if TYPE_CHECKING:
    from tenure.sdk.act_request import ActRequest, ActResult
    from tenure.sdk.definitions import StepFunction
    from tenure.sdk.execution import WorkflowExecution
    from tenure.worker.heartbeat import Heartbeater
    from tenure.worker.threads import ThreadPool
    from tenure.worker.work_source import WorkSource

LOG_TEXT_CHARS_MAX = 4_000


class LeaseSession:
    __slots__ = (
        "_abandoned",
        "_context",
        "_heartbeater",
        "_seq",
        "_threads",
        "_work_source",
        "cancel",
        "cost",
        "costs",
        "drained",
        "draining",
        "execution",
        "last_checkpoint",
        "lease",
        "lost",
        "output",
        "plan",
        "run_id",
        "stop",
        "succeeded",
        "timers",
        "work",
        "work_over",
    )

    def __init__(
        self,
        lease: Lease,
        worker: str,
        work_source: WorkSource,
        heartbeater: Heartbeater,
        threads: ThreadPool,
        abandoned: Callable[[asyncio.Future[Any]], None],
    ) -> None:
        self.lease = lease
        self.run_id = ids.run_text(lease.run_id)
        self.timers = work_source.timers
        self._work_source = work_source
        self._heartbeater = heartbeater
        self._threads = threads
        self._abandoned = abandoned
        self._context = c.Context(f"worker:{worker}", "system", lease.idempotency_key)
        self._seq = 0
        self.stop = threading.Event()
        self.work: asyncio.Task[Any] | None = None
        self.work_over: asyncio.Future[None] | None = None
        """Done when the work has ended, or was canceled and has not stopped in time."""
        self.cancel = False
        """Whether cancellation was requested."""
        self.lost = False
        self.draining = False
        self.drained = asyncio.Event()
        """Set with `draining`, to wake code that sleeps."""
        self.last_checkpoint: c.RecordCheckpoint | None = None
        self.succeeded = False
        self.output: bytes | None = None
        self.costs: list[Cost] = []
        self.plan: tuple[c.StepSpec, ...] | None = None
        """For a plan step: the plan that its tool has made."""
        self.cost: str | None = None
        """What a tool's attempt has cost in all, as a text for people."""
        self.execution: WorkflowExecution | None = None

    def report_progress(self, text: str) -> None:
        lease = self.lease
        self._heartbeater.progress((lease.run_id, lease.idx, lease.n), text)

    def drain(self) -> None:
        """Begin nothing new, because the worker is stopping. Running steps may finish."""
        self.draining = True
        self.drained.set()
        if self.execution is not None:
            self.execution.waits.reconsider()

    @property
    def held_until(self) -> float:
        """Until when the lease is certainly ours, by `clock.boot_seconds`."""
        lease = self.lease
        return self._heartbeater.held_until((lease.run_id, lease.idx, lease.n))

    @property
    def running_steps(self) -> list[str]:
        return [self.lease.name] if self.execution is None else list(self.execution.steps.running)

    def check_begin(self) -> None:
        if self.draining:
            raise NotBegun
        if clock.boot_seconds() >= self.held_until:
            raise LeaseLost("the lease may have expired")

    def next_address(self) -> dict[str, Any]:
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
        self.costs.append(cost)

    def take_costs(self) -> tuple[Cost, ...]:
        costs = self.costs[:]
        del self.costs[: len(costs)]  # threads may add more meanwhile
        return tuple(sum_costs(costs))

    # ---------------------------------------------------------------------------------- messages

    def record(self, checkpoint: c.RecordCheckpoint) -> asyncio.Future[LeaseReply]:
        return self._work_source.submit(checkpoint)

    def open_wait(self, label: str, **what: Any) -> asyncio.Future[LeaseReply]:
        return self._work_source.submit(c.OpenWait(**self.next_address(), label=label, **what))

    async def suspend(self, waits: tuple[int, ...]) -> LeaseReply:
        return await self._work_source.submit(c.Suspend(**self.next_address(), waits=waits))

    async def load_waits(self, first: int, last: int) -> list[ReplayWait]:
        return await self._work_source.load_waits(self.lease, first, last)

    async def act(self, request: ActRequest) -> ActResult:
        """As in `LeasePort`. If the lease is lost, a canceled caller does not wait."""
        if clock.boot_seconds() >= self.held_until:
            raise TenureError("LEASE_STALE", "the lease may have expired: the act was not begun")
        acting = asyncio.ensure_future(self._work_source.act(self.lease, request, lambda: self.held_until))
        try:
            return await asyncio.shield(acting)
        except asyncio.CancelledError:
            if self.lost:
                acting.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait((acting,))
            ignore_outcome(acting)
            raise

    # ---------------------------------------------------------------------- what the code under the lease needs

    def now_us(self) -> int:
        return self._work_source.now_us()

    async def pause(self, seconds: float) -> None:
        """Sleep while nothing runs. Raises HandedOver if the worker stops meanwhile."""
        sleeping = asyncio.ensure_future(self.timers.sleep(seconds))
        draining = asyncio.ensure_future(self.drained.wait())
        try:
            await asyncio.wait((sleeping, draining), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            draining.cancel()
        if self.draining:
            raise HandedOver("the worker is stopping")

    def heartbeat_now(self) -> None:
        self._heartbeater.heartbeat_now(self.lease.run_id)

    def new_run_id(self) -> int:
        return self._work_source.new_run_id(self.lease.tenant)

    async def run_in_thread(self, function: Callable[[], Any]) -> Any:
        job = self._threads.submit(partial(contextvars.copy_context().run, function))
        work = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not job.cancel():  # it has begun
                self.abandon(work)
            raise

    async def run_in_process(
        self, step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        def begin_by() -> float:
            self.check_begin()
            return self.held_until

        return await run_isolated(step, args, kwargs, begin_by)

    def finish_work(self, _work: asyncio.Future[Any] | None = None) -> None:
        if self.work_over is not None and not self.work_over.done():
            self.work_over.set_result(None)

    def abandon(self, work: asyncio.Future[Any]) -> None:
        work.add_done_callback(ignore_outcome)
        if not work.done():
            self._abandoned(work)

    def log(self, step: str, level: str, text: str, fields: dict[str, Any]) -> None:
        try:
            encoded = msgspec.json.encode(fields, enc_hook=repr).decode() if fields else "{}"
        except (TypeError, ValueError, RecursionError):
            encoded = "{}"
        self._work_source.log(
            self.lease,
            LogLineRow(
                self.lease.run_id,
                at=self.now_us(),
                step=step or self.lease.name,
                level=level,
                text=text[:LOG_TEXT_CHARS_MAX],
                fields=encoded,
            ),
        )

    async def store_artifact(self, body: bytes) -> bytes:
        return await self._work_source.store_artifact(self.lease, body)

    async def load_artifact(self, reference: bytes) -> bytes:
        return await self._work_source.load_artifact(self.lease, reference)
