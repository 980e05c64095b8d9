"""The call, and what became of it; also of calls whose caller was lost.

Laws:
1. A call is begun only under its own INTENT, before its deadline by the clock since boot, which is looked at just before.
2. What a fault means its connector says: not done (FAILED, and tried again where that may help) or unknown (decision 24).
3. An answer that was lost is looked for. If it is not found, the call is made again only where that is safe (`native_key`,
   `sets_state`) or a person said so; else people are asked. "Not found" never permits a second call.
4. Of a call that was made again, "not done" says nothing about the first one.
5. A call that was not made because its time was over (ACTION_LATE) never fails for good here: its receipt says that it was not made,
   and it may be intended anew. Whoever asks decides how often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tenure import clock, ids
from tenure.artifacts import Artifacts
from tenure.errors import TenureError
from tenure.govern.asking import proposal
from tenure.govern.connector import Call, Connector, Fault
from tenure.govern.connectors.faults import LATE
from tenure.kernel import profiles, retry
from tenure.kernel.actions import SAFE_TO_REPEAT, ActMessage, ActReply, Proposed, RepeatAct, SettleAct
from tenure.kernel.commands import Context
from tenure.kernel.decide.checks import is_name
from tenure.kernel.decide.leases import Lease
from tenure.limits import CODE_CHARS_MAX
from tenure.logs import get_logger
from tenure.orchestrator.chance import SystemChance
from tenure.sdk import codec
from tenure.sdk.acting import Ask, Told
from tenure.store.acting import Acted
from tenure.store.port import Store

log = get_logger(__name__)

CALL_SECONDS = 30.0
"""How long a call may take, where its lease does not end before."""
READ_SECONDS = 10.0
"""How long looking something up may take."""
MESSAGE_CHARS_MAX = 2_000
REPEAT_SECONDS_MAX = 900.0
"""For how long after its INTENT a call is made again by itself; then people are asked."""
REPEAT_PAUSE_SECONDS = (1.0, 60.0)
"""Between two of them: as long as it has been tried, within these."""
SETTLE_PAUSE_SECONDS = 0.2
UNANSWERED_MAX = 10_000


class Office(Protocol):
    """Where messages about acts are carried out: the orchestrator."""

    @property
    def store(self) -> Store:
        """The database, for reading."""
        ...

    async def send(self, command: ActMessage) -> ActReply:
        """Carry out a message."""
        ...


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """Whose act it is: a lease, and how long it is held."""

    run_id: int
    idx: int
    n: int
    tenant: str
    step: str
    profile: str
    until: Callable[[], float]
    """Until when it is held for certain, as far as that is known at the moment of asking: heartbeats go on while an act waits
    for its policy. By `clock.boot_seconds()`."""

    @classmethod
    def of(cls, lease: Lease, until: Callable[[], float]) -> Fence:
        """The fence of a lease."""
        return cls(
            run_id=lease.run_id,
            idx=lease.idx,
            n=lease.n,
            tenant=lease.tenant,
            step=lease.name,
            profile=lease.profile,
            until=until,
        )


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """An action that is being done."""

    fence: Fence
    ask: Ask
    connector: Connector | None
    """None where there is none here that knows it."""
    operation: str
    proposed: Proposed

    def head(self) -> dict[str, Any]:
        """The address of a message about it."""
        fence = self.fence
        cause = f"{ids.run_text(fence.run_id)}.{fence.idx}.{fence.n}"
        return {
            "run_id": fence.run_id,
            "idx": fence.idx,
            "n": fence.n,
            "tenant": fence.tenant,
            "context": Context("system:governor", "system", cause),
        }

    def call(self, deadline: float) -> Call:
        """What its connector is told."""
        return Call(
            tenant=self.fence.tenant,
            operation=self.operation,
            target=self.ask.target,
            fields=self.ask.fields,
            key=self.proposed.name,
            deadline=deadline,
        )


class Settling:
    """See the laws above."""

    def __init__(self, office: Office, artifacts: Artifacts, now_us: Callable[[], int]) -> None:
        self._office = office
        self._artifacts = artifacts
        self._now_us = now_us
        self._chance = SystemChance()
        self._unanswered: dict[tuple[int, int], None] = {}
        """Receipts of calls that were made here and have ended without an answer."""
        self.call_seconds = CALL_SECONDS

    # --------------------------------------------------------------------------------------- before it

    async def state_before(self, action: Action) -> tuple[bytes | None, Told | None]:
        """The state to be kept of what can be taken back; and, of a reversal, the conflict that forbids it."""
        connector, expects = action.connector, action.ask.expects
        if connector is None or not (action.proposed.reversible or expects is not None):
            return None, None
        deadline = min(action.fence.until(), clock.boot_seconds() + READ_SECONDS)
        try:
            async with asyncio.timeout(max(deadline - clock.boot_seconds(), 0.0)):
                state = await connector.state(action.call(deadline))
        except Exception as raised:
            fault = _classified(connector, raised)
            later = self._now_us() + round((fault.retry_after_seconds or 0.0) * 1e6)
            may = fault.retryable or fault.outcome == "unknown"
            return None, _failed(fault, retry_at=later if may else None)
        if expects is not None:
            changed = sorted(name for name, value in expects.items() if (state or {}).get(name) != value)
            if changed:
                said = f"{', '.join(changed)} of the target is no longer what was written"
                return None, Told(state="conflict", code="ACTION_CONFLICT", message=said)
        return (None if state is None else await self.aside(action, state)), None

    async def aside(self, action: Action, value: Any) -> bytes:
        """A value as it is kept: a large one goes to the artifacts."""
        body = msgspec.json.encode(value, order="sorted")
        if len(body) > codec.INLINE_BYTES_MAX or body.startswith(codec.RESERVED):
            return await self._artifacts.put(body, ids.run_text(action.fence.run_id))
        return body

    def question(self, action: Action, rationale: list[str]) -> bytes:
        """What people are shown: what is proposed in its connector's words, why they are asked, and the agent's own words apart."""
        ask, rendered = action.ask, []
        if action.connector is not None:
            rendered = action.connector.render(action.operation, ask.target, ask.fields)
        return proposal(
            action=ask.action,
            target=ask.target,
            fields=ask.fields,
            rendered=rendered,
            rationale=rationale,
            why=ask.why[:MESSAGE_CHARS_MAX],
        )

    # ---------------------------------------------------------------------------------------- the call

    async def call(
        self, action: Action, intended: ActReply, began: float, *, tries: int, first: Acted | None = None
    ) -> Told:
        """Make a call that was intended, and record what became of it. `first` is the receipt of one that is made again
        although it may have been made before."""
        assert action.connector is not None
        assert intended.no is not None
        self._unanswered.pop((action.fence.run_id, intended.no), None)
        # The store's clock was not yet this far when the commit was asked for: so much of the time it gave is certain. It gave no
        # more than the lease had left by then, whatever was known of the lease here.
        assert intended.call_seconds is not None, "whoever may call is told for how long"
        deadline = began + min(self.call_seconds, intended.call_seconds)
        try:
            if clock.boot_seconds() >= deadline:  # law 1
                raise _Late
            async with asyncio.timeout(deadline - clock.boot_seconds()):
                result = await action.connector.call(action.call(deadline))
        except _Late:
            late = "the time for the call was over before it was made"
            fault = Fault(outcome="not_done", code=LATE, message=late, retryable=True)
        except Exception as raised:
            fault = _classified(action.connector, raised)
        else:
            return await self._succeeded(action, intended.no, result)
        if fault.outcome == "unknown":
            return await self._lost(
                action, intended.no, fault, self._now_us() if first is None else first.intent_at
            )
        if first is not None:
            return await self._refused_again(action, intended.no, fault, first)
        return await self._failed(action, intended.no, fault, tries)

    async def _succeeded(self, action: Action, no: int, result: Any) -> Told:
        body = await self.aside(action, result)
        await self._say(SettleAct(**action.head(), no=no, state="succeeded", result=body), action)
        return Told(state="done", result=msgspec.json.decode(msgspec.json.encode(result)), receipt=no)

    async def _failed(self, action: Action, no: int, fault: Fault, tries: int) -> Told:
        """It is known not to have happened."""
        after = self._retry_after(action, fault, tries)
        message = fault.message[:MESSAGE_CHARS_MAX]
        reply = await self._say(
            SettleAct(
                **action.head(),
                no=no,
                state="failed",
                error=_code(fault),
                result=msgspec.json.encode(message),
                retry_after_seconds=after,
            ),
            action,
        )
        return _failed(fault, retry_at=reply.eligible_at, receipt=no, tried=True)

    def _retry_after(self, action: Action, fault: Fault, tries: int) -> float | None:
        if not fault.retryable:
            return None
        asked = fault.retry_after_seconds or 0.0
        if action.ask.retries is None:
            return asked
        if tries > action.ask.retries and fault.code != LATE:  # law 5
            return None
        tries = min(tries, max(1, action.ask.retries))
        timing = profiles.words_of(action.fence.profile).timing
        return max(asked, retry.delay_us(timing.backoff, tries, timing.jitter, self._chance, None) / 1e6)

    # ------------------------------------------------------------------------------- answers that were lost

    async def _lost(self, action: Action, no: int, fault: Fault, intent_at: int) -> Told:
        """Law 3, for a call of ours."""
        found = await self._looked_up(action)
        if found is not None:
            return await self._succeeded(action, no, found[0])
        if action.proposed.repeats in SAFE_TO_REPEAT:
            return await self._again_later(action, no, fault, intent_at)
        return await self._ask_people(action, no, fault)

    async def _again_later(self, action: Action, no: int, fault: Fault, intent_at: int) -> Told:
        """It stays intended, and is called again under the same key: soon at first, for a while."""
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

    async def _refused_again(self, action: Action, no: int, fault: Fault, first: Acted) -> Told:
        """Law 4."""
        if fault.retryable:
            return await self._again_later(action, no, fault, first.intent_at)
        return await self._ask_people(action, no, fault)

    async def _ask_people(self, action: Action, no: int, fault: Fault) -> Told:
        known = f"{fault.code}: {fault.message}"[:MESSAGE_CHARS_MAX]
        message = SettleAct(
            **action.head(),
            no=no,
            state="unknown",
            error=_code(fault),
            question=self.question(action, [known]),
        )
        reply = await self._say(message, action)
        if reply.state == "wait":
            return Told(state="wait", no=reply.no, receipt=no)
        return Told(state="cancel", receipt=no)  # nobody is asked in a run that is being canceled

    async def settle(self, action: Action, known: Acted) -> Told:
        """An act's receipt is open: what became of a call whose caller was lost; see law 3."""
        if known.state == "unknown" and known.wait_no is not None:
            return Told(state="wait", no=known.wait_no, receipt=known.no)
        if action.connector is None:
            gone = Fault(
                outcome="unknown", code="UNKNOWN_OPERATION", message="no connector here knows it any more"
            )
            return await self._ask_people(action, known.no, gone)
        if known.state == "intent" and known.by_person:
            return await self._repeat(action, known, None)
        safe = action.proposed.repeats in SAFE_TO_REPEAT and known.repeats in SAFE_TO_REPEAT
        ours = safe and (action.fence.run_id, known.no) in self._unanswered
        if not ours and known.n == action.fence.n and known.call_by > self._now_us():
            # It may be under way in another process that acts for this very lease: what that hears would be said of both calls.
            return Told(state="failed", code="ACTION_BUSY", retry_at=known.call_by, receipt=known.no)
        found = await self._looked_up(action)
        if found is not None:
            return await self._succeeded(action, known.no, found[0])
        lost = Fault(
            outcome="unknown",
            code="CONNECTOR_ANSWER_LOST",
            message="whoever made the call was lost before it was answered",
        )
        if not safe:
            return await self._ask_people(action, known.no, lost)
        if self._now_us() - known.intent_at >= REPEAT_SECONDS_MAX * 1e6:
            return await self._ask_people(action, known.no, lost)
        return await self._repeat(action, known, known)

    async def _repeat(self, action: Action, known: Acted, first: Acted | None) -> Told:
        began = clock.boot_seconds()
        repeat = RepeatAct(**action.head(), no=known.no, call_seconds=self.call_seconds)
        reply = await self._office.send(repeat)
        if reply.state == "call":
            return await self.call(action, reply, began, tries=known.try_no, first=first)
        if reply.state == "cancel":
            return Told(state="cancel")
        if reply.state == "refused":
            return Told(state="refused", code=reply.error or "")
        # It was settled meanwhile, or may not be repeated any more: it is looked at again.
        return Told(state="failed", code="ACTION_BUSY", retry_at=self._now_us(), receipt=known.no)

    async def _looked_up(self, action: Action) -> tuple[Any] | None:
        """What a call that may have been made has done, if that can be found."""
        assert action.connector is not None
        deadline = min(action.fence.until(), clock.boot_seconds() + READ_SECONDS)
        try:
            async with asyncio.timeout(max(deadline - clock.boot_seconds(), 0.0)):
                found = await action.connector.lookup(action.call(deadline))
        except Exception as raised:  # it says nothing at all
            log.warning("lookup_failed", run=ids.run_text(action.fence.run_id), error=type(raised).__name__)
            return None
        return None if found is None else (found.result,)

    async def _say(self, message: SettleAct, action: Action) -> ActReply:
        """Record what became of a call, again while the store is away and the lease may be ours."""
        while True:
            try:
                return await self._office.send(message)
            except TenureError as refused:
                if not refused.retryable or clock.boot_seconds() >= action.fence.until():
                    raise
                await asyncio.sleep(SETTLE_PAUSE_SECONDS)


class _Late(Exception):
    """A call was not made in time."""


def _classified(connector: Connector, raised: Exception) -> Fault:
    try:
        return connector.classify(raised)
    except Exception as broken:  # a connector that cannot say what a fault means says nothing
        log.error("classify_failed", connector=connector.name, error=type(broken).__name__)
        return Fault(outcome="unknown", code="CONNECTOR_ANSWER_LOST", message=type(raised).__name__)


def _code(fault: Fault) -> str:
    return fault.code if is_name(fault.code, 1, CODE_CHARS_MAX) else "ACTION_FAILED"


def _failed(
    fault: Fault, *, retry_at: int | None = None, receipt: int | None = None, tried: bool = False
) -> Told:
    return Told(
        state="failed",
        code=_code(fault),
        message=fault.message[:MESSAGE_CHARS_MAX],
        retry_at=retry_at,
        receipt=receipt,
        tried=tried,
    )
