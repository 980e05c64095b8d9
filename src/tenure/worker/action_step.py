"""A step of a plan that is an action.

Laws:
1. The step is one act with one series of receipts, so that no later attempt does it again.
2. If the act is known not to have happened and may be tried again, the attempt fails, and the step's own retries count.
3. While people decide, and until the act may be tried again, the step gives up its lease.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.errors import TenureError
from tenure.sdk import codec
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.sdk.acts import BUSY_SECONDS
from tenure.sdk.errors import Failure
from tenure.sdk.execution_waits import SHORT_SECONDS
from tenure.sdk.exits import Interrupted, LeaseLost, ReplayMismatch, Suspended
from tenure.sdk.outcomes import LEASE_OVER_CODES

if TYPE_CHECKING:
    from tenure.worker.lease_session import LeaseSession

LABEL = "act"


class _With(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    target: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    key: str = ""
    why: str = ""


class ActionStepAttempt:
    def __init__(self, session: LeaseSession) -> None:
        self._session = session
        self._busy = 0

    async def run(self, body: bytes | None, key: str) -> bytes | None:
        lease = self._session.lease
        try:
            options = msgspec.json.decode(body or b"{}", type=_With)
        except msgspec.DecodeError as wrong:
            problem = f"step {lease.name!r}: with: {wrong}; {lease.tool} takes target, fields, key and why"
            raise Failure("INVALID_INPUT", problem, retryable=False) from wrong
        request = ActRequest(
            label=LABEL,
            action=lease.tool,
            target=options.target,
            fields=options.fields,
            key=options.key or key,
            why=options.why,
            fresh=lease.n == 1,
        )
        while True:
            self._session.check_begin()
            result = await self._act(request)
            if result.state == "done":
                return codec.encode(result.result, f"the output of {lease.name!r}")
            await self._wait_to_repeat(result)
            request = msgspec.structs.replace(request, fresh=False)

    async def _act(self, request: ActRequest) -> ActResult:
        try:
            return await self._session.act(request)
        except TenureError as refused:
            if refused.code in LEASE_OVER_CODES:
                raise LeaseLost(refused.code) from refused
            if refused.retryable:
                raise Interrupted(refused.code) from refused
            if refused.code != "RUN_CANCELING":
                raise
        return ActResult(state="cancel")

    async def _wait_to_repeat(self, result: ActResult) -> None:
        """Wait until the act may be requested again. Raises if it will not be."""
        match result.state:
            case "wait":
                await self._suspend(result.no)
            case "failed" if result.code == "ACTION_BUSY" or (result.retry_at and not result.tried):
                await self._pause(result)
            case "failed" | "conflict":
                retryable = result.retry_at is not None
                raise Failure(result.code or "ACTION_FAILED", result.message, retryable=retryable)
            case "misfit":
                raise ReplayMismatch(result.message)
            case "refused":
                raise LeaseLost(result.code or "refused")
            case _:
                self._session.heartbeat_now()
                await asyncio.get_running_loop().create_future()  # until the cancellation arrives

    async def _suspend(self, no: int | None) -> None:
        assert no is not None
        reply = await self._session.suspend((no,))
        if reply.state == "suspended":
            raise Suspended("waiting")
        if reply.state != "go_on":  # refused, or canceled
            raise LeaseLost(reply.state)

    async def _pause(self, result: ActResult) -> None:
        """Pause until the act may be tried: in memory if the pause is short, else suspended."""
        session = self._session
        until = result.retry_at
        if result.code == "ACTION_BUSY":
            until = session.now_us() + round(BUSY_SECONDS[min(self._busy, len(BUSY_SECONDS) - 1)] * 1e6)
            self._busy += 1
        assert until is not None
        left = (until - session.now_us()) / 1e6
        if left < SHORT_SECONDS:
            await session.pause(max(left, 0.0))
            return
        await self._suspend((await session.open_wait(f"{LABEL}!{until}", until=until)).no)
