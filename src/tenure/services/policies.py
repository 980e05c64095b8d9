"""Policies and freezes.

Law: activating a policy and thawing take two people (`store.policies`, law 3). A database without a server has a single user, who does
both if the tenant has no people (law 4 there).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.errors import Detail, TenureError
from tenure.govern.connectors.registry import Connectors
from tenure.govern.policy import CompiledPolicy, load_policy
from tenure.govern.policy.connector_check import check_policy
from tenure.govern.policy.explanations import explain_decisions
from tenure.govern.policy.shadow import ShadowEvaluation
from tenure.limits import INTEGER_MAX, SHADOWED_MAX
from tenure.reads.policies import build_freezes, build_policy_text, build_policy_version
from tenure.services.identity.ownership import require_person
from tenure.services.paging import ROWS_MAX, Place, read_page
from tenure.services.scope import Service
from tenure.shapes.pages import Page
from tenure.shapes.policies import (
    ActivationResult,
    Freeze,
    PolicyDecision,
    PolicyText,
    PolicyVersion,
    ShadowReport,
    ThawResult,
)
from tenure.store.policies import PolicyRegistry, PolicyVersionSummary
from tenure.work_pool import run_in_pool

_VersionPlace = tuple[Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]]
_List = list  # the method `list` hides the builtin in annotations of a class


class _GovernanceService(Service):
    @property
    def _registry(self) -> PolicyRegistry:
        return PolicyRegistry(self._scope.store, self._scope.tenant)


class Policies(_GovernanceService):
    """The versions of the policy of a scope's tenant."""

    async def list(self) -> _List[PolicyVersion]:
        """The versions, newest first, without their texts."""
        return (await self.page(ROWS_MAX)).items

    async def page(self, limit: int, cursor: str | None = None) -> Page[PolicyVersion]:
        active = await self._registry.governance()

        async def read(place: Place, count: int) -> _List[PolicyVersionSummary]:
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

    async def get(self, version: int | None = None) -> PolicyText:
        """A version, or the active one."""
        now = await self._registry.governance()
        if version is None and now.version == 0:
            raise TenureError("POLICY_MISSING", f"the tenant {self._scope.tenant!r} has no active policy")
        return build_policy_text(
            await self._registry.policy(now.version if version is None else version), now
        )

    async def publish(self, text: str, *, connectors: Connectors | None = None) -> PolicyVersion:
        """Check a policy, against the connectors if there are any, and keep it as the next version. `connectors` default to those of the
        process. The same text again is the same version."""
        return (await self.publish_once(text, connectors=connectors))[0]

    async def publish_once(
        self, text: str, *, connectors: Connectors | None = None
    ) -> tuple[PolicyVersion, bool]:
        """Like `publish`; also whether the version is new."""
        known = self._scope.runtime.connectors if connectors is None else connectors
        if known:
            await run_in_pool(check_policy, text, "policy", known)
        else:
            await run_in_pool(load_policy, text, "policy")
        row, is_new = await self._registry.publish(text, self._scope.actor)
        return build_policy_version(row, await self._registry.governance()), is_new

    async def shadow(self, text: str, since_seconds: float) -> ShadowReport:
        """What another policy would have decided about the newest actions."""
        policy = await run_in_pool(lambda: CompiledPolicy(load_policy(text, "policy")))
        since_us = await self._scope.now_us() - us(since_seconds)
        evaluation = ShadowEvaluation(self._scope.store, self._scope.artifacts.get)
        return await evaluation.evaluate(self._scope.tenant, policy, since_us, SHADOWED_MAX)

    async def activate(self, version: int) -> ActivationResult:
        """Propose a version, or make it active as the second person; see the law above."""
        scope, caller, registry = self._scope, self._scope.caller, self._registry
        if caller is None:
            now, done = await registry.activate_alone(version, scope.actor), True
        else:
            change = await registry.activate(
                version, require_person(caller), may_propose="admin" in caller.roles
            )
            now, done = change.governance, change.step == "done"
        shown = build_policy_version(await registry.policy(version), now)
        return ActivationResult(state="active" if done else "proposed", policy=shown)

    async def withdraw(self, version: int) -> PolicyVersion:
        """Take back the proposal to activate a version."""
        active = await self._registry.withdraw(version, self._scope.actor)
        return build_policy_version(await self._registry.policy(version), active)

    async def decisions(self, run_id: str) -> _List[PolicyDecision]:
        """What policies decided about the actions of a run, in order."""
        run = await self._scope.reader.row(ids.run_int(run_id))
        return await explain_decisions(self._scope.store, run.id)


class Freezes(_GovernanceService):
    """The freezes of a scope's tenant. Each is of a workflow, of a connector or, if neither is named, of the whole tenant."""

    async def list(self) -> _List[Freeze]:
        """The whole tenant first, then connectors and workflows by name."""
        return build_freezes(await self._registry.governance())

    async def freeze(self, *, workflow: str | None = None, connector: str | None = None) -> _List[Freeze]:
        """Deny every action from the next commit on. Returns all freezes."""
        caller = self._scope.caller
        people = "" if caller is None else caller.people
        return build_freezes(
            await self._registry.freeze(_stored_scope(workflow, connector), self._scope.actor, people)
        )

    async def thaw(self, *, workflow: str | None = None, connector: str | None = None) -> ThawResult:
        """Propose to thaw what is frozen, or thaw it as the second person; see the law above."""
        caller, registry, frozen = self._scope.caller, self._registry, _stored_scope(workflow, connector)
        if caller is None:
            now, done = await registry.thaw_alone(frozen, self._scope.actor), True
        else:
            change = await registry.thaw(frozen, require_person(caller), may_propose="admin" in caller.roles)
            now, done = change.governance, change.step == "done"
        return ThawResult(state="thawed" if done else "proposed", frozen=build_freezes(now))


def _stored_scope(workflow: str | None, connector: str | None) -> str:
    """`*`, `wf:WORKFLOW` or `cn:CONNECTOR`."""
    if workflow is not None and connector is not None:
        what = "name a workflow or a connector, not both"
        raise TenureError("INVALID_INPUT", what, (Detail("connector", what),))
    if workflow is not None:
        return f"wf:{workflow}"
    return "*" if connector is None else f"cn:{connector}"
