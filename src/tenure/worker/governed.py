"""A step of a plan that is an action on the world.

Laws:
1. It is one act of its step, whatever happens: its receipts are those of the step, and no try of it does it twice.
2. What is known not to have happened and may be tried again is a failed try of the step: its own retries count.
3. While people are asked, and until it may be tried again, the step lets go of its lease.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from tenure.errors import TenureError
from tenure.sdk import codec
from tenure.sdk.acting import Ask, Told
from tenure.sdk.acts import BUSY_SECONDS
from tenure.sdk.faults import Failure, Interrupted, LeaseLost, Misfit, Suspended
from tenure.sdk.outcomes import LOST
from tenure.sdk.waiting import SHORT_SECONDS

if TYPE_CHECKING:
    from tenure.worker.held import Held

LABEL = "act"


class _With(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a step says that uses an action."""

    target: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    key: str = ""
    why: str = ""


class Governed:
    """One try of such a step; see the laws above."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._busy = 0

    async def run(self, body: bytes | None, key: str) -> bytes | None:
        """Do it; what the other side answered."""
        lease = self._held.lease
        try:
            said = msgspec.json.decode(body or b"{}", type=_With)
        except msgspec.DecodeError as wrong:
            problem = f"step {lease.name!r}: with: {wrong}; {lease.tool} takes target, fields, key and why"
            raise Failure("INVALID_INPUT", problem, retryable=False) from wrong
        ask = Ask(
            label=LABEL,
            action=lease.tool,
            target=said.target,
            fields=said.fields,
            key=said.key or key,
            why=said.why,
            fresh=lease.n == 1,
        )
        while True:
            self._held.check_begin()
            told = await self._told(ask)
            if told.state == "done":
                return codec.encode(told.result, f"the output of {lease.name!r}")
            await self._go_on(told)
            ask = msgspec.structs.replace(ask, fresh=False)

    async def _told(self, ask: Ask) -> Told:
        try:
            return await self._held.act(ask)
        except TenureError as refused:
            if refused.code in LOST:
                raise LeaseLost(refused.code) from refused
            if refused.retryable:
                raise Interrupted(refused.code) from refused
            if refused.code != "RUN_CANCELING":
                raise
        return Told(state="cancel")

    async def _go_on(self, told: Told) -> None:
        """What it means that it was not done; returns when it is to be asked for again."""
        if told.state == "wait":
            assert told.no is not None
            await self._suspend(told.no)
        elif told.state == "failed" and (told.code == "ACTION_BUSY" or (told.retry_at and not told.tried)):
            await self._pause(told)
        else:
            await self._end(told)

    async def _end(self, told: Told) -> NoReturn:
        if told.state in ("failed", "conflict"):
            retryable = told.retry_at is not None
            raise Failure(told.code or "ACTION_FAILED", told.message, retryable=retryable)
        if told.state == "misfit":
            raise Misfit(told.message)
        if told.state == "refused":
            raise LeaseLost(told.code or "refused")
        self._held.hurry()
        await asyncio.get_running_loop().create_future()  # until the cancellation is heard of
        raise AssertionError("never ends")

    async def _suspend(self, no: int) -> None:
        """Let go until it has settled; returns at once where it has."""
        reply = await self._held.suspend((no,))
        if reply.state == "suspended":
            raise Suspended("it waits")
        if reply.state != "go_on":  # refused, or canceled: the run has moved on without us
            raise LeaseLost(reply.state)

    async def _pause(self, told: Told) -> None:
        """Until it may be tried: here, or suspended when that is long."""
        held = self._held
        until = told.retry_at
        if told.code == "ACTION_BUSY":
            until = held.now_us() + round(BUSY_SECONDS[min(self._busy, len(BUSY_SECONDS) - 1)] * 1e6)
            self._busy += 1
        assert until is not None
        left = (until - held.now_us()) / 1e6
        if left < SHORT_SECONDS:
            await held.pause(max(left, 0.0))
            return
        reply = await held.open_wait(f"{LABEL}!{until}", until=until)
        assert reply.no is not None
        await self._suspend(reply.no)
