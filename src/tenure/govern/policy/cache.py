"""The active policy of each tenant, compiled and cached.

Laws:
1. A cached policy may be old. It is used only to allow an action, because the commit of the INTENT checks the version again. Every other
   ruling uses the version that is active now. Facts may be old too: a ruling says which it relied on (`collect_relied_facts`).
2. A tenant without a policy, or whose policy cannot be read, is denied everything.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.govern.policy.evaluation import CompiledPolicy, deny_without_rule
from tenure.govern.policy.facts import build_facts, requester_person_id
from tenure.govern.policy.loader import load_policy
from tenure.govern.policy.relied_facts import collect_relied_facts
from tenure.kernel.act_commands import Ruling
from tenure.kernel.act_rows import RunSpendRow
from tenure.kernel.governance_rows import GovernanceRow, PolicyRow
from tenure.kernel.identity_rows import PersonRow
from tenure.kernel.run_rows import RunRow, RunSpecRow
from tenure.limits import POLICIES_CACHED_MAX
from tenure.store.port import QueryReader


class _Broken:
    def __init__(self, version: int, why: str) -> None:
        self.version = version
        self._why = why

    def ruling(self, _facts: dict[str, Any]) -> Ruling:
        return deny_without_rule(
            self.version, "POLICY_ERROR", f"the active policy cannot be read: {self._why}"
        )

    def reads(self, _facts: dict[str, Any]) -> frozenset[str]:
        return frozenset()


class _Missing:
    version = 0

    def ruling(self, _facts: dict[str, Any]) -> Ruling:
        return deny_without_rule(0, "POLICY_MISSING", "this tenant has no active policy")

    def reads(self, _facts: dict[str, Any]) -> frozenset[str]:
        return frozenset()


_Asked = CompiledPolicy | _Broken | _Missing


class PolicyCache:
    def __init__(self, store: QueryReader) -> None:
        self._store = store
        self._kept: dict[str, _Asked] = {}

    async def ruling(self, tenant: str, facts: dict[str, Any], *, fresh: bool = False) -> Ruling:
        """The ruling of the tenant's active policy. `fresh` reads the active version again even if the cached one would allow."""
        return (await self._asked(tenant, facts, fresh))[1]

    async def judge(
        self, run: RunRow, spec: RunSpecRow, action: dict[str, Any], now_us: int, *, fresh: bool = False
    ) -> Ruling:
        """The ruling on an action of a run, with what the store knows of the run's spend and requester, and the facts it relied on. `fresh` as
        above.
        """
        run_spends: list[RunSpendRow] = await self._store.read("run_spends_of", run.id)
        requester = requester_person_id(spec.requester)
        people: list[PersonRow] = (
            [] if requester is None else await self._store.read("person_named", run.tenant, requester)
        )
        person = people[0] if people else None
        facts = build_facts(
            run=run,
            spec=spec,
            run_spend=run_spends[0] if run_spends else None,
            person=person,
            action=action,
            now_us=now_us,
        )
        asked, said = await self._asked(run.tenant, facts, fresh)
        relied = collect_relied_facts(asked, said, facts, spec.requester, person, now_us)
        return said if relied is None else msgspec.structs.replace(said, relied=relied)

    async def _asked(self, tenant: str, facts: dict[str, Any], fresh: bool) -> tuple[_Asked, Ruling]:
        kept = None if fresh else self._kept.get(tenant)
        if kept is not None:
            said = kept.ruling(facts)
            if said.outcome == "allow":
                return kept, said
        active = await self._active(tenant)
        return active, active.ruling(facts)

    async def _active(self, tenant: str) -> _Asked:
        rows: list[GovernanceRow] = await self._store.read("governance_of", tenant)
        version = rows[0].version if rows else 0
        kept = self._kept.get(tenant)
        if kept is None or kept.version != version or isinstance(kept, _Broken):
            kept = await self._compiled(tenant, version)
            if len(self._kept) >= POLICIES_CACHED_MAX:
                self._kept.pop(next(iter(self._kept)))
            self._kept[tenant] = kept
        return kept

    async def _compiled(self, tenant: str, version: int) -> _Asked:
        if version == 0:
            return _Missing()
        rows: list[PolicyRow] = await self._store.read("policy_at", tenant, version)
        if not rows:
            return _Broken(version, f"there is no version {version}")
        try:
            return CompiledPolicy(load_policy(rows[0].text, f"version {version}"), version)
        except TenureError as fault:
            return _Broken(version, fault.message)
        except Exception as fault:  # any failure is a denial, not a step that fails and is retried
            return _Broken(version, f"{type(fault).__name__}: {fault}")
