"""Acts of a workflow: the code requests them, and a governor does them.

Laws:
1. A replay finds an act by its receipt: one that was done or has finally failed is not requested again. A failure before there is a
   receipt is recorded as a checkpoint, so that a replay sees the same.
2. An act begins only when everything its run recorded before is durable.
3. When a policy or people refuse an act, the run has ended: the code cannot catch it.
4. A call whose deadline passed before it was sent is tried again: under this lease as often as the act's retries allow, then this
   attempt fails and the next one continues (within the attempts of the run's step).
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
from tenure.kernel.decide.validation import is_name
from tenure.kernel.retry import Rng, delay_us
from tenure.limits import CODE_CHARS_MAX, RETRIES_MAX
from tenure.sdk import codec, context
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.sdk.definitions import Workflow
from tenure.sdk.errors import ActionConflict, ActionFailed
from tenure.sdk.execution_waits import CANCELED_BY_CODE, ExecutionWaits
from tenure.sdk.exits import ActionLate, LeaseLost
from tenure.sdk.journal import CANCELING, ExecutionJournal
from tenure.sdk.outcomes import MESSAGE_CHARS_MAX
from tenure.sdk.replay_log import INNER_KEY_MARK
from tenure.sdk.replay_order import NEW
from tenure.sdk.step_calls import StepCalls
from tenure.store.replay import ReplayAct, ReplayCheckpoint

BUSY_SECONDS = (0.5, 1.0, 2.0, 4.0, 30.0, 60.0, 300.0)
"""Pauses while another run does the action with the same key."""
_ACTION = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
DONE = frozenset({"succeeded", "reused", "reversed"})
"""States of the receipt of an act that was done, including one that was reversed later."""


class ActCalls:
    def __init__(
        self,
        workflow: Workflow[..., Any],
        journal: ExecutionJournal,
        waits: ExecutionWaits,
        steps: StepCalls,
        chance: Rng,
    ) -> None:
        self._workflow = workflow
        self._journal = journal
        self._waits = waits
        self._lease_port = journal.lease_port
        self._replay_log = journal.replay_log
        self._steps = steps
        self._chance = chance

    async def perform(self, request: ActRequest) -> Any:
        key = request.label
        self._journal.unawaited.pop(key, None)
        self._journal.check()
        if self._journal.closed:
            raise asyncio.CancelledError  # the call of a task that has outlived its workflow
        tries = 0
        if self._replay_log:
            recorded, known = self._replay_log.checkpoints.get(key), self._replay_log.acts.get(key)
            if known is not None:
                await self._check_same(known, request)
            elif recorded is None and key not in self._replay_log.proposed:
                self._journal.check_replay(self._replay_log.check_new_act, key)
            if recorded is not None:
                tries = await self._wait_for_next_try(request, recorded)
            failed = known is not None and known.state == "failed" and known.eligible_at is None
            if known is not None and (failed or known.state in DONE):
                await self._journal.replay_order.take((known.settled_at or 0, known.no))
                body = await self._waits.load_payload(known.result)
                value = None if body is None else msgspec.json.decode(body)
                if failed:
                    message = value if isinstance(value, str) else ""
                    raise ActionFailed(request.action, known.error or "ACTION_FAILED", message)
                return value
        try:
            value = await self._repeat(request, tries)
        except asyncio.CancelledError:
            if self._journal.is_active():
                self._journal.record(key, state="failed", error=CANCELED_BY_CODE, tries=0)
            raise
        except (ActionFailed, ActionConflict):
            await self._take_turn()
            raise
        await self._take_turn()
        return value

    async def _take_turn(self) -> None:
        """Wait for this branch's turn: several branches get their results one by one, as in a replay."""
        if self._steps.running or self._journal.replay_order.awaited:
            await self._journal.replay_order.take(NEW)

    async def _check_same(self, known: ReplayAct, request: ActRequest) -> None:
        same = known.action == request.action and request.key in ("", known.name)
        if same and known.request is not None:
            known_request = msgspec.json.decode(await self._waits.load_payload(known.request) or b"{}")
            same = is_equal(known_request, {"target": request.target, "fields": request.fields})
        if not same:
            self._journal.fail_replay(
                f"the code asks for {request.action} at {request.label!r}, where another act was recorded"
            )

    async def _wait_for_next_try(self, request: ActRequest, recorded: ReplayCheckpoint) -> int:
        """Wait until a recorded act may be tried again, and return its tries so far. Raises its error if it has finally failed."""
        if recorded.error == CANCELED_BY_CODE and not recorded.tries:
            await self._waits.block()
        if recorded.next_at is None:
            await self._journal.replay_order.take((recorded.at, recorded.no))
            message = (await self._waits.load_payload(recorded.output) or b"").decode(errors="replace")
            raise _failed(request.action, recorded.error or "ACTION_FAILED", message)
        await self._waits.pause(f"{request.label}{INNER_KEY_MARK}{recorded.tries}", recorded.next_at)
        return recorded.tries

    async def _repeat(self, request: ActRequest, tries: int) -> Any:
        """Ask the governor until the act is done or has finally failed."""
        request = replace(request, fresh=not self._replay_log)
        late = 0
        busy = sum(label.startswith(f"{request.label}{INNER_KEY_MARK}") for label in self._replay_log.waits)
        while True:
            await self._waits.barrier()
            if self._waits.suspending is not None:
                await self._waits.wait_while_suspending()
            if self._lease_port.draining:
                await self._waits.park()
            result = await self._send(request)
            request = replace(request, fresh=False)
            match result:
                case ActResult(state="done"):
                    return result.result
                case ActResult(state="wait", no=int(no)):
                    await self._waits.wait_for(no)
                case ActResult(state="conflict"):
                    await self._record_failure(request, result, tries + 1, None)
                case ActResult(state="failed", code="ACTION_BUSY"):
                    length = BUSY_SECONDS[min(busy, len(BUSY_SECONDS) - 1)]
                    busy += 1
                    await self._pause_until(request, self._lease_port.now_us() + round(length * 1e6))
                case ActResult(state="failed", code="ACTION_LATE", tried=True, retry_at=int(retry_at)):
                    late += 1
                    if late > (request.retries or 0):
                        self._journal.leave(
                            ActionLate(f"{request.action} was not sent in time, {late} times under one lease")
                        )
                    await self._pause_until(request, retry_at)
                case ActResult(state="failed", receipt=None):
                    tries += 1
                    await self._record_failure(request, result, tries, self._next_at(request, result, tries))
                case ActResult(state="failed", retry_at=int(retry_at)):
                    await self._pause_until(request, retry_at)
                case ActResult(state="failed"):
                    raise ActionFailed(request.action, result.code, result.message)
                case ActResult(state="misfit"):
                    self._journal.fail_replay(result.message)
                case ActResult(state="refused"):
                    self._journal.leave(LeaseLost(result.code or "refused"))
                case _:
                    await self._waits.await_cancel()

    async def _send(self, request: ActRequest) -> ActResult:
        try:
            return await self._waits.work(self._lease_port.act(request))
        except TenureError as refused:
            if refused.code != CANCELING:
                raise self._journal.refuse(refused) from refused
        return ActResult(state="cancel")

    async def _pause_until(self, request: ActRequest, until: int) -> None:
        await self._waits.pause(f"{request.label}{INNER_KEY_MARK}{until}", until)

    def _next_at(self, request: ActRequest, result: ActResult, tries: int) -> int | None:
        if result.retry_at is None or tries > (request.retries or 0):
            return None
        timing = self._workflow.profile.timing
        delay = delay_us(timing.backoff, tries, timing.jitter, self._chance, None)
        return max(result.retry_at, self._lease_port.now_us() + delay)

    async def _record_failure(
        self, request: ActRequest, result: ActResult, tries: int, next_at: int | None
    ) -> None:
        """Record a failure before there was a receipt; see law 1."""
        code = result.code if is_name(result.code, 1, CODE_CHARS_MAX) else "ACTION_FAILED"
        self._journal.record(
            request.label,
            state="failed",
            error=code,
            message=result.message[:MESSAGE_CHARS_MAX].encode(errors="replace") or None,
            tries=tries,
            next_at=next_at,
            meta="{}",
        )
        if next_at is None:
            raise _failed(request.action, code, result.message)
        await self._waits.barrier()
        await self._waits.pause(f"{request.label}{INNER_KEY_MARK}{tries}", next_at)


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
    """Do something to the world, if policy allows it: `await tenure.act("github.label.add", target=…, fields=…)`.

    Returns what the service answered. `key` is the idempotency key (made from run, step and place by default), `why` the agent's own
    words for the people who are asked, `retry` how often the act is tried again if it is known not to have happened. An act that
    reverses another names its receipt in `reverses` (run and number), and in `expects` what the target must look like.

    Raises ActionFailed, and ActionConflict if a reversal finds another target than it expects. If a policy or people refuse the act,
    the run ends.
    """
    if context.current_frame() is not None:
        raise TenureError("ACT_IN_STEP")
    scope = context.require_scope("act")
    if not _ACTION.fullmatch(action):
        raise TenureError("INVALID_INPUT", f"action {action[:80]!r} is not connector.operation")
    retries = retry if retry is not None else scope.execution.workflow.profile.timing.retries
    if not 0 <= retries <= RETRIES_MAX:
        raise TenureError("INVALID_INPUT", f"tenure.act: retry is 0 to {RETRIES_MAX}, not {retries}")
    request = ActRequest(
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
    return scope.submit(request.label, scope.execution.acts.perform(request))


def _plain(name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """An argument as the JSON that is recorded, for replays to compare."""
    plain = msgspec.json.decode(codec.encode(given or {}, f"{name} of an act") or b"{}")
    if not isinstance(plain, dict):
        raise TenureError("INVALID_INPUT", f"tenure.act: {name} must be an object")
    return plain


def _failed(action: str, code: str, message: str) -> TenureError:
    return (
        ActionConflict(action, message) if code == "ACTION_CONFLICT" else ActionFailed(action, code, message)
    )
