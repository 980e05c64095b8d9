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
from tenure.govern.policy.facts import build_facts, collect_relied_facts, find_requester
from tenure.govern.policy.loader import load_policy
from tenure.kernel.act_commands import Ruling
from tenure.kernel.act_rows import RunSpendRow
from tenure.kernel.governance_rows import GovernanceRow, PolicyRow
from tenure.kernel.run_rows import RunRow, RunSpecRow
from tenure.limits import POLICIES_CACHED_MAX
from tenure.store.port import QueryReader


class _DenyAll:
    """Stands for a policy that is missing or cannot be read (law 2)."""

    def __init__(self, version: int, error: str, why: str) -> None:
        self.version = version
        self._ruling = deny_without_rule(version, error, why)

    def ruling(self, _facts: dict[str, Any]) -> Ruling:
        return self._ruling

    def reads(self, _facts: dict[str, Any]) -> frozenset[str]:
        return frozenset()


_Policy = CompiledPolicy | _DenyAll


class PolicyCache:
    def __init__(self, store: QueryReader) -> None:
        self._store = store
        self._cached: dict[str, _Policy] = {}

    async def ruling(self, tenant: str, facts: dict[str, Any], *, fresh: bool = False) -> Ruling:
        """The ruling of the tenant's active policy. `fresh` reads the active version again even if the cached one would allow."""
        return (await self._evaluate(tenant, facts, fresh))[1]

    async def judge(
        self, run: RunRow, spec: RunSpecRow, action: dict[str, Any], now_us: int, *, fresh: bool = False
    ) -> Ruling:
        """The ruling on an action of a run, and the facts that it relied on. The store knows the run's spend and requester. `fresh` as in
        `ruling`.
        """
        run_spends: list[RunSpendRow] = await self._store.read("run_spends_of", run.id)
        person = await find_requester(self._store, run.tenant, spec.requester)
        facts = build_facts(
            run=run,
            spec=spec,
            run_spend=run_spends[0] if run_spends else None,
            person=person,
            action=action,
            now_us=now_us,
        )
        policy, ruling = await self._evaluate(run.tenant, facts, fresh)
        relied = collect_relied_facts(policy, ruling, facts, spec.requester, person, now_us)
        return ruling if relied is None else msgspec.structs.replace(ruling, relied=relied)

    async def _evaluate(self, tenant: str, facts: dict[str, Any], fresh: bool) -> tuple[_Policy, Ruling]:
        cached = None if fresh else self._cached.get(tenant)
        if cached is not None and (ruling := cached.ruling(facts)).outcome == "allow":
            return cached, ruling
        active = await self._load_active(tenant)
        return active, active.ruling(facts)

    async def _load_active(self, tenant: str) -> _Policy:
        rows: list[GovernanceRow] = await self._store.read("governance_of", tenant)
        version = rows[0].version if rows else 0
        policy = self._cached.get(tenant)
        if not isinstance(policy, CompiledPolicy) or policy.version != version:
            policy = await self._compile(tenant, version)
            if len(self._cached) >= POLICIES_CACHED_MAX:
                self._cached.pop(next(iter(self._cached)))
            self._cached[tenant] = policy
        return policy

    async def _compile(self, tenant: str, version: int) -> _Policy:
        if version == 0:
            return _DenyAll(0, "POLICY_MISSING", "this tenant has no active policy")
        rows: list[PolicyRow] = await self._store.read("policy_at", tenant, version)
        why = f"there is no version {version}"
        if rows:
            try:
                return CompiledPolicy(load_policy(rows[0].text, f"version {version}"), version)
            except Exception as fault:  # any failure is a denial, not a step that fails and is retried
                why = fault.message if isinstance(fault, TenureError) else f"{type(fault).__name__}: {fault}"
        return _DenyAll(version, "POLICY_ERROR", f"the active policy cannot be read: {why}")
