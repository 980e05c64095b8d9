"""The acts of simulated workers. They follow the governor's steps, unreliably.

Laws:
1. The order is policy, approval, intention, call, outcome. The next attempt continues from the receipts.
2. A call is not made after its deadline by the worker's own clock, which starts before the intention is sent.
3. The outcome of an earlier attempt's call is looked up if possible. Otherwise the call is repeated if that is safe,
   or left to people.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.errors import TenureError
from tenure.kernel.act_commands import (
    SAFE_TO_REPEAT,
    ActCommand,
    ActReply,
    IntendAct,
    ProposeAct,
    ProposedAct,
    RepeatAct,
    Ruling,
    SettleAct,
    action_digest,
)
from tenure.kernel.act_rows import ReceiptRow
from tenure.simulate.workload import Op

if TYPE_CHECKING:
    from tenure.simulate.worker import Job

CALL_SECONDS = 4.0
ROUNDS_MAX = 6
SETTLE_SECONDS = 2000.0


class CancelRequested(Exception):
    """The worker must stop."""


class StepEnded(Exception):
    """The step has ended, or another worker has its lease."""


class SimulatedAct:
    def __init__(self, job: Job, op: Op) -> None:
        self._job = job
        self._world = job.world
        self._op = op
        lease = job.lease
        name = f"shared-{op.repeats}" if op.shared else f"{lease.run_id}:{op.name}"
        digest = action_digest(
            tenant=lease.tenant,
            run=str(lease.run_id),
            step=lease.name,
            ordinal=op.name,
            connector="sim",
            operation=op.repeats,
            target={},
            fields={"op": op.name},
            key=name,
            tier="low",
        )
        self._act = ProposedAct(
            label=op.name,
            connector="sim",
            operation=op.repeats,
            name=name,
            digest=digest,
            repeats=op.repeats,
            reversible=True,
        )

    async def do(self) -> int | None:
        """Carry out the act. The result is the wait to suspend on, if there is one."""
        for _ in range(ROUNDS_MAX):
            newest = await self._newest()
            if newest is not None:
                if newest.state in ("succeeded", "reused"):
                    return None
                if newest.state in ("intent", "unknown"):
                    if (wait := await self._settle(newest)) is not None:
                        return wait
                    continue
                if newest.state == "failed" and newest.eligible_at is None:
                    return None
            reply, began = await self._intend()
            if reply.state == "wait":
                return reply.no
            if reply.state == "call":
                await self._call(reply, began)
            elif reply.state == "failed":
                await asyncio.sleep(5.0)
            elif reply.state == "busy":
                return None
        return None

    async def _receipts(self) -> list[ReceiptRow]:
        rows: list[ReceiptRow] = await self._world.network.call_until_answered(
            "read", ("receipts_of", self._job.lease.run_id)
        )
        return rows

    async def _newest(self) -> ReceiptRow | None:
        lease = self._job.lease
        mine = [row for row in await self._receipts() if row.idx == lease.idx and row.label == self._op.name]
        return mine[-1] if mine else None

    async def _say(self, kind: type[ActCommand], **fields: Any) -> ActReply:
        job = self._job
        await job.maybe_pause()
        message = kind(
            context=job.context, run_id=job.lease.run_id, idx=job.lease.idx, n=job.lease.n, **fields
        )
        try:
            reply: ActReply = await self._world.network.call_until_answered("send", message)
        except TenureError as refused:
            if refused.code in ("LEASE_TOO_SHORT", "RECEIPT_SETTLED", "RUN_INVALID_TRANSITION"):
                await asyncio.sleep(1.0)
                return ActReply("settled")
            raise StepEnded(refused.code) from refused
        if reply.state == "cancel":
            job.stop = True
            raise CancelRequested
        if reply.state == "refused":
            raise StepEnded(reply.error or "")
        return reply

    async def _intend(self) -> tuple[ActReply, float]:
        """Ask the policy, then people if it requires them, and record the intention. The second value is when the call's time began."""
        rows = self._world.inspect("load_governance", rows=[(self._job.lease.tenant,)])
        asks = self._op.people > 1
        ruling = Ruling(
            version=rows[0].version if rows else 0,
            outcome="needs_approval" if asks else "allow",
            people=1 if asks else 0,
            within_seconds=self._op.within if asks else None,
        )
        if self._op.fatal and self._world.chaos:
            ruling = msgspec.structs.replace(ruling, outcome="deny")
        approval_no = None
        if ruling.outcome != "allow":
            reply = await self._say(ProposeAct, act=self._act, ruling=ruling, question=b"{}")
            if reply.state != "go_on":
                return reply, 0.0
            approval_no = reply.approval_no
        began = self._world.loop.time()
        intended = await self._say(
            IntendAct,
            act=self._act,
            ruling=ruling,
            approval_no=approval_no,
            request=b"{}",
            call_seconds=CALL_SECONDS,
        )
        return intended, began

    async def _call(self, intended: ActReply, began: float) -> None:
        """Make the call of a receipt, and report its outcome."""
        job, rng = self._job, self._job.rng
        assert intended.no is not None
        self._world.service.expect_call(job.lease.run_id, intended.no, began + CALL_SECONDS)
        await job.maybe_pause()
        await asyncio.sleep(rng.choice((0.01, 1.0, 6.0)) * rng.random())
        if self._world.loop.time() > began + CALL_SECONDS:
            await self._say(
                SettleAct, no=intended.no, state="failed", error="ACTION_LATE", retry_after_seconds=0.0
            )
            return
        receipt = next((row for row in await self._receipts() if row.no == intended.no), None)
        if receipt is None or self._world.loop.time() > began + CALL_SECONDS:
            return
        answer = self._world.service.call(receipt)
        if self._world.chaos and rng.random() < 0.1:
            job.worker.die()
            await self._world.loop.create_future()
        if answer == "done":
            await self._say(SettleAct, no=intended.no, state="succeeded", result=b"{}")
        elif answer == "refused":
            again = rng.choice((None, 0.0, 3.0))
            await self._say(SettleAct, no=intended.no, state="failed", error="X", retry_after_seconds=again)
        elif receipt.repeats not in SAFE_TO_REPEAT:
            await self._say(SettleAct, no=intended.no, state="unknown", settle_within_seconds=SETTLE_SECONDS)

    async def _settle(self, newest: ReceiptRow) -> int | None:
        """Settle an earlier call (law 3). The result is the wait to suspend on, if there is one."""
        if newest.repeats != "none" and self._world.service.has(newest.tenant, newest.name):
            await self._say(SettleAct, no=newest.no, state="succeeded", result=b"{}")
            return None
        allowed = newest.state == "intent" and newest.settled_by is not None
        # Some workers ask to repeat any call; the kernel must refuse.
        disobedient = self._world.chaos and self._job.rng.random() < 0.3
        if newest.repeats in SAFE_TO_REPEAT or allowed or disobedient:
            began = self._world.loop.time()
            reply = await self._say(RepeatAct, no=newest.no, call_seconds=CALL_SECONDS)
            if reply.state == "call":
                await self._call(reply, began)
            if reply.state != "open":
                return None
        reply = await self._say(
            SettleAct, no=newest.no, state="unknown", settle_within_seconds=SETTLE_SECONDS
        )
        return reply.no if reply.state == "wait" else None
