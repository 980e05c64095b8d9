"""Policies and freezes.

Law: activating a policy and thawing take two people; see `store.policies`, law 3.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.govern.policy import CompiledPolicy, load_policy
from tenure.govern.policy.connector_check import check_policy
from tenure.govern.policy.explanations import explain_decisions
from tenure.govern.policy.shadow import ShadowEvaluation, ShadowReport
from tenure.limits import INTEGER_MAX, SHADOWED_MAX
from tenure.reads.policies import build_freezes, build_policy_text, build_policy_version
from tenure.services.paging import Place, read_page
from tenure.services.scope import Scope
from tenure.shapes.pages import Page
from tenure.shapes.policies import Freeze, PolicyDecision, PolicyText, PolicyVersion
from tenure.store.policies import PolicyRegistry, PolicyVersionSummary
from tenure.work_pool import run_in_thread

_VersionPlace = tuple[Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]]


class Policies:
    """The policies and freezes of a scope's tenant."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._registry = PolicyRegistry(scope.store, scope.tenant)

    async def page(self, limit: int, cursor: str | None = None) -> Page[PolicyVersion]:
        """A page of the versions, newest first, without their texts."""
        active = await self._registry.governance()

        async def read(place: Place, count: int) -> list[PolicyVersionSummary]:
            return await self._registry.versions(place[0], count)

        return await read_page(
            (self._scope.tenant, "policies", None),
            _VersionPlace,
            (INTEGER_MAX,),
            read,
            lambda row: [row.version],
            lambda row: build_policy_version(row, active),
            limit=limit,
            cursor=cursor,
        )

    async def get(self, version: int) -> PolicyText:
        row = await self._registry.policy(version)
        return build_policy_text(row, await self._registry.governance())

    async def publish(self, text: str) -> tuple[PolicyVersion, bool]:
        """Check a policy, against the connectors if there are any, and keep it as the next version. Also returns whether it is new."""
        connectors = self._scope.runtime.connectors
        if connectors:
            await run_in_thread(check_policy, text, "policy", connectors)
        else:
            await run_in_thread(load_policy, text, "policy")
        row, is_new = await self._registry.publish(text, self._scope.actor)
        return build_policy_version(row, await self._registry.governance()), is_new

    async def shadow(self, text: str, since_seconds: float) -> ShadowReport:
        """What another policy would have decided about the newest actions."""
        policy = await run_in_thread(lambda: CompiledPolicy(load_policy(text, "policy")))
        [now] = await self._scope.store.read("now")
        evaluation = ShadowEvaluation(self._scope.store, self._scope.artifacts.get)
        return await evaluation.evaluate(
            self._scope.tenant, policy, now.now_us - us(since_seconds), SHADOWED_MAX
        )

    async def activate(
        self, version: int, person: str, *, may_propose: bool
    ) -> tuple[Literal["proposed", "active"], PolicyVersion]:
        """Propose a version, or make it active as the second person."""
        change = await self._registry.activate(version, person, may_propose=may_propose)
        shown = build_policy_version(await self._registry.policy(version), change.governance)
        return "active" if change.step == "done" else "proposed", shown

    async def withdraw(self, version: int) -> PolicyVersion:
        """Take back the proposal to activate a version."""
        active = await self._registry.withdraw(version, self._scope.actor)
        return build_policy_version(await self._registry.policy(version), active)

    async def list_decisions(self, run_id: str) -> list[PolicyDecision]:
        """What policies decided about the actions of a run, in order."""
        run = await self._scope.reader.row(ids.run_int(run_id))
        return await explain_decisions(self._scope.store, run.id)

    async def list_freezes(self) -> list[Freeze]:
        return build_freezes(await self._registry.governance())

    async def freeze(self, what: str) -> list[Freeze]:
        """Freeze `*`, `wf:WORKFLOW` or `cn:CONNECTOR`. Returns all freezes."""
        by = self._scope.admin_actor
        return build_freezes(await self._registry.freeze(what, by.actor, by.people))

    async def thaw(
        self, what: str, person: str, *, may_propose: bool
    ) -> tuple[Literal["proposed", "thawed"], list[Freeze]]:
        """Propose to thaw what is frozen, or thaw it as the second person. Also returns the freezes that are left."""
        change = await self._registry.thaw(what, person, may_propose=may_propose)
        return "thawed" if change.step == "done" else "proposed", build_freezes(change.governance)
