"""Acts of a workflow: asked for in its body, done by a governor behind the line.

Laws:
1. The receipt of an act is what a replay finds: one that was done or has failed for good is not asked for again. What went
   wrong before there was a receipt is recorded as a checkpoint, so that a replay sees the same.
2. An act begins only when everything its run recorded before is durable.
3. What a policy or people refuse has ended the run: nobody catches it.
4. What was not made because its time was over is tried again: under this lease as often as the act's retries say, then this attempt
   fails and the next one goes on (within the attempts of the run's step).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.canonical import is_equal
from tenure.errors import TenureError
from tenure.kernel.decide.checks import is_name
from tenure.kernel.retry import Rng, delay_us
from tenure.limits import CODE_CHARS_MAX, RETRIES_MAX
from tenure.sdk import codec, here
from tenure.sdk.acting import Ask, Told
from tenure.sdk.definitions import Workflow
from tenure.sdk.faults import ActionConflict, ActionFailed, ActionLate, LeaseLost
from tenure.sdk.frame import Frame
from tenure.sdk.line import Line
from tenure.sdk.outcomes import MESSAGE_CHARS_MAX
from tenure.sdk.past import BESIDE, Past
from tenure.sdk.turns import NEW
from tenure.sdk.waiting import STOPPED, Waiting
from tenure.store.acting import Acted
from tenure.store.port import Recorded

LATE = "ACTION_LATE"
BUSY_SECONDS = (0.5, 1.0, 2.0, 4.0, 30.0, 60.0, 300.0)
"""Pauses while another run does the action of the same key."""
_ACTION = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
DONE = frozenset({"succeeded", "reused", "reversed"})
"""Receipts of an act that was done. (One that was taken back later was done all the same.)"""


class Acting(Waiting):
    """See the laws above."""

    def __init__(self, workflow: Workflow[..., Any], line: Line, past: Past, chance: Rng) -> None:
        super().__init__(line, past, workflow.steps_max)
        self.workflow = workflow
        self.at_work: dict[str, Frame] = {}
        """The steps that are being tried now, by key."""
        self._chance = chance

    async def act(self, ask: Ask) -> Any:
        """Have something done; what the other side answered."""
        key = ask.label
        self.unbegun.pop(key, None)
        self.check()
        if self.closed:
            raise asyncio.CancelledError  # a task that comes to it when the workflow has ended
        tries = 0
        if self.past:
            recorded, known = self.past.checkpoints.get(key), self.past.acts.get(key)
            if known is not None:
                await self._check_same(known, ask)
            elif recorded is None and key not in self.past.proposed:
                self._fit(self.past.check_new_act, key)
            if recorded is not None:
                tries = await self._refused_before(ask, recorded)
            if known is not None and known.state in DONE:
                await self.turns.take((known.settled_at or 0, known.no))
                return _value(await self.fetched(known.result))
            if known is not None and known.state == "failed" and known.eligible_at is None:
                await self.turns.take((known.settled_at or 0, known.no))
                raise ActionFailed(
                    ask.action, known.error or "ACTION_FAILED", _text(await self.fetched(known.result))
                )
        try:
            value = await self._done(ask, tries)
        except asyncio.CancelledError:
            if self.goes_on():
                self.record(key, state="failed", error=STOPPED, tries=0)
            raise
        except (ActionFailed, ActionConflict):
            await self._in_turn()
            raise
        await self._in_turn()
        return value

    async def _in_turn(self) -> None:
        """Of several strands, as a replay will give them: one by one."""
        if self.at_work or self.turns.awaited:
            await self.turns.take(NEW)

    async def _check_same(self, known: Acted, ask: Ask) -> None:
        """Another action at the same place is other code."""
        same = known.action == ask.action and ask.key in ("", known.name)
        if same and known.request is not None:
            asked = msgspec.json.decode(await self.fetched(known.request) or b"{}")
            same = is_equal(asked, {"target": ask.target, "fields": ask.fields})
        if not same:
            self.misfit(f"the code asks for {ask.action} at {ask.label!r} where something else was done")

    async def _refused_before(self, ask: Ask, recorded: Recorded) -> int:
        """How often it went wrong before there was a receipt, once the next try is due; raises what it came to."""
        if recorded.error == STOPPED and not recorded.tries:
            await self.never()
        if recorded.next_at is None:
            await self.turns.take((recorded.at, recorded.no))
            message = (await self.fetched(recorded.output) or b"").decode(errors="replace")
            raise _failed(ask.action, recorded.error or "ACTION_FAILED", message)
        await self.pause(f"{ask.label}{BESIDE}{recorded.tries}", recorded.next_at)
        return recorded.tries

    async def _done(self, ask: Ask, tries: int) -> Any:
        """Ask until it is done or will not be."""
        ask = replace(ask, fresh=not self.past)
        late = 0
        busy = sum(label.startswith(f"{ask.label}{BESIDE}") for label in self.past.waits)
        while True:
            await self.barrier()
            if self._letting_go is not None:
                await self.undecided()
            if self.line.draining:
                await self.park()
            told = await self._told(ask)
            ask = replace(ask, fresh=False)
            if told.state == "done":
                return told.result
            if told.state == "wait":
                assert told.no is not None
                await self.wait_for(told.no)
            elif told.state == "conflict":
                await self._not_begun(ask, told, tries + 1, None)
            elif told.state == "failed" and told.code == "ACTION_BUSY":
                length = BUSY_SECONDS[min(busy, len(BUSY_SECONDS) - 1)]
                busy += 1
                await self._pause_until(ask, self.line.now_us() + round(length * 1e6))
            elif told.state == "failed" and told.code == LATE and told.tried:
                late += 1
                if late > (ask.retries or 0):
                    self.end(ActionLate(f"{ask.action} was not made in time {late} times under one lease"))
                    self.check()
                assert told.retry_at is not None, "what was late may be tried again"
                await self._pause_until(ask, told.retry_at)
            elif told.state == "failed" and told.receipt is None:
                tries += 1
                await self._not_begun(ask, told, tries, self._next_at(ask, told, tries))
            elif told.state == "failed" and told.retry_at is not None:
                await self._pause_until(ask, told.retry_at)
            elif told.state == "failed":
                raise ActionFailed(ask.action, told.code, told.message)
            else:
                await self._ended(told)

    async def _told(self, ask: Ask) -> Told:
        try:
            return await self._at_work(self.line.act(ask))
        except TenureError as refused:
            if refused.code != "RUN_CANCELING":
                raise self._trouble(refused) from refused
        return Told(state="cancel")

    async def _pause_until(self, ask: Ask, until: int) -> None:
        await self.pause(f"{ask.label}{BESIDE}{until}", until)

    def _next_at(self, ask: Ask, told: Told, tries: int) -> int | None:
        if told.retry_at is None or tries > (ask.retries or 0):
            return None
        timing = self.workflow.profile.timing
        delay = delay_us(timing.backoff, tries, timing.jitter, self._chance, None)
        return max(told.retry_at, self.line.now_us() + delay)

    async def _not_begun(self, ask: Ask, told: Told, tries: int, next_at: int | None) -> None:
        """Record what went wrong before there was a receipt; see law 1."""
        code = told.code if is_name(told.code, 1, CODE_CHARS_MAX) else "ACTION_FAILED"
        message = told.message[:MESSAGE_CHARS_MAX].encode(errors="replace") or None
        self.record(
            ask.label, state="failed", error=code, message=message, tries=tries, next_at=next_at, meta="{}"
        )
        if next_at is None:
            raise _failed(ask.action, code, told.message)
        await self.barrier()
        await self.pause(f"{ask.label}{BESIDE}{tries}", next_at)

    async def _ended(self, told: Told) -> None:
        """The run has ended, is being canceled, or other code did something else at this place."""
        if told.state == "misfit":
            self.misfit(told.message)
        if told.state == "refused":
            self.end(LeaseLost(told.code or "refused"))
            self.check()
        if self.line.stop.is_set():  # it knows, and asks all the same
            raise asyncio.CancelledError
        self.line.hurry()
        await self.never()


def act(
    action: str,
    *,
    target: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    key: str = "",
    why: str = "",
    retry: int | None = None,
    reverses: tuple[str, int] | None = None,
    expects: Mapping[str, Any] | None = None,
) -> Coroutine[Any, Any, Any]:
    """Do something to the world, as a policy allows it: `await tenure.act("github.label.add", target=…, fields=…)`.

    What the other side answered. `key` is its idempotency key (made from run, step and place where it is left out), `why` the
    agent's own words for the people who are asked, `retry` how often it is tried again where it is known not to have happened.
    An act that takes another back says which receipt it `reverses` (run and number), and what the target must look like for it.

    Raises ActionFailed, and ActionConflict of one that takes another back. What a policy or people refuse ends the run.
    """
    if here.frame() is not None:
        raise TenureError("ACT_IN_STEP")
    scope = here.scope("act")
    if not _ACTION.fullmatch(action):
        raise TenureError("INVALID_INPUT", f"an action is connector.operation, unlike {action[:80]!r}")
    retries = retry if retry is not None else scope.body.workflow.profile.timing.retries
    if not 0 <= retries <= RETRIES_MAX:
        raise TenureError("INVALID_INPUT", f"tenure.act: retry is 0 to {RETRIES_MAX}, not {retries}")
    ask = Ask(
        label=scope.key(f"act:{action}"),
        action=action,
        target=_plain("target", target),
        fields=_plain("fields", fields),
        key=key,
        why=why,
        retries=retries,
        reverses=reverses,
        expects=None if expects is None else _plain("expects", expects),
    )
    return scope.say(ask.label, scope.body.act(ask))


def _plain(name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is asked for as the JSON that is kept of it: a replay compares it."""
    plain = msgspec.json.decode(codec.encode(given or {}, f"{name} of an act") or b"{}")
    if not isinstance(plain, dict):
        raise TenureError("INVALID_INPUT", f"tenure.act: {name} is an object")
    return plain


def _value(body: bytes | None) -> Any:
    return None if body is None else msgspec.json.decode(body)


def _text(body: bytes | None) -> str:
    value = _value(body)
    return value if isinstance(value, str) else ""


def _failed(action: str, code: str, message: str) -> TenureError:
    if code == "ACTION_CONFLICT":
        return ActionConflict(action, message)
    return ActionFailed(action, code, message)
