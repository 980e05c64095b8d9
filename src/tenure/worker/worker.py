"""A worker: claims what it can do, does it, and says how it went.

Laws:
1. It claims only what it can do: its queues say which workflows (by version), tools and commands those are, and which
   actions the governor of its station knows. A tool of an action's name goes first.
2. Slots bound what it does at once. Work that does not let itself be stopped keeps its slot until it ends.
3. A lease that is no longer ours is dropped without a word; its work is stopped.
4. Nothing that code does takes the worker down: whatever it raises ends its own step.
5. `stop` claims nothing more and begins no step: what is at work may end within the grace, and each run is given back, uncharged,
   when its step has ended. What is left after the grace is cut and given back. `kill` says nothing, like a crash: leases expire.
6. A lease counts from the moment at which it was asked for, by `clock.boot_seconds`. One that would be over by now, for the process
   stood still, is begun only if whoever granted it says that it stands.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from tenure import clock, ids
from tenure.declared.confinement import UNCONFINED, choose_confinement
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel import profiles
from tenure.kernel.decide.leases import Lease, Reply
from tenure.limits import CLAIM_STEPS_MAX
from tenure.logs import get_logger
from tenure.orchestrator import spans
from tenure.orchestrator.chance import SystemChance
from tenure.orchestrator.heartbeats import LeaseKey
from tenure.sdk import codec
from tenure.sdk.body import Body
from tenure.sdk.definitions import Registry, Tool, Workflow
from tenure.sdk.faults import (
    ActionLate,
    Failure,
    HandedOver,
    Interrupted,
    LeaseLost,
    Misfit,
    NotBegun,
    Restart,
    Suspended,
)
from tenure.sdk.outcomes import LOST, MESSAGE_CHARS_MAX, failure_of
from tenure.sdk.past import Past
from tenure.sdk.trying import STOP_SECONDS
from tenure.worker.declared import Declared
from tenure.worker.held import Held
from tenure.worker.serves import collected, governed, queues_of
from tenure.worker.station import Station, beat_of, key_of
from tenure.worker.threads import Threads

if TYPE_CHECKING:
    from tenure.sdk.frame import Frame
    from tenure.worker.heart import Heart

log = get_logger(__name__)

NEWS_SECONDS = 2.0
"""How often a lease is beaten for at least: a heartbeat's answer is how a cancel from elsewhere is heard of."""
CLAIM_WAIT_SECONDS = 1.0
CLAIM_PAUSE_SECONDS_MIN = 0.2
CLAIM_PAUSE_SECONDS_MAX = 3.0
CLAIM_END_SECONDS = 10.0
"""How long a claim that is under way when the worker stops may take."""
LAST_WORD_SECONDS = 20.0
LAST_WORD_PAUSE_SECONDS = 0.05
REGISTER_SECONDS = 10.0
GRACE_SECONDS = 10.0
CANCEL_SHARE = 0.5
"""How much of a cancel's grace its code has here: the request may be a heartbeat old, and the last word takes a moment."""


