"""Makes governed calls and records their outcomes, also for calls whose caller was lost.

Laws:
1. A call begins only under its own INTENT and before its deadline, which is compared with the boot clock just before the call.
2. The connector classifies a failure: not done (FAILED, and retried if that may help) or unknown (rule 24).
3. If the answer of a call is lost, the effect is looked up. If it is not found, the call is repeated only if that is safe
   (`native_key`, `sets_state`) or a person said so; otherwise people are asked. "Not found" alone never permits a second call.
4. If a repeated call was not done, that says nothing about the first call.
5. A call whose deadline passed before it was made (ACTION_LATE) does not fail permanently: its receipt says that it was not made, and it
   may be intended again. The caller decides how often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from tenure import clock, ids
from tenure.artifacts import ArtifactStore
from tenure.chance import SystemChance
from tenure.errors import TenureError
from tenure.govern.connector import CallFault, Connector, ConnectorCall, FoundEffect
from tenure.govern.connectors.faults import LATE, call_failed, classify_safely
from tenure.govern.proposals import encode_proposal
from tenure.kernel import profiles, retry
from tenure.kernel.act_commands import SAFE_TO_REPEAT, ActCommand, ActReply, ProposedAct, RepeatAct, SettleAct
from tenure.kernel.commands import Context
from tenure.kernel.decide.validation import is_name
from tenure.kernel.lease_types import Lease
from tenure.limits import CODE_CHARS_MAX
from tenure.logs import get_logger
from tenure.sdk import codec
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.store.port import Store
from tenure.store.replay import ReplayAct

log = get_logger(__name__)
T = TypeVar("T")

CALL_SECONDS = 30.0
"""The most a call may take, if its lease does not end earlier."""
READ_SECONDS = 10.0
"""The most a look-up may take."""
MESSAGE_CHARS_MAX = 2_000
REPEAT_SECONDS_MAX = 900.0
"""How long after its INTENT a call is repeated automatically. After that people are asked."""
REPEAT_PAUSE_SECONDS = (1.0, 60.0)
"""The pause between repeated calls, which grows with their age between these limits."""
LATE_MESSAGE = "the call's deadline passed before the call was made; nothing was sent"
SETTLE_PAUSE_SECONDS = 0.2
UNANSWERED_MAX = 10_000


class ActOrchestrator(Protocol):
    @property
    def store(self) -> Store: ...

    async def send(self, command: ActCommand) -> ActReply: ...


class ActLease(msgspec.Struct, frozen=True, kw_only=True):
    run_id: int
    idx: int
    n: int
    tenant: str
    step: str
    profile: str
    until: Callable[[], float]
    """Until when the lease is certainly held, as known at the time of the call, by `clock.boot_seconds()`. Heartbeats continue while an act
    waits for its policy.
    """

    @classmethod
    def of(cls, lease: Lease, until: Callable[[], float]) -> ActLease:
        return cls(
            run_id=lease.run_id,
            idx=lease.idx,
            n=lease.n,
            tenant=lease.tenant,
            step=lease.name,
            profile=lease.profile,
            until=until,
        )


class PendingAct(msgspec.Struct, frozen=True, kw_only=True):
    fence: ActLease
    ask: ActRequest
    connector: Connector | None
    """None if this process has no connector for the action."""
    operation: str
    proposed: ProposedAct

    def head(self) -> dict[str, Any]:
        """The fields that all commands about the act begin with."""
        fence = self.fence
        return {
            "run_id": fence.run_id,
            "idx": fence.idx,
            "n": fence.n,
            "tenant": fence.tenant,
            "context": Context(
                "system:governor", "system", f"{ids.run_text(fence.run_id)}.{fence.idx}.{fence.n}"
            ),
        }

    def call(self, deadline: float) -> ConnectorCall:
        return ConnectorCall(
            tenant=self.fence.tenant,
            operation=self.operation,
            target=self.ask.target,
            fields=self.ask.fields,
            key=self.proposed.name,
            deadline=deadline,
        )


class ActCaller:
    def __init__(
        self, orchestrator: ActOrchestrator, artifacts: ArtifactStore, now_us: Callable[[], int]
    ) -> None:
        self._orchestrator = orchestrator
        self._artifacts = artifacts
        self._now_us = now_us
        self._chance = SystemChance()
        self._unanswered: dict[tuple[int, int], None] = {}
        """Receipts of calls that this process made and that ended without an answer."""
        self.call_seconds = CALL_SECONDS

    # ----------------------------------------------------------------------------------- before the call

    async def state_before(self, action: PendingAct) -> tuple[bytes | None, ActResult | None]:
        """The state to keep for a later undo; or, for a reversal, the conflict that forbids it."""
        connector, expects = action.connector, action.ask.expects
        if connector is None or not (action.proposed.reversible or expects is not None):
            return None, None
        try:
            state = await _read(action, connector.state)
        except Exception as raised:
            fault = classify_safely(connector, raised)
            later = self._now_us() + round((fault.retry_after_seconds or 0.0) * 1e6)
            retryable = fault.retryable or fault.outcome == "unknown"
            return None, _failed(fault, retry_at=later if retryable else None)
        changed = [name for name, value in (expects or {}).items() if (state or {}).get(name) != value]
        if changed:
            message = f"{', '.join(sorted(changed))} of the target changed since it was written"
            return None, ActResult(state="conflict", code="ACTION_CONFLICT", message=message)
        return (None if state is None else await self.encode_stored(action, state)), None

    async def encode_stored(self, action: PendingAct, value: Any) -> bytes:
        """A value as it is stored: a large one goes to the artifacts."""
        body = msgspec.json.encode(value, order="sorted")
        if len(body) > codec.INLINE_BYTES_MAX or body.startswith(codec.RESERVED):
            return await self._artifacts.put(body, ids.run_text(action.fence.run_id))
        return body

    def question(self, action: PendingAct, rationale: list[str]) -> bytes:
        """The question to people: the connector's rendering of the action, why they are asked, and separately the agent's own words."""
        ask, connector = action.ask, action.connector
        return encode_proposal(
            action=ask.action,
            target=ask.target,
            fields=ask.fields,
            rendered=[] if connector is None else connector.render(action.operation, ask.target, ask.fields),
            rationale=rationale,
            why=ask.why[:MESSAGE_CHARS_MAX],
        )

    # ---------------------------------------------------------------------------------------- the call

    async def call(
        self,
        action: PendingAct,
        intended: ActReply,
        began: float,
        *,
        tries: int,
        first: ReplayAct | None = None,
    ) -> ActResult:
        """Make an intended call and record its outcome. `first` is the receipt of a call that is repeated although it may have been made."""
        assert action.connector is not None
        assert intended.no is not None
        self._unanswered.pop((action.fence.run_id, intended.no), None)
        # The store's clock had not reached this point when the commit was requested, so this much of the granted time is certain. The
        # store granted no more than the lease had left, whatever this process knew of the lease.
        assert intended.call_seconds is not None, "a reply that permits a call has its duration"
        deadline = began + min(self.call_seconds, intended.call_seconds)
        try:
            if clock.boot_seconds() >= deadline:  # law 1
                raise call_failed("not_done", LATE, LATE_MESSAGE, retryable=True)
            async with asyncio.timeout(deadline - clock.boot_seconds()):
                result = await action.connector.call(action.call(deadline))
        except Exception as raised:
            fault = classify_safely(action.connector, raised)
        else:
            return await self._record_success(action, intended.no, result)
        intent_at = self._now_us() if first is None else first.intent_at
        if fault.outcome == "unknown":
            return await self._recover_answer(action, intended.no, fault, intent_at)
        if first is None:
            return await self._record_failure(action, intended.no, fault, tries)
        if fault.retryable:
            return await self._repeat_later(action, intended.no, fault, intent_at)
        return await self._ask_people(action, intended.no, fault)  # law 4

    async def _record_success(self, action: PendingAct, no: int, result: Any) -> ActResult:
        await self._settle(action, no=no, state="succeeded", result=await self.encode_stored(action, result))
        return ActResult(state="done", result=msgspec.json.decode(msgspec.json.encode(result)), receipt=no)

    async def _record_failure(self, action: PendingAct, no: int, fault: CallFault, tries: int) -> ActResult:
        reply = await self._settle(
            action,
            no=no,
            state="failed",
            error=_code(fault),
            result=msgspec.json.encode(fault.message[:MESSAGE_CHARS_MAX]),
            retry_after_seconds=self._retry_after(action, fault, tries),
        )
        return _failed(fault, retry_at=reply.eligible_at, receipt=no, tried=True)

    def _retry_after(self, action: PendingAct, fault: CallFault, tries: int) -> float | None:
        if not fault.retryable:
            return None
        asked = fault.retry_after_seconds or 0.0
        if action.ask.retries is None:
            return asked
        if tries > action.ask.retries and fault.code != LATE:  # law 5
            return None
        tries = min(tries, max(1, action.ask.retries))
        timing = profiles.for_display(action.fence.profile).timing
        return max(asked, retry.delay_us(timing.backoff, tries, timing.jitter, self._chance, None) / 1e6)

    # ----------------------------------------------------------------------------------------- lost answers

    async def _recover_answer(
        self, action: PendingAct, no: int, fault: CallFault, intent_at: int
    ) -> ActResult:
        """Find out what happened to a call of this process whose answer is lost (law 3)."""
        if (found := await self._look_up(action)) is not None:
            return await self._record_success(action, no, found.result)
        if action.proposed.repeats in SAFE_TO_REPEAT:
            return await self._repeat_later(action, no, fault, intent_at)
        return await self._ask_people(action, no, fault)

    async def _repeat_later(self, action: PendingAct, no: int, fault: CallFault, intent_at: int) -> ActResult:
        """Leave the act intended and repeat the call under the same key, for a limited time."""
        now = self._now_us()
        age = (now - intent_at) / 1e6
        if age >= REPEAT_SECONDS_MAX:
            return await self._ask_people(action, no, fault)
        while len(self._unanswered) >= UNANSWERED_MAX:
            del self._unanswered[next(iter(self._unanswered))]
        self._unanswered[action.fence.run_id, no] = None
        least, most = REPEAT_PAUSE_SECONDS
        pause = max(min(max(age, least), most), fault.retry_after_seconds or 0.0)
        return _failed(fault, retry_at=now + round(pause * 1e6), receipt=no)

    async def _ask_people(self, action: PendingAct, no: int, fault: CallFault) -> ActResult:
        question = self.question(action, [f"{fault.code}: {fault.message}"[:MESSAGE_CHARS_MAX]])
        reply = await self._settle(action, no=no, state="unknown", error=_code(fault), question=question)
        if reply.state == "wait":
            return ActResult(state="wait", no=reply.no, receipt=no)
        return ActResult(state="cancel", receipt=no)  # a run that is being canceled asks no people

    async def settle(self, action: PendingAct, known: ReplayAct) -> ActResult:
        """Settle an open receipt: find out what happened to a call whose caller was lost (law 3)."""
        if known.state == "unknown" and known.wait_no is not None:
            return ActResult(state="wait", no=known.wait_no, receipt=known.no)
        if action.connector is None:
            no_connector = CallFault(
                outcome="unknown",
                code="UNKNOWN_OPERATION",
                message="this process no longer has a connector for the action",
            )
            return await self._ask_people(action, known.no, no_connector)
        if known.state == "intent" and known.by_person:
            return await self._repeat(action, known, None)
        safe = action.proposed.repeats in SAFE_TO_REPEAT and known.repeats in SAFE_TO_REPEAT
        ours = safe and (action.fence.run_id, known.no) in self._unanswered
        if not ours and known.n == action.fence.n and known.call_by > self._now_us():
            # Another process may be making this call under the same lease. Its answer would be recorded for both calls.
            return ActResult(state="failed", code="ACTION_BUSY", retry_at=known.call_by, receipt=known.no)
        if (found := await self._look_up(action)) is not None:
            return await self._record_success(action, known.no, found.result)
        lost = CallFault(
            outcome="unknown",
            code="CONNECTOR_ANSWER_LOST",
            message="the process that made the call was lost before the answer was recorded",
        )
        if not safe or self._now_us() - known.intent_at >= REPEAT_SECONDS_MAX * 1e6:
            return await self._ask_people(action, known.no, lost)
        return await self._repeat(action, known, known)

    async def _repeat(self, action: PendingAct, known: ReplayAct, first: ReplayAct | None) -> ActResult:
        began = clock.boot_seconds()
        reply = await self._orchestrator.send(
            RepeatAct(**action.head(), no=known.no, call_seconds=self.call_seconds)
        )
        if reply.state == "call":
            return await self.call(action, reply, began, tries=known.try_no, first=first)
        if reply.state == "cancel":
            return ActResult(state="cancel")
        if reply.state == "refused":
            return ActResult(state="refused", code=reply.error or "")
        # It was settled meanwhile, or must not be repeated any more: the caller looks again.
        return ActResult(state="failed", code="ACTION_BUSY", retry_at=self._now_us(), receipt=known.no)

    async def _look_up(self, action: PendingAct) -> FoundEffect | None:
        """The effect of a call that may have been made, if it can be found."""
        assert action.connector is not None
        try:
            return await _read(action, action.connector.lookup)
        except Exception as raised:  # a failed look-up proves nothing
            log.warning("lookup_failed", run=ids.run_text(action.fence.run_id), error=type(raised).__name__)
            return None

    async def _settle(self, action: PendingAct, **outcome: Any) -> ActReply:
        """Record the outcome of a call. Retries while the store is unavailable and the lease may still be held."""
        message = SettleAct(**action.head(), **outcome)
        while True:
            try:
                return await self._orchestrator.send(message)
            except TenureError as refused:
                if not refused.retryable or clock.boot_seconds() >= action.fence.until():
                    raise
                await asyncio.sleep(SETTLE_PAUSE_SECONDS)


async def _read(action: PendingAct, read: Callable[[ConnectorCall], Awaitable[T]]) -> T:
    """Await a read of the connector, for a limited time and as long as the lease is held."""
    deadline = min(action.fence.until(), clock.boot_seconds() + READ_SECONDS)
    async with asyncio.timeout(max(deadline - clock.boot_seconds(), 0.0)):
        return await read(action.call(deadline))


def _code(fault: CallFault) -> str:
    return fault.code if is_name(fault.code, 1, CODE_CHARS_MAX) else "ACTION_FAILED"


def _failed(
    fault: CallFault, *, retry_at: int | None = None, receipt: int | None = None, tried: bool = False
) -> ActResult:
    return ActResult(
        state="failed",
        code=_code(fault),
        message=fault.message[:MESSAGE_CHARS_MAX],
        retry_at=retry_at,
        receipt=receipt,
        tried=tried,
    )
