"""Simulated workers. They claim steps, send heartbeats, work and report results, unreliably.

Laws:
1. A worker repeats a message with the same sequence number until it is answered. If a newer message came first, it
   sends the same content with a new number.
2. A worker knows only its lease and the answers it got. A body is replayed from its checkpoints.
3. A worker does not stop when its lease ends: the kernel must refuse its messages.
4. In some worlds a worker's death is proven: its leases are reported later, each of them twice.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tenure.errors import TenureError
from tenure.kernel.commands import (
    AckCancel,
    AckLease,
    ApprovalSpec,
    BeginUpload,
    Complete,
    Context,
    Fail,
    Heartbeat,
    LeaseCommand,
    OpenWait,
    Park,
    RecordCheckpoint,
    Release,
    StartChild,
    Suspend,
    WaitSpec,
)
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.simulate.acts import CancelRequested, SimulatedAct, StepEnded
from tenure.simulate.loop import Host
from tenure.simulate.network import NoAnswer
from tenure.simulate.process import EPOCH_US, SimulatedClaim
from tenure.simulate.workload import CODES, Op, Script

if TYPE_CHECKING:
    from tenure.simulate.world import World

M = TypeVar("M", bound=LeaseCommand)
OUTPUT = b'{"ok":true}'


class LeaseGone(Exception):
    """The lease has ended."""


class SimulatedWorker:
    """A machine with a few slots. When it dies, a new one with the same name replaces it."""

    def __init__(self, world: World, name: str, life: int = 1) -> None:
        self.world = world
        self.name = name
        self.host = Host(name)
        self.rng = world.rng(f"{name}/{life}")
        self._life = life
        self._session = world.session_of(name, life)
        self._slots = self.rng.choice((1, 2, 4))
        self._queues = self.rng.choice((("default", "slow"), ("default", "slow"), ("default",)))
        self._busy = 0
        if name == "w1":
            self._queues = ("default", "slow")  # so that every queue has a worker

    def start(self) -> None:
        self.world.workers[self.name] = self
        self.world.loop.create_task(self._live(), context=self.host.context())

    def adopt(self, lease: Lease) -> None:
        """Work on a lease that was granted when its run was created."""
        self.world.loop.create_task(self._work(lease), context=self.host.context())

    def die(self) -> None:
        """Lose the machine and its work, and start another one later."""
        self.host.alive = False
        self.world.note(self.name, "dies")
        successor = SimulatedWorker(self.world, self.name, self._life + 1)
        self.world.later(20.0 * self.rng.random(), successor.start)
        if self._session is not None:
            self.world.prove_death(self._session)

    async def _live(self) -> None:
        rng = self.rng
        while True:
            await self.world.agenda.wait_for_work()
            await asyncio.sleep(rng.random())
            free = self._slots - self._busy
            if free <= 0:
                continue
            ask = SimulatedClaim(
                self.name,
                rng.randint(1, free),
                rng.random() < 0.5,
                rng.choice((0.0, 0.0, 3.0)),
                self._queues,
                self._session,
            )
            try:
                leases = await self.world.network.call("claim", ask)
            except (NoAnswer, TenureError):
                await asyncio.sleep(rng.random())
                continue
            for lease in leases:
                self._busy += 1
                self.world.loop.create_task(self._slot(lease))
            if not leases:
                await asyncio.sleep(1.0 + 4.0 * rng.random())

    async def _slot(self, lease: Lease) -> None:
        try:
            await self._work(lease)
        finally:
            self._busy -= 1

    async def _work(self, lease: Lease) -> None:
        rng, faults = self.rng, self.world.faults
        if rng.random() < faults.vanish:
            if rng.random() < 0.5:
                self.die()
                await self.world.loop.create_future()
            return
        job = Job(self, lease, Random(rng.getrandbits(32)))
        beating = self.world.loop.create_task(job.beat())
        try:
            await job.do()
        except LeaseGone:
            pass
        except NoAnswer:
            self.world.note(self.name, "gives up on its lease")
        finally:
            beating.cancel()


class Job:
    """A worker's work on one lease."""

    def __init__(self, worker: SimulatedWorker, lease: Lease, rng: Random) -> None:
        self.world = worker.world
        self.worker = worker
        self.lease = lease
        self.rng = rng
        self._seq = 0
        self.context = Context(f"worker:{worker.name}", "system", lease.idempotency_key)
        self.stop = False
        self._acked = False

    # --------------------------------------------------------------------------------------- messages

    def _message(self, kind: type[M], **fields: Any) -> M:
        self._seq += 1
        lease = self.lease
        return kind(
            context=self.context, run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=self._seq, **fields
        )

    async def say(self, kind: type[LeaseCommand], **fields: Any) -> LeaseReply:
        """Send a message until it is answered; `LeaseGone` or `CancelRequested` if that is the answer."""
        await self.maybe_pause()
        while True:
            try:
                reply: LeaseReply = await self.world.network.call_until_answered(
                    "send", self._message(kind, **fields)
                )
            except TenureError as refused:
                if refused.code == "MESSAGE_OUT_OF_ORDER":
                    continue
                if refused.code == "RUN_CANCELING":
                    raise CancelRequested from refused
                if refused.code == "CHECKPOINT_CONFLICT":
                    return LeaseReply("ignored")
                raise LeaseGone(refused.code) from refused
            self.stop = self.stop or reply.cancel
            return reply

    async def maybe_pause(self) -> None:
        """Sometimes pause, as a machine that is overloaded or suspended does."""
        if self.rng.random() < self.world.faults.pause:
            host = self.worker.host
            host.paused_until = (
                self.world.loop.time() + self.rng.choice((1.0, 30.0, 400.0)) * self.rng.random()
            )
            self.world.note(host.name, f"stands still until {host.paused_until:.3f}")
            await asyncio.sleep(0)

    async def beat(self) -> None:
        """Send heartbeats during the work, each of them once."""
        while True:
            await asyncio.sleep(self.lease.heartbeat_seconds * (0.6 + 0.4 * self.rng.random()))
            if self._acked:
                with suppress(NoAnswer, TenureError):
                    reply: LeaseReply = await self.world.network.call(
                        "beat", self._message(Heartbeat, progress="1/2")
                    )
                    self.stop = self.stop or reply.cancel

    # ------------------------------------------------------------------------------------------- work

    async def do(self) -> None:
        """Acknowledge the lease, work, and report the result."""
        rng, chaos = self.rng, self.world.chaos
        try:
            rows = await self.world.network.call_until_answered("read", ("attempts_of", self.lease.run_id))
            mine = next((a for a in rows if a.idx == self.lease.idx and a.n == self.lease.n), None)
            if mine is not None and mine.lease == "granted":
                if chaos and rng.random() < 0.05:
                    await self._finish(Release)
                await self._say_or_stop(AckLease)
            self._acked = True
            if chaos and rng.random() < 0.06:
                kind, fields = rng.choice(((Release, {}), (Park, {"why": "step two differs"})))
                await self._finish(kind, **fields)
            if self.lease.kind == "body":
                await self._body(self.world.workload.script(int(self.lease.input or b"0")))
            elif self.lease.kind == "plan":
                await self._plan()
            else:
                await self._step()
        except CancelRequested:
            await self._answer_cancel()

    async def _finish(self, kind: type[LeaseCommand], **fields: Any) -> NoReturn:
        await self.say(kind, **fields)
        raise LeaseGone

    async def _say_or_stop(self, kind: type[LeaseCommand], **fields: Any) -> LeaseReply:
        """Send a message, and stop if the run is being canceled."""
        reply = await self.say(kind, **fields)
        if self.stop:
            raise CancelRequested
        return reply

    async def _work_for(self, seconds: float) -> None:
        """Work for a while, and stop within 2 s if the run is being canceled."""
        while seconds > 0:
            await asyncio.sleep(min(seconds, 2.0))
            seconds -= 2.0
            if self.stop:
                raise CancelRequested

    async def _step(self) -> None:
        rng = self.rng
        await self._work_for(rng.choice((0.01, 0.5, 3.0, 15.0)) * rng.random())
        if rng.random() < 0.2:
            await self._say_or_stop(RecordCheckpoint, name=f"part{rng.randint(1, 2)}", output=OUTPUT)
        if rng.random() < 0.3:
            await self._say_or_stop(BeginUpload)
        if self.world.chaos and rng.random() < 0.25:
            await self._finish(
                Fail,
                code=rng.choice(CODES),
                message=b"no",
                retryable=rng.choice((None, None, True, False)),
            )
        await self.say(Complete, output=OUTPUT)

    async def _plan(self) -> None:
        """Plan the run. Some planners are slow, fail, bring an invalid plan, or do what a planner may not do."""
        rng, chaos = self.rng, self.world.chaos
        await self._work_for(rng.choice((0.01, 0.5, 5.0, 100.0) if chaos else (0.01, 0.5)) * rng.random())
        if chaos and rng.random() < 0.2:
            await self._finish(
                Fail, code=rng.choice(CODES), message=b"no idea", retryable=rng.choice((None, True, False))
            )
        if chaos and rng.random() < 0.1:
            if rng.random() < 0.5:
                await self.say(RecordCheckpoint, name="part1", output=OUTPUT)
            else:
                await self.say(OpenWait, label="event0", event=WaitSpec(event="merged"))
        workload = self.world.workload
        plan = (
            workload.planner_result(rng, self.lease.profile)
            if chaos
            else workload.plan(rng, self.lease.profile)
        )
        await self.say(Complete, plan=plan)

    async def _answer_cancel(self) -> None:
        """Answer a cancellation. Most workers acknowledge it; some are late, and some never answer."""
        rng = self.rng
        await asyncio.sleep(rng.choice((0.1, 5.0)) * rng.random())
        reaction = rng.random()
        if not self.world.chaos or reaction < 0.5:
            await self.say(AckCancel)
        elif reaction < 0.7:
            await self.say(Complete, output=OUTPUT)
        elif reaction < 0.8:
            await self.say(Release)
        elif reaction < 0.9:
            await self.say(Fail, code="BOOM")

    # ----------------------------------------------------------------------------------------- bodies

    async def _body(self, script: Script) -> None:
        found = await self.world.network.call_until_answered("read", ("checkpoints_of", self.lease.run_id))
        done = {row.name for row in found if row.state == "done" and row.resumable}
        opened: list[int] = []
        for at, op in enumerate(script.ops):
            if op.kind == "work":
                await self._work_for(op.seconds)
            elif op.kind == "act":
                await self._act(op)
            elif op.kind in ("note", "mark"):
                if op.name not in done:
                    await self._checkpoint(op)
            else:
                opened += await self._open(op)
                following = script.ops[at + 1].kind if at + 1 < len(script.ops) else "work"
                if script.together and following in ("approval", "event", "timer", "child"):
                    continue
                if self.rng.random() < 0.3:
                    await self._work_for(5.0 * self.rng.random())
                if opened and op.awaited:
                    await self._suspend(opened)
                opened = []
        if script.fails is not None:
            await self._finish(Fail, code=script.fails, message=b"as written")
        await self.say(Complete, output=OUTPUT)

    async def _act(self, op: Op) -> None:
        """Carry out an act, and suspend if it waits for people."""
        try:
            wait = await SimulatedAct(self, op).do()
        except StepEnded as ended:
            raise LeaseGone(str(ended)) from ended
        if wait is not None:
            await self._suspend([wait])
            raise LeaseGone("the next attempt continues from the receipts")

    async def _checkpoint(self, op: Op) -> None:
        common = {"name": op.name, "idempotent": op.idempotent, "resumable": op.resumable, "arguments": b"a"}
        if op.kind == "mark":
            await self._say_or_stop(RecordCheckpoint, state="started", **common)
        await self._work_for(op.seconds)
        if self.world.chaos and self.rng.random() < 0.05:
            await self._say_or_stop(RecordCheckpoint, state="failed", error="BOOM", **common)
            await self._finish(Fail, code="NETWORK_TIMEOUT", retryable=True)
        await self._say_or_stop(RecordCheckpoint, output=OUTPUT + op.name.encode(), **common)

    async def _open(self, op: Op) -> list[int]:
        """Open a wait, or find it again. The result has its number if it is open."""
        fields: dict[str, Any] = {"label": op.name, "fatal": op.fatal}
        now = self.world.loop.time()
        if op.kind == "approval":
            fields["approval"] = ApprovalSpec(
                people=op.people, within_seconds=op.within, action="act", digest=op.digest
            )
            fields["question"] = b"may I?"
        elif op.kind == "event":
            fields["event"] = WaitSpec(event=op.event, within_seconds=op.within)
        elif op.kind == "timer":
            fields["until"] = EPOCH_US + int((now + op.seconds) * 1e6)
        else:
            fields["child"] = StartChild(
                run_id=self.world.workload.new_id(now),
                workflow="child",
                input=str(op.script).encode(),
                on_close=op.on_close,
            )
        reply = await self._say_or_stop(OpenWait, **fields)
        return [] if reply.state == "go_on" or reply.no is None else [reply.no]

    async def _suspend(self, waits: list[int]) -> None:
        """Give up the lease until one of the waits settles. `go_on`: one has settled, so the work continues."""
        reply = await self.say(Suspend, waits=tuple(waits))
        if reply.state != "go_on" or self.stop:
            raise LeaseGone(reply.state)