class Worker:
    """See the laws above. An async context manager, or `start` and `stop`."""

    def __init__(
        self,
        station: Station,
        *definitions: Workflow[..., Any] | Tool | Registry,
        slots: int = 100,
        queues: Iterable[str] | None = None,
        commands: bool = False,
        name: str | None = None,
        command_user: str | None = None,
        allow_unconfined_commands: bool = False,
    ) -> None:
        if slots < 1:
            raise TenureError("INVALID_INPUT", f"a worker has at least one slot, not {slots}")
        self.station = station
        self.slots = slots
        self.name = name or f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(3)}"
        self.registry = collected(definitions)
        self._only = None if queues is None else tuple(queues)
        self.queues = queues_of(self.registry, self._only, commands)
        self.commands = commands
        self._command_user = command_user
        self._allow_unconfined = allow_unconfined_commands
        self.confinement = UNCONFINED
        """Where commands run; chosen when it starts."""
        self.counts = dict.fromkeys(
            ("claimed", "succeeded", "failed", "suspended", "released", "canceled", "parked", "lost"), 0
        )
        self._serves = frozenset(self.queues)
        self._threads = Threads(slots, "tenure-step")
        self._chance = SystemChance()
        self._held: dict[LeaseKey, Held] = {}
        self._tasks: dict[asyncio.Task[None], Held] = {}
        self._runs: dict[tuple[str, int], int] = {}
        """How many leases of a tenant's run it holds."""
        self._stuck = 0
        self._reserved = 0
        self._claimed = 0
        """Slots that a claim under way may fill."""
        self._room = asyncio.Event()
        self._heart: Heart | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._registering: asyncio.Task[None] | None = None
        self._stopping = False
        self._killed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # ------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        """Begin to claim."""
        if self.commands:
            self.confinement = await asyncio.to_thread(
                partial(choose_confinement, self._command_user, allow_none=self._allow_unconfined)
            )
        if own := self.station.own():
            self.registry = Registry(*self.registry, *own)
            self.queues = (*self.queues, *(queue for flow in own for queue in flow.serves))
        self.queues = (*self.queues, *governed(await self.station.actions(), self.registry, self._only))
        self._serves = frozenset(self.queues)
        if not self.queues:
            raise TenureError("INVALID_INPUT", "a worker needs something it can do: a workflow or a tool")
        await self.station.register(self.name, self.queues, self.slots)
        self._heart = self.station.heart(self._heard)
        self._heart.start()
        loop = asyncio.get_running_loop()
        self._claiming = loop.create_task(self._claim(), name=f"tenure-{self.name}")
        self._registering = loop.create_task(self._register(), name=f"tenure-{self.name}-register")

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Claim and begin nothing more, let steps end for a grace, give back all runs, and end; see law 5."""
        if self._killed:
            return
        self._stopping = True
        for held in tuple(self._held.values()):
            held.drain()
        asking = [task for task in (self._claiming, self._registering) if task is not None]
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking, timeout=CLAIM_END_SECONDS)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        if self._tasks and grace > 0:
            await asyncio.wait(tuple(self._tasks), timeout=grace)
        for held in tuple(self._held.values()):
            log.warning("work_cut", worker=self.name, run=held.run_id, steps=held.steps, grace_seconds=grace)
            self._stop(held)
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=STOP_SECONDS + LAST_WORD_SECONDS)
        left = tuple(self._tasks)
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._heart is not None:
            self._heart.stop()
            await self._heart.stopped()
        self._threads.close()
        await self.station.leave(self.name)

    def kill(self) -> None:
        """Drop everything without a word, as a crash would."""
        self._killed = self._stopping = True
        for task in (self._claiming, self._registering):
            if task is not None:
                task.cancel()
        if self._heart is not None:
            self._heart.stop()
        for task, held in list(self._tasks.items()):
            held.lost = True
            self._stop(held)
            task.cancel()
        self._threads.close()

    @property
    def free(self) -> int:
        """Slots nobody has."""
        return self.slots - len(self._held) - self._stuck - self._reserved - self._claimed

    @property
    def stuck(self) -> int:
        """How much work it has given up that does not end."""
        return self._stuck

    @property
    def busy(self) -> list[tuple[str, str]]:
        """The (run, step) pairs it works on now."""
        return [(held.run_id, held.lease.name) for held in self._held.values()]

    def frames(self, run_id: str) -> list[Frame]:
        """The tries of a run's steps that are under way here."""
        bodies = (held.body for held in self._held.values() if held.run_id == run_id)
        return [frame for body in bodies if body is not None for frame in body.at_work.values()]

    def holds(self, tenant: str, run_id: int) -> bool:
        """Whether it works on a run of this tenant now."""
        return (tenant, run_id) in self._runs

    def hurry(self, run_id: int) -> None:
        """There may be news of a run: ask at once."""
        if self._heart is not None:
            self._heart.hurry(run_id)

    # ----------------------------------------------------------------------------------------- claims

    def reserve(self, queue: str) -> c.ClaimBy | None:
        """Keep a slot for a run that is being made here, so that it need not be claimed; see `take`."""
        if self._stopping or queue not in self._serves or self.free <= 0:
            return None
        self._reserved += 1
        return c.ClaimBy(self.name, session=self.station.session)

    def take(self, lease: Lease | None) -> None:
        """What became of a reservation: a lease, or None."""
        self._reserved -= 1
        if lease is not None:
            self._begin(lease)

    async def _claim(self) -> None:
        pause = CLAIM_PAUSE_SECONDS_MIN
        while not self._stopping:
            free = self.free
            if free <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            # Some slots are left for runs that are started here meanwhile; the others are the claim's until it is over.
            self._claimed = limit = min(max(free - free // 4, 1), CLAIM_STEPS_MAX)
            try:
                leases = await self.station.claim(self.name, self.queues, limit, 0.0)
            except Exception as fault:  # whatever it is: the next claim may go better
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
                await self.station.wait_for_work(CLAIM_WAIT_SECONDS)

    async def _register(self) -> None:
        while True:
            await asyncio.sleep(REGISTER_SECONDS)
            try:
                await self.station.register(self.name, self.queues, self.slots)
            except Exception as fault:
                log.warning("register_failed", worker=self.name, error=repr(fault))

    def _begin(self, lease: Lease) -> None:
        if self._killed:
            return
        self.counts["claimed"] += 1
        assert self._heart is not None
        held = Held(lease, self.name, self.station, self._heart, self._threads, self._abandoned)
        self._held[key_of(lease)] = held
        run = (lease.tenant, lease.run_id)
        self._runs[run] = self._runs.get(run, 0) + 1
        if clock.boot_seconds() < lease.asked_at + _certain_seconds(lease):
            self._beat_for(held, lease.asked_at)
        task = asyncio.get_running_loop().create_task(self._hold(held), name=f"tenure-{held.run_id}")
        self._tasks[task] = held
        task.add_done_callback(self._ended)

    def _beat_for(self, held: Held, asked_at: float) -> None:
        lease, heart = held.lease, self._heart
        assert heart is not None
        ends_at = asked_at + _length(lease) if lease.timeout_at is not None else math.inf
        every = min(lease.heartbeat_seconds, NEWS_SECONDS)
        heart.hold(
            beat_of(lease, ""), every, lease.lease_seconds, held.stop, asked_at=asked_at, ends_at=ends_at
        )

    async def _is_ours(self, held: Held) -> bool:
        """Whether a lease that nothing has begun under yet still stands; see law 6."""
        if clock.boot_seconds() < held.until:
            return True
        asked_at = clock.boot_seconds()
        if held.lost or self._heart is None or not await self.station.renew(held.lease):
            return False
        self._heart.let_go(key_of(held.lease))
        self._beat_for(held, asked_at)
        log.info("lease_renewed", worker=self.name, run=held.run_id, step=held.lease.name)
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        held = self._tasks.pop(task)
        key = key_of(held.lease)
        self._held.pop(key, None)
        run = (held.lease.tenant, key[0])
        self._runs[run] -= 1
        if not self._runs[run]:
            del self._runs[run]
            # Told when the slot is free again: whoever waits may start the next run at once.
            if held.succeeded:
                self.station.succeeded(key[0], held.output)
            else:
                self.station.ended(key[0])
        if self._heart is not None:
            self._heart.let_go(key)
        self.station.let_go(held.lease)
        self._room.set()
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("lease_task_failed", worker=self.name, run=held.run_id, error=repr(fault))

    def _abandoned(self, work: asyncio.Future[Any]) -> None:
        """Something does not let itself be stopped; see law 2."""
        self._stuck += 1
        self._threads.most += 1
        work.add_done_callback(self._unstuck)

    def _unstuck(self, _work: asyncio.Future[Any]) -> None:
        self._stuck -= 1
        self._threads.most -= 1
        self._room.set()

    def _heard(self, replies: dict[LeaseKey, Reply], lost: list[LeaseKey]) -> None:
        """What the heart was told, in the worker's loop."""
        for key, reply in replies.items():
            held = self._held.get(key)
            if held is not None and reply.cancel and not held.cancel:
                held.cancel = True
                self._stop(held)
        for key in lost:
            held = self._held.get(key)
            if held is not None:
                held.lost = True
                self._stop(held)

    # --------------------------------------------------------------------------------------- one lease

    async def _hold(self, held: Held) -> None:
        """Work under one lease until its last word."""
        lease = held.lease
        if self._stopping:
            await self._last(held, c.Release(**held.head()), "released")
            return
        if not await self._is_ours(held):
            self.counts["lost"] += 1
            log.warning("lease_over_before_it_began", worker=self.name, run=held.run_id, step=lease.name)
            return
        loop = asyncio.get_running_loop()
        doing = self._body(held) if lease.kind == "body" else self._declared(held)
        if spans.wanted():
            doing = _in_span(lease, doing)
        held.over = loop.create_future()
        held.work = loop.create_task(doing)
        held.work.add_done_callback(held.is_over)
        try:
            await held.over
        except asyncio.CancelledError:
            held.work.cancel()
            raise
        work = held.work
        if not work.done():
            held.abandon(work)
            if held.body is not None:
                held.body.end(LeaseLost("it did not stop"))
        if held.lost:
            self.counts["lost"] += 1
            if work.done() and not work.cancelled():
                work.exception()
        elif not work.done() or work.cancelled():
            await self._stopped(held)
        else:
            await self._conclude(held, work)

    def _stop(self, held: Held) -> None:
        """Interrupt async code, and tell code in threads. What has not ended after a while is left alone."""
        held.stop.set()
        if held.work is None or held.work.done():
            return
        held.work.cancel()
        patience = STOP_SECONDS
        if held.cancel and not held.lost:  # it may say what it has done until the cancel's deadline
            patience = profiles.words_of(held.lease.profile).timing.cancel_grace_seconds * CANCEL_SHARE
        asyncio.get_running_loop().call_later(patience, held.is_over)

    async def _stopped(self, held: Held) -> None:
        """The last word of work that was stopped, or stopped itself."""
        await self._tell(held)
        if held.cancel:
            await self._last(held, c.CancelAck(**held.head()), "canceled")
        elif held.stop.is_set():
            await self._last(held, c.Release(**held.head()), "released")
        else:
            await self._fail(held, Failure("STEP_FAILED", "the code canceled itself"))

    async def _body(self, held: Held) -> bytes | None:
        lease = held.lease
        workflow = self.registry.workflows.get(lease.workflow)
        if workflow is None or lease.code_version not in (workflow.version, *workflow.accepts):
            raise Misfit(f"{self.name} has no workflow {lease.workflow!r} of version {lease.code_version!r}")
        try:
            past = await self.station.past(lease) if lease.n > 1 or lease.recorded else Past()
        except TenureError as refused:
            if refused.retryable:
                raise Interrupted(refused.code) from refused
            raise
        if held.draining:
            raise HandedOver("the worker ends")
        body = Body(workflow, held, past, self._chance)
        return await body.run(await body.fetched(lease.input))

    async def _declared(self, held: Held) -> bytes | None:
        return await Declared(self.registry, self.station, held, self.confinement).run()

    async def _conclude(self, held: Held, work: asyncio.Task[bytes | None]) -> None:
        """The last word of a lease, by how its work ended."""
        fault = work.exception()
        if fault is not None and not isinstance(fault, Suspended | LeaseLost):
            await self._tell(held)
        if fault is None:
            output = work.result()
            try:
                last = c.Complete(
                    **held.head(), output=output, last=held.last, cost=held.cost, spent=held.told()
                )
                done = await self._last(held, last, "succeeded")
            except TenureError as refused:
                await self._fail(held, refused)
            else:
                if done and held.lease.kind == "body":
                    held.succeeded, held.output = True, output
        elif isinstance(fault, Suspended):
            self.counts["suspended"] += 1
        elif isinstance(fault, LeaseLost):
            self.counts["lost"] += 1
        elif isinstance(fault, Interrupted | NotBegun):
            await self._last(held, c.Release(**held.head()), "released")
        elif isinstance(fault, Misfit):
            await self._last(held, c.Park(**held.head(), why=_shown(fault.why)), "parked")
        elif isinstance(fault, Restart):
            try:
                await self._last(held, self._restarted(held, fault), "succeeded")
            except TenureError as refused:  # it has children that it must wait for
                await self._fail(held, refused)
        elif held.cancel:
            await self._last(held, c.CancelAck(**held.head()), "canceled")
        else:
            await self._fail(held, fault)

    def _restarted(self, held: Held, restart: Restart) -> c.Complete:
        lease = held.lease
        workflow = self.registry.workflows[lease.workflow]
        child = c.StartChild(
            run_id=self.station.new_run_id(lease.tenant),
            workflow=workflow.name,
            code_version=workflow.version,
            profile=workflow.profile.name,
            input=restart.input,
            plan=workflow.plan,
            timeout_seconds=workflow.timeout_seconds,
        )
        output = codec.restarted(ids.run_text(child.run_id))
        return c.Complete(**held.head(), output=output, restart=child, spent=held.told())

    async def _fail(self, held: Held, fault: BaseException) -> None:
        code, message, retryable = failure_of(fault)
        if held.lease.kind == "body" and not isinstance(fault, Failure | ActionLate):
            retryable = False  # the same code would do the same again; its steps have had their tries
        text = message[:MESSAGE_CHARS_MAX].encode(errors="replace") or b"-"
        last = c.Fail(
            **held.head(), code=code, message=text, retryable=retryable, cost=held.cost, spent=held.told()
        )
        await self._last(held, last, "failed")

    async def _tell(self, held: Held) -> None:
        """What was spent, where the last word may be one that does not tell of it."""
        if held.costs:
            with suppress(TenureError):  # the last word will be told the same
                await held.say(c.ReportCost(**held.head(), cost=held.cost, spent=held.told()))

    async def _last(self, held: Held, message: c.LeaseMessage, outcome: str) -> bool:
        """Send a last word, again while that may help; whether it counted. A refusal of its content is raised."""
        deadline = time.monotonic() + LAST_WORD_SECONDS
        while True:
            try:
                reply = await held.say(message)
            except TenureError as refused:
                if refused.code in LOST:
                    self.counts["lost"] += 1
                    return False
                if not refused.retryable:
                    raise
                if held.lost or time.monotonic() > deadline:
                    self.counts["lost"] += 1
                    return False
                await asyncio.sleep(LAST_WORD_PAUSE_SECONDS)
                continue
            if reply.state == "suspended":
                outcome = "suspended"  # it waits for its children to end
            elif reply.state == "refused":
                outcome = "failed"  # with it the run has spent more than it may
            self.counts["canceled" if reply.late else outcome] += 1
            return not reply.late and reply.state not in ("suspended", "refused")


async def _in_span(lease: Lease, doing: Coroutine[Any, Any, bytes | None]) -> bytes | None:
    """The work of a lease in a span; one that goes on with earlier work points to where that began."""
    name = f"workflow {lease.workflow}" if lease.kind == "body" else f"step {lease.name}"
    about = {
        "tenure.run_id": ids.run_text(lease.run_id),
        "tenure.tenant": lease.tenant,
        "tenure.workflow": lease.workflow,
        "tenure.step": lease.name,
        "tenure.attempt": lease.n,
    }
    first = lease.n == 1
    with spans.span(
        name,
        parent=lease.trace if first else None,
        linked=None if first else lease.trace,
        about=about,
        quiet=(Suspended, Interrupted, NotBegun, Restart, LeaseLost, asyncio.CancelledError),
    ):
        return await doing


def _length(lease: Lease) -> float:
    """How long a lease stands from where it was granted, without a heartbeat."""
    if not lease.granted_at:
        return lease.lease_seconds
    return min((lease.expires_at - lease.granted_at) / 1e6, lease.lease_seconds)


def _certain_seconds(lease: Lease) -> float:
    """How long after it was asked for a lease is ours for certain: as the heart counts (`Pulse.lost_at`)."""
    every = min(lease.heartbeat_seconds, NEWS_SECONDS)
    return min(_length(lease), lease.lease_seconds - every / 2)


def _shown(why: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in why)[:900]
