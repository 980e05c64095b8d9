"""A worker claims steps, runs them, and reports their outcome.

Laws:
1. A worker claims only what it can do: its capabilities name its workflows (by version), tools, commands, and the actions that the
   governor of its work source knows. A tool with the name of an action takes precedence.
2. It runs at most `slots` leases at once. Work that does not stop keeps its slot until it ends.
3. When a lease is lost, its work is stopped, and nothing more is sent.
4. Nothing that code does ends the worker: whatever it raises ends its own step.
5. `stop` claims nothing more and begins no step. Running steps may finish within the grace period, and each run is given back, uncharged,
   when its step has ended. What is left after the grace period is cut and given back. `kill` sends nothing, like a crash: leases expire.
6. A lease counts from the moment of asking, by `clock.boot_seconds`. If it could have expired by now because the process stood still, its
   work begins only after the lease was renewed.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from tenure import clock, ids, tracing
from tenure.chance import SystemChance
from tenure.commands.confinement import UNCONFINED, choose_confinement
from tenure.errors import TenureError
from tenure.futures import ignore_outcome
from tenure.kernel import capability, profiles
from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease, LeaseKey, LeaseReply
from tenure.limits import CLAIM_STEPS_MAX
from tenure.logs import get_logger
from tenure.processes import make_process_name
from tenure.sdk import codec
from tenure.sdk.attempts import STOP_SECONDS
from tenure.sdk.definitions import Registry, Tool, Workflow, registry
from tenure.sdk.errors import Failure
from tenure.sdk.execution import WorkflowExecution
from tenure.sdk.exits import (
    ActionLate,
    HandedOver,
    Interrupted,
    LeaseLost,
    NotBegun,
    ReplayMismatch,
    Restart,
    Suspended,
)
from tenure.sdk.outcomes import LEASE_OVER_CODES, MESSAGE_CHARS_MAX, describe_failure
from tenure.sdk.replay_log import ReplayLog
from tenure.worker.lease_session import LeaseSession
from tenure.worker.plan_step import CHILD, PlanStepAttempt
from tenure.worker.threads import ThreadPool
from tenure.worker.work_source import WorkSource, heartbeat_for, lease_key

if TYPE_CHECKING:
    from tenure.sdk.frame import Frame
    from tenure.worker.heartbeat import Heartbeater

log = get_logger(__name__)

NEWS_SECONDS = 2.0
"""The longest heartbeat interval: a cancellation arrives with the reply to a heartbeat."""
CLAIM_WAIT_SECONDS = 1.0
CLAIM_PAUSE_SECONDS_MIN = 0.2
CLAIM_PAUSE_SECONDS_MAX = 3.0
CLAIM_END_SECONDS = 10.0
FINAL_MESSAGE_SECONDS = 20.0
FINAL_MESSAGE_PAUSE_SECONDS = 0.05
REGISTER_SECONDS = 10.0
GRACE_SECONDS = 10.0
CANCEL_SHARE = 0.5
"""How much of the cancel grace period code has here: the request may be a heartbeat old, and the final message takes a moment."""


class Worker:
    """An async context manager, or `start` and `stop`."""

    def __init__(
        self,
        work_source: WorkSource,
        *definitions: Workflow[..., Any] | Tool | Registry,
        slots: int = 100,
        queues: Iterable[str] | None = None,
        commands: bool = False,
        name: str | None = None,
        command_user: str | None = None,
        allow_unconfined_commands: bool = False,
    ) -> None:
        if slots < 1:
            raise TenureError("INVALID_INPUT", f"slots must be at least 1, not {slots}")
        self.work_source = work_source
        self.slots = slots
        self.name = name or make_process_name(host_chars_max=40, random_bytes=3)
        self.registry = _collect_definitions(definitions)
        self._only = None if queues is None else tuple(queues)
        self.queues = _list_capabilities(self.registry, self._only, commands)
        self.commands = commands
        self._command_user = command_user
        self._allow_unconfined = allow_unconfined_commands
        self.confinement = UNCONFINED
        self.counts = dict.fromkeys(
            ("claimed", "succeeded", "failed", "suspended", "released", "canceled", "parked", "lost"), 0
        )
        self._serves = frozenset(self.queues)
        self._threads = ThreadPool(slots, "tenure-step")
        self._chance = SystemChance()
        self._sessions: dict[LeaseKey, LeaseSession] = {}
        self._tasks: dict[asyncio.Task[None], LeaseSession] = {}
        self._runs: dict[tuple[str, int], int] = {}
        """The number of leases by tenant and run."""
        self.stuck = 0
        """How many slots are kept by work that does not stop."""
        self._reserved = 0
        self._claimed = 0
        """Slots that the current claim may fill."""
        self._slot_freed = asyncio.Event()
        self._heartbeater: Heartbeater | None = None
        self._loops: list[asyncio.Task[None]] = []
        """The tasks that claim and register."""
        self._stopping = False
        self._killed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # ------------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        if self.commands:
            self.confinement = await asyncio.to_thread(
                partial(choose_confinement, self._command_user, allow_none=self._allow_unconfined)
            )
        if system := self.work_source.system_workflows():
            self.registry = Registry(*self.registry, *system)
        actions = [each for each in await self.work_source.actions() if each not in self.registry.tools]
        self.queues += (
            *(queue for workflow in system for queue in workflow.serves),
            *_on_queues(self._only, [capability.tool(action) for action in actions]),
        )
        self._serves = frozenset(self.queues)
        if not self.queues:
            raise TenureError("INVALID_INPUT", "the worker has nothing to do: give it a workflow or a tool")
        await self.work_source.register(self.name, self.queues, self.slots)
        self._heartbeater = self.work_source.make_heartbeater(self._handle_replies)
        self._heartbeater.start()
        loop = asyncio.get_running_loop()
        self._loops = [
            loop.create_task(self._claim(), name=f"tenure-{self.name}"),
            loop.create_task(self._register(), name=f"tenure-{self.name}-register"),
        ]

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Stop claiming, let running steps finish within the grace period, and give all runs back; see law 5."""
        if self._killed:
            return
        self._stopping = True
        for session in tuple(self._sessions.values()):
            session.drain()
        for task in self._loops:
            task.cancel()
        if self._loops:
            await asyncio.wait(self._loops, timeout=CLAIM_END_SECONDS)
        await _cancel_all(self._loops)
        if self._tasks and grace > 0:
            await asyncio.wait(tuple(self._tasks), timeout=grace)
        for session in tuple(self._sessions.values()):
            log.warning(
                "work_cut",
                worker=self.name,
                run=session.run_id,
                steps=session.running_steps,
                grace_seconds=grace,
            )
            self._stop(session)
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=STOP_SECONDS + FINAL_MESSAGE_SECONDS)
        await _cancel_all(tuple(self._tasks))
        if self._heartbeater is not None:
            self._heartbeater.stop()
            await self._heartbeater.stopped()
        self._threads.close()
        await self.work_source.leave(self.name)

    def kill(self) -> None:
        """Drop everything and send nothing, like a crash."""
        self._killed = self._stopping = True
        for task in self._loops:
            task.cancel()
        if self._heartbeater is not None:
            self._heartbeater.stop()
        for task, session in list(self._tasks.items()):
            session.lost = True
            self._stop(session)
            task.cancel()
        self._threads.close()

    @property
    def free(self) -> int:
        return self.slots - len(self._sessions) - self.stuck - self._reserved - self._claimed

    @property
    def busy(self) -> list[tuple[str, str]]:
        return [(session.run_id, session.lease.name) for session in self._sessions.values()]

    def frames(self, run_id: str) -> list[Frame]:
        """The attempts of a run's steps that are running here."""
        executions = (session.execution for session in self._sessions.values() if session.run_id == run_id)
        return [frame for each in executions if each is not None for frame in each.steps.running.values()]

    def holds(self, tenant: str, run_id: int) -> bool:
        return (tenant, run_id) in self._runs

    def heartbeat_now(self, run_id: int) -> None:
        if self._heartbeater is not None:
            self._heartbeater.heartbeat_now(run_id)

    # ----------------------------------------------------------------------------------------- claims

    def reserve(self, queue: str) -> c.Claimant | None:
        """Keep a slot for a run that this process is creating, so that no claim is needed. `take` must follow."""
        if self._stopping or queue not in self._serves or self.free <= 0:
            return None
        self._reserved += 1
        return c.Claimant(self.name, session=self.work_source.session)

    def take(self, lease: Lease | None) -> None:
        """End a reservation: begin its lease, if the creation has returned one."""
        self._reserved -= 1
        if lease is not None:
            self._begin(lease)

    async def _claim(self) -> None:
        pause = CLAIM_PAUSE_SECONDS_MIN
        while not self._stopping:
            free = self.free
            if free <= 0:
                self._slot_freed.clear()
                await self._slot_freed.wait()
                continue
            # A quarter of the free slots stays for runs that are started in this process meanwhile.
            self._claimed = limit = min(max(free - free // 4, 1), CLAIM_STEPS_MAX)
            try:
                leases = await self.work_source.claim(self.name, self.queues, limit)
            except Exception as fault:  # the next claim may succeed
                self._claimed = 0
                log.warning("claim_failed", worker=self.name, error=repr(fault))
                await asyncio.sleep(pause)
                pause = min(pause * 2, CLAIM_PAUSE_SECONDS_MAX)
                continue
            finally:
                self._claimed = 0
            pause = CLAIM_PAUSE_SECONDS_MIN
            for lease in leases:
                self._begin(lease)
            if not leases:
                await self.work_source.wait_for_work(CLAIM_WAIT_SECONDS)

    async def _register(self) -> None:
        while True:
            await asyncio.sleep(REGISTER_SECONDS)
            try:
                await self.work_source.register(self.name, self.queues, self.slots)
            except Exception as fault:
                log.warning("register_failed", worker=self.name, error=repr(fault))

    def _begin(self, lease: Lease) -> None:
        if self._killed:
            return
        self.counts["claimed"] += 1
        assert self._heartbeater is not None
        session = LeaseSession(
            lease, self.name, self.work_source, self._heartbeater, self._threads, self._abandoned
        )
        self._sessions[lease_key(lease)] = session
        run = (lease.tenant, lease.run_id)
        self._runs[run] = self._runs.get(run, 0) + 1
        if clock.boot_seconds() < lease.asked_at + _certain_seconds(lease):
            self._track(session, lease.asked_at)
        task = asyncio.get_running_loop().create_task(
            self._work_under(session), name=f"tenure-{session.run_id}"
        )
        self._tasks[task] = session
        task.add_done_callback(self._ended)

    def _track(self, session: LeaseSession, asked_at: float) -> None:
        lease = session.lease
        assert self._heartbeater is not None
        self._heartbeater.track(
            heartbeat_for(lease),
            min(lease.heartbeat_seconds, NEWS_SECONDS),
            lease.lease_seconds,
            session.stop,
            asked_at=asked_at,
            ends_at=asked_at + _length(lease) if lease.timeout_at is not None else math.inf,
        )

    async def _is_ours(self, session: LeaseSession) -> bool:
        """Whether a new lease is still ours; see law 6."""
        if clock.boot_seconds() < session.held_until:
            return True
        asked_at = clock.boot_seconds()
        if session.lost or self._heartbeater is None or not await self.work_source.renew(session.lease):
            return False
        self._heartbeater.forget_lease(lease_key(session.lease))
        self._track(session, asked_at)
        log.info("lease_renewed", worker=self.name, run=session.run_id, step=session.lease.name)
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        session = self._tasks.pop(task)
        key = lease_key(session.lease)
        self._sessions.pop(key, None)
        run = (session.lease.tenant, key[0])
        self._runs[run] -= 1
        if not self._runs[run]:
            del self._runs[run]
            # The slot is free by now: a waiter may start the next run immediately.
            if session.succeeded:
                self.work_source.succeeded(key[0], session.output)
            else:
                self.work_source.ended(key[0])
        if self._heartbeater is not None:
            self._heartbeater.forget_lease(key)
        self.work_source.forget_lease(session.lease)
        self._slot_freed.set()
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("lease_task_failed", worker=self.name, run=session.run_id, error=repr(fault))

    def _abandoned(self, work: asyncio.Future[Any]) -> None:
        """Keep the slot of work that does not stop; see law 2."""
        self.stuck += 1
        self._threads.most += 1
        work.add_done_callback(self._unstuck)

    def _unstuck(self, _work: asyncio.Future[Any]) -> None:
        self.stuck -= 1
        self._threads.most -= 1
        self._slot_freed.set()

    def _handle_replies(self, replies: dict[LeaseKey, LeaseReply], lost: list[LeaseKey]) -> None:
        for key, reply in replies.items():
            session = self._sessions.get(key)
            if session is not None and reply.cancel and not session.cancel:
                session.cancel = True
                self._stop(session)
        for key in lost:
            if (session := self._sessions.get(key)) is not None:
                session.lost = True
                self._stop(session)

    # --------------------------------------------------------------------------------------- one lease

    async def _work_under(self, session: LeaseSession) -> None:
        lease = session.lease
        if self._stopping:
            await self._release(session)
            return
        if not await self._is_ours(session):
            self.counts["lost"] += 1
            log.warning(
                "lease_expired_before_work_began", worker=self.name, run=session.run_id, step=lease.name
            )
            return
        loop = asyncio.get_running_loop()
        work = (
            self._run_workflow(session)
            if lease.kind == "body"
            else PlanStepAttempt(self.registry, self.work_source, session, self.confinement).run()
        )
        if tracing.is_enabled():
            work = _in_span(lease, work)
        session.work_over = loop.create_future()
        session.work = task = loop.create_task(work)
        task.add_done_callback(session.finish_work)
        try:
            await session.work_over
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            session.abandon(task)
            if session.execution is not None:
                session.execution.journal.end(LeaseLost("the code did not stop"))
        if session.lost:
            self.counts["lost"] += 1
            task.add_done_callback(ignore_outcome)
        elif not task.done() or task.cancelled():
            await self._report_stopped(session)
        else:
            await self._report_outcome(session, task)

    def _stop(self, session: LeaseSession) -> None:
        """Cancel async code, and signal code in threads. After a while the worker no longer waits for it."""
        session.stop.set()
        if session.work is None or session.work.done():
            return
        session.work.cancel()
        patience = STOP_SECONDS
        if session.cancel and not session.lost:  # it may report until the cancel's deadline
            patience = profiles.for_display(session.lease.profile).timing.cancel_grace_seconds * CANCEL_SHARE
        asyncio.get_running_loop().call_later(patience, session.finish_work)

    async def _report_stopped(self, session: LeaseSession) -> None:
        await self._report_costs(session)
        if session.cancel:
            await self._send_final(session, c.AckCancel(**session.next_address()), "canceled")
        elif session.stop.is_set():
            await self._release(session)
        else:
            await self._fail(session, Failure("STEP_FAILED", "the code canceled itself"))

    async def _release(self, session: LeaseSession) -> None:
        await self._send_final(session, c.Release(**session.next_address()), "released")

    async def _run_workflow(self, session: LeaseSession) -> bytes | None:
        lease = session.lease
        workflow = self.registry.workflows.get(lease.workflow)
        if workflow is None or lease.code_version not in (workflow.version, *workflow.accepts):
            raise ReplayMismatch(
                f"{self.name} has no workflow {lease.workflow!r} of version {lease.code_version!r}"
            )
        try:
            replay_log = (
                await self.work_source.load_replay_log(lease)
                if lease.n > 1 or lease.recorded
                else ReplayLog()
            )
        except TenureError as refused:
            if refused.retryable:
                raise Interrupted(refused.code) from refused
            raise
        if session.draining:
            raise HandedOver("the worker is stopping")
        execution = WorkflowExecution(workflow, session, replay_log, self._chance)
        return await execution.run(await execution.waits.load_payload(lease.input))

    async def _report_outcome(self, session: LeaseSession, work: asyncio.Task[bytes | None]) -> None:
        fault = work.exception()
        if fault is not None and not isinstance(fault, Suspended | LeaseLost):
            await self._report_costs(session)
        match fault:
            case None:
                session.output = work.result()
                message = c.Complete(
                    **session.next_address(),
                    output=session.output,
                    last=session.last_checkpoint,
                    plan=session.plan,
                    cost=session.cost,
                    spent=session.take_costs(),
                )
                session.succeeded = await self._complete(session, message) and session.lease.kind == "body"
            case Restart():
                await self._complete(session, self._make_restart(session, fault))
            case Suspended():
                self.counts["suspended"] += 1
            case LeaseLost():
                self.counts["lost"] += 1
            case Interrupted() | NotBegun():
                await self._release(session)
            case ReplayMismatch():
                why = "".join(char if char.isprintable() else "?" for char in str(fault))[:900]
                await self._send_final(session, c.Park(**session.next_address(), why=why), "parked")
            case _ if session.cancel:
                await self._send_final(session, c.AckCancel(**session.next_address()), "canceled")
            case _:
                await self._fail(session, fault)

    async def _complete(self, session: LeaseSession, message: c.Complete) -> bool:
        """Complete the step, and return whether that counted. If the content is refused (an output that is too large, a restart that must
        wait for its children), the step fails."""
        try:
            return await self._send_final(session, message, "succeeded")
        except TenureError as refused:
            await self._fail(session, refused)
            return False

    def _make_restart(self, session: LeaseSession, restart: Restart) -> c.Complete:
        lease = session.lease
        workflow = self.registry.workflows[lease.workflow]
        child = c.StartChild(
            run_id=self.work_source.new_run_id(lease.tenant),
            workflow=workflow.name,
            code_version=workflow.version,
            profile=workflow.profile.name,
            input=restart.input,
            plan=workflow.plan,
            timeout_seconds=workflow.timeout_seconds,
        )
        return c.Complete(
            **session.next_address(),
            output=codec.encode_restart(ids.run_text(child.run_id)),
            restart=child,
            spent=session.take_costs(),
        )

    async def _fail(self, session: LeaseSession, fault: BaseException) -> None:
        code, text, retryable = describe_failure(fault)
        if session.lease.kind == "body" and not isinstance(fault, Failure | ActionLate):
            retryable = False  # the same code would fail again, and its steps have had their retries
        message = c.Fail(
            **session.next_address(),
            code=code,
            message=text[:MESSAGE_CHARS_MAX].encode(errors="replace") or b"-",
            retryable=retryable,
            cost=session.cost,
            spent=session.take_costs(),
        )
        await self._send_final(session, message, "failed")

    async def _report_costs(self, session: LeaseSession) -> None:
        """Report costs before a final message that cannot."""
        if session.costs:
            with suppress(TenureError):  # the final message will be refused too
                await self.work_source.submit(
                    c.ReportCost(**session.next_address(), cost=session.cost, spent=session.take_costs())
                )

    async def _send_final(self, session: LeaseSession, message: c.LeaseCommand, outcome: str) -> bool:
        """Send a final message, and repeat it while its refusal is retryable. Returns whether it counted. Raises if its content is refused."""
        deadline = time.monotonic() + FINAL_MESSAGE_SECONDS
        while True:
            try:
                reply = await self.work_source.submit(message)
            except TenureError as refused:
                over = refused.code in LEASE_OVER_CODES
                if not over and not refused.retryable:
                    raise
                if over or session.lost or time.monotonic() > deadline:
                    self.counts["lost"] += 1
                    return False
                await asyncio.sleep(FINAL_MESSAGE_PAUSE_SECONDS)
                continue
            # `suspended`: it waits for its children. `refused`: the run has exceeded its budget with it.
            outcome = {"suspended": "suspended", "refused": "failed"}.get(reply.state, outcome)
            self.counts["canceled" if reply.late else outcome] += 1
            return not reply.late and reply.state not in ("suspended", "refused")


def _collect_definitions(definitions: tuple[Workflow[..., Any] | Tool | Registry, ...]) -> Registry:
    """The definitions that a worker is given, or else everything that decorators have registered."""
    given = [each if isinstance(each, Registry) else (each,) for each in definitions]
    return Registry(*itertools.chain(*given)) if given else registry


def _list_capabilities(known: Registry, only: tuple[str, ...] | None, commands: bool) -> tuple[str, ...]:
    """The capabilities that a worker claims. Without `only`, a workflow is served on its own queue, and everything else on `default`."""
    if commands and capability.RUN in known.tools:
        raise TenureError(
            "INVALID_INPUT",
            f"a worker for commands cannot have a tool named {capability.RUN!r}: rename the tool",
        )
    flows = (flow for flow in known.workflows.values() if only is None or flow.queue in only)
    serves = [queue for flow in flows for queue in flow.serves]
    whats = [capability.tool(name) for name in known.tools] + ([capability.RUN] if commands else [])
    whats += [capability.tool(CHILD + name) for name in known.workflows]
    return tuple(dict.fromkeys(serves + _on_queues(only, whats)))


def _on_queues(only: tuple[str, ...] | None, whats: Sequence[str]) -> list[str]:
    return [capability.capability(queue, what) for queue in only or ("default",) for what in whats]


async def _cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _in_span(lease: Lease, work: Coroutine[Any, Any, bytes | None]) -> bytes | None:
    """The work of a lease in a span. A later attempt links to the trace of the first."""
    name = f"workflow {lease.workflow}" if lease.kind == "body" else f"step {lease.name}"
    about = {
        "tenure.run_id": ids.run_text(lease.run_id),
        "tenure.tenant": lease.tenant,
        "tenure.workflow": lease.workflow,
        "tenure.step": lease.name,
        "tenure.attempt": lease.n,
    }
    first = lease.n == 1
    with tracing.span(
        name,
        parent=lease.trace if first else None,
        linked=None if first else lease.trace,
        about=about,
        quiet=(Suspended, Interrupted, NotBegun, Restart, LeaseLost, asyncio.CancelledError),
    ):
        return await work


def _length(lease: Lease) -> float:
    """How long a lease lasts from its grant without a heartbeat."""
    granted = (lease.expires_at - lease.granted_at) / 1e6 if lease.granted_at else math.inf
    return min(granted, lease.lease_seconds)


def _certain_seconds(lease: Lease) -> float:
    """How long after asking a lease is certainly ours, as in `TrackedLease.lost_at`."""
    return min(_length(lease), lease.lease_seconds - min(lease.heartbeat_seconds, NEWS_SECONDS) / 2)
