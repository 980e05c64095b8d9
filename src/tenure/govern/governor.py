"""Governs actions: decides whether, when and how often an action is done.

Laws:
1. The order: validate target and fields; read the act's own receipts; ask the policy; ask people; read the state before; one commit that
   checks everything again and records the INTENT; the call; one commit with its outcome. So an act adds two commits to its step.
2. A receipt that is done or has failed permanently is the answer; nobody is asked again. An open receipt is settled first
   (`tenure.govern.act_calls`).
3. A failure before the call leaves the call unmade: a broken policy denies, a broken connector fails.
4. An act is done once at a time: a concurrent request for the same act waits for its outcome.
5. A call continues if its caller disappears. It ends before the lease does, by the boot clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from tenure import clock, ids
from tenure.artifacts import ArtifactStore, is_reference
from tenure.clock import HostClock
from tenure.errors import TenureError
from tenure.govern.act_calls import ActCaller, ActLease, ActOrchestrator, PendingAct
from tenure.govern.connector import Connector
from tenure.govern.connectors.registry import Connectors
from tenure.govern.policy import PolicyCache
from tenure.govern.policy.evaluation import deny_without_rule
from tenure.govern.undo import check_reversal
from tenure.kernel.act_commands import ActReply, IntendAct, ProposeAct, ProposedAct, Ruling, action_digest
from tenure.kernel.run_rows import RunRow, RunSpecRow
from tenure.logs import get_logger
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.store.replay import ReplayAct

__all__ = ["ActLease", "Governor"]

log = get_logger(__name__)

ROUNDS_MAX = 5
"""How often policy and people are asked again because something has changed."""
LATER_SECONDS = 1.0
SHORT_LEASE_TRIES = 5
_DONE = frozenset({"succeeded", "reused", "reversed"})
_HOST = HostClock()


class Governor:
    def __init__(
        self,
        orchestrator: ActOrchestrator,
        artifacts: ArtifactStore,
        connectors: Connectors | Iterable[Connector] = (),
        policies: PolicyCache | None = None,
    ) -> None:
        self._orchestrator = orchestrator
        self._store = orchestrator.store
        self.connectors = connectors if isinstance(connectors, Connectors) else Connectors(connectors)
        self.policies = policies or PolicyCache(self._store)
        self._artifacts = artifacts
        self._caller = ActCaller(orchestrator, artifacts, self.now_us)
        self._in_progress: dict[tuple[int, int, str], asyncio.Future[ActResult]] = {}

    def actions(self) -> list[str]:
        return [name for name, _ in self.connectors.actions()]

    def now_us(self) -> int:
        """The store's time, as far as this process knows it."""
        return self._store.estimate_us() or _HOST.now_us()

    async def act(self, fence: ActLease, ask: ActRequest) -> ActResult:
        place = (fence.run_id, fence.idx, ask.label)
        while (other := self._in_progress.get(place)) is not None:
            await asyncio.wait((other,))
            ask = msgspec.structs.replace(ask, fresh=False)
        mine: asyncio.Future[ActResult] = asyncio.get_running_loop().create_future()
        self._in_progress[place] = mine
        try:
            return await self._act(fence, ask)
        finally:
            del self._in_progress[place]
            mine.cancel()

    async def _act(self, fence: ActLease, ask: ActRequest) -> ActResult:
        try:
            return await self._act_in_order(fence, ask)
        except TenureError as refused:
            if refused.code == "ACTION_CHANGED":
                return ActResult(state="misfit", message=refused.message)
            if refused.retryable or refused.code not in _INVALID_REQUEST:
                raise
            return ActResult(state="failed", code=refused.code, message=refused.message)
        except Exception as fault:  # law 3: nothing was called, or the receipt says that it was intended
            log.error("act_failed", run=ids.run_text(fence.run_id), label=ask.label, error=repr(fault))
            return self._retry_later("INTERNAL_ERROR", type(fault).__name__)

    def _retry_later(self, code: str, message: str) -> ActResult:
        retry_at = self.now_us() + round(LATER_SECONDS * 1e6)
        return ActResult(state="failed", code=code, message=message, retry_at=retry_at)

    async def _act_in_order(self, fence: ActLease, ask: ActRequest) -> ActResult:
        run, spec = await self._load_run(fence)
        unknown: TenureError | None = None
        try:
            connector, operation = self.connectors.check(ask.action, ask.target, ask.fields)
        except TenureError as refused:
            if refused.code != "UNKNOWN_OPERATION":
                raise
            unknown, connector, operation = refused, None, None
        if ask.reverses is not None and ids.run_int(ask.reverses[0]) != spec.undo_of:
            raise TenureError("INVALID_INPUT", "only a run that undoes another run may reverse its actions")
        name, _, rest = ask.action.partition(".")
        if ask.reverses is None:
            key = ask.key or f"{await self._root_run(run, spec)}:{fence.step}:{ask.label}"
        else:
            key = f"undo:{ask.reverses[0]}:{ask.reverses[1]}"
        tier = operation.tier if operation is not None else "high"
        action = PendingAct(
            fence=fence,
            ask=ask,
            connector=connector,
            operation=rest,
            proposed=ProposedAct(
                label=ask.label,
                connector=name,
                operation=rest,
                tier=tier,
                name=key,
                digest=action_digest(
                    tenant=fence.tenant,
                    run=ids.run_text(fence.run_id),
                    step=fence.step,
                    ordinal=ask.label,
                    connector=name,
                    operation=rest,
                    target=ask.target,
                    fields=ask.fields,
                    key=key,
                    tier=tier,
                ),
                repeats=operation.repeats if operation is not None else "none",
                reversible=operation is not None and operation.reverses_by is not None,
                reverses=None if ask.reverses is None else (spec.undo_of or 0, ask.reverses[1]),
            ),
        )
        mine = [] if ask.fresh else await self._receipts(action)
        if mine and (answer := await self._answer_of(action, mine[-1])) is not None:
            return answer
        if unknown is not None:
            ruling = deny_without_rule(0, unknown.code, unknown.message)
            return self._refused(await self._propose(action, ruling))
        if action.proposed.reverses is not None:
            conflict = await check_reversal(
                self._store, self._artifacts, self.connectors, *action.proposed.reverses, ask
            )
            if conflict is not None:
                return ActResult(state="conflict", code="ACTION_CONFLICT", message=conflict)
        return await self._decide_and_call(action, run, spec, len(mine) + 1)

    # ---------------------------------------------------------------------------------- the run and its receipts

    async def _load_run(self, fence: ActLease) -> tuple[RunRow, RunSpecRow]:
        runs, specs = await asyncio.gather(
            self._store.read("get_run", fence.run_id), self._store.read("get_spec", fence.run_id)
        )
        if not runs or not specs or runs[0].tenant != fence.tenant:
            raise TenureError("RUN_NOT_FOUND")
        return runs[0], specs[0]

    async def _root_run(self, run: RunRow, spec: RunSpecRow) -> str:
        """The run whose id is a part of the key. A resumed run uses the keys of the run it resumes, so that nothing is done twice."""
        first = run.id
        specs = [spec]
        while specs and specs[0].resumed_from is not None:
            first = specs[0].resumed_from
            specs = await self._store.read("get_spec", first)
        return ids.run_text(first)

    async def _receipts(self, action: PendingAct) -> list[ReplayAct]:
        fence = action.fence
        return [*await self._store.read("acts_of", fence.run_id, fence.idx, action.ask.label)]

    async def _answer_of(self, action: PendingAct, newest: ReplayAct) -> ActResult | None:
        """The answer of the act's own receipts, or None if it may be intended (law 2)."""
        if newest.digest != action.proposed.digest:
            raise TenureError(
                "ACTION_CHANGED", f"this step has already recorded another action as {newest.label!r}"
            )
        if newest.state in _DONE:
            return ActResult(state="done", result=await self._decode(newest.result), receipt=newest.no)
        if newest.state == "failed":
            if newest.eligible_at is not None and newest.eligible_at <= self.now_us():
                return None
            error = await self._decode(newest.result)
            return ActResult(
                state="failed",
                code=newest.error or "ACTION_FAILED",
                message=error if isinstance(error, str) else "",
                retry_at=newest.eligible_at,
                receipt=newest.no,
            )
        return await self._caller.settle(action, newest)

    async def _decode(self, body: bytes | None) -> Any:
        if body is not None and is_reference(body):
            body = await self._artifacts.get(body)
        return None if body is None else msgspec.json.decode(body)

    # ------------------------------------------------------------------------------- policy and people

    async def _decide_and_call(
        self, action: PendingAct, run: RunRow, spec: RunSpecRow, tries: int
    ) -> ActResult:
        """Ask the policy and people, then call. Starts again if something changed meanwhile."""
        for round_no in range(ROUNDS_MAX):
            ruling = await self._ruling(action, run, spec, fresh=round_no > 0)
            approval_no = None
            if ruling.outcome != "allow":
                reply = await self._propose(action, ruling)
                if reply.state == "again":
                    continue
                if reply.state != "go_on":
                    return self._refused(reply)
                approval_no = reply.approval_no
            before, conflict = await self._caller.state_before(action)
            if conflict is not None:
                return conflict
            reply, began = await self._intend(action, ruling, approval_no, before)
            if reply.state == "call":
                return await self._caller.call(action, reply, began, tries=tries)
            if reply.state not in ("again", "ask"):
                return await self._not_intended(action, reply)
        return self._retry_later(
            "POLICY_FACTS_CHANGED",
            f"the policy, its facts or its approval changed {ROUNDS_MAX} times before {action.ask.action} could be recorded",
        )

    async def _ruling(self, action: PendingAct, run: RunRow, spec: RunSpecRow, *, fresh: bool) -> Ruling:
        """Ask the policy. If it cannot be asked, the action is denied; if the database failed, the step is given back (law 3)."""
        proposed = action.proposed
        try:
            asked = {
                "connector": proposed.connector,
                "operation": proposed.operation,
                "target": action.ask.target,
                "fields": action.ask.fields,
                "tier": proposed.tier,
                "key": proposed.name,
                "reverses": proposed.reverses is not None,
            }
            return await self.policies.judge(run, spec, asked, self.now_us(), fresh=fresh)
        except TenureError as refused:
            if refused.retryable:
                raise
            why = refused.message
        except Exception as fault:
            log.error("policy_failed", run=ids.run_text(run.id), error=repr(fault))
            why = type(fault).__name__
        return deny_without_rule(0, "POLICY_ERROR", f"the policy cannot be evaluated: {why}")

    async def _propose(self, action: PendingAct, ruling: Ruling) -> ActReply:
        question = None
        if ruling.outcome == "needs_approval":
            question = self._caller.question(
                action, [f"policy version {ruling.version}", *ruling.why.splitlines()]
            )
        head = action.head()
        # The policy asks or denies: that is what moves the run.
        head["context"] = msgspec.structs.replace(head["context"], initiator="policy")
        return await self._orchestrator.send(
            ProposeAct(
                **head,
                act=action.proposed,
                ruling=ruling,
                question=question,
                request=await self._denied_request(action) if question is None else None,
            )
        )

    async def _request(self, action: PendingAct) -> bytes:
        return await self._caller.encode_stored(
            action, {"target": action.ask.target, "fields": action.ask.fields}
        )

    async def _denied_request(self, action: PendingAct) -> bytes | None:
        """The stored request of a denied action. An unknown operation was checked against no schema and may contain a secret, so it is not
        stored. A request that cannot be stored is denied all the same.
        """
        if action.connector is None:
            return None
        try:
            return await self._request(action)
        except Exception as fault:
            log.warning("denial_not_recorded", run=ids.run_text(action.fence.run_id), error=repr(fault))
            return None

    def _refused(self, reply: ActReply) -> ActResult:
        if reply.state == "wait":
            return ActResult(state="wait", no=reply.no)
        return ActResult(state="cancel" if reply.state == "cancel" else "refused", code=reply.error or "")

    async def _intend(
        self, action: PendingAct, ruling: Ruling, approval_no: int | None, before: bytes | None
    ) -> tuple[ActReply, float]:
        """Commit the INTENT of a call. Also returns the boot clock's time before the commit."""
        message = IntendAct(
            **action.head(),
            act=action.proposed,
            ruling=ruling,
            approval_no=approval_no,
            request=await self._request(action),
            before=before,
            call_seconds=self._caller.call_seconds,
        )
        for tries in range(1, SHORT_LEASE_TRIES + 1):
            began = clock.boot_seconds()
            try:
                return await self._orchestrator.send(message), began
            except TenureError as refused:
                if refused.code != "LEASE_TOO_SHORT" or tries == SHORT_LEASE_TRIES:
                    raise
                await asyncio.sleep(LATER_SECONDS)  # the next heartbeat extends the lease
        raise AssertionError("the last round raises")

    async def _not_intended(self, action: PendingAct, reply: ActReply) -> ActResult:
        """The result if another process was faster, or the act is not allowed."""
        if reply.state == "busy":
            return ActResult(
                state="failed",
                code="ACTION_BUSY",
                message="another action with this key is in progress, or its outcome is unknown",
                retry_at=self.now_us(),
            )
        if reply.state in ("done", "open", "failed"):
            mine = await self._receipts(action)
            if mine and (answer := await self._answer_of(action, mine[-1])) is not None:
                return answer
            raise TenureError("STORE_BUSY", "a receipt is not visible yet; try again")
        return self._refused(reply)


_INVALID_REQUEST = frozenset(
    {"INVALID_INPUT", "SECRET_NOT_A_REFERENCE", "IDEMPOTENCY_KEY_REUSED", "PAYLOAD_TOO_LARGE", "WAIT_LIMIT"}
)
"""Refusals of the request itself: a repeated request would be refused again."""
