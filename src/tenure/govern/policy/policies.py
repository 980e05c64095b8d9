"""The active policy of each tenant, compiled and kept.

Laws:
1. What is remembered may be old, so it is believed only where the commit of the INTENT looks again: an allowance. Everything
   else is asked of the version that is active now. So may facts be: a ruling says what it relied on (`relied_facts`).
2. A tenant without a policy, and one whose policy cannot be read, are denied everything.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from tenure.errors import TenureError
from tenure.govern.policy.evaluating import Compiled, denial
from tenure.govern.policy.facts import facts_of, person_of
from tenure.govern.policy.loading import load
from tenure.govern.policy.relied_facts import relied_facts
from tenure.kernel.actions import Ruling
from tenure.kernel.governance import Governance
from tenure.kernel.governance import Policy as PolicyRow
from tenure.kernel.governed import Purse
from tenure.kernel.model import Run, RunSpec
from tenure.kernel.service import Person
from tenure.limits import POLICIES_CACHED_MAX


class Reader(Protocol):
    """The part of a store that is needed here."""

    async def read(self, name: str, *scalars: Any) -> list[Any]:
        """Ask one named query."""
        ...


class _Broken:
    """A version that cannot be read."""

    def __init__(self, version: int, why: str) -> None:
        self.version = version
        self._why = why

    def ruling(self, _facts: dict[str, Any]) -> Ruling:
        return denial(self.version, "POLICY_ERROR", f"the active policy cannot be read: {self._why}")

    def reads(self, _facts: dict[str, Any]) -> frozenset[str]:
        return frozenset()


class _Missing:
    """No policy at all."""

    version = 0

    def ruling(self, _facts: dict[str, Any]) -> Ruling:
        return denial(0, "POLICY_MISSING", "this tenant has no active policy")

    def reads(self, _facts: dict[str, Any]) -> frozenset[str]:
        return frozenset()


_Asked = Compiled | _Broken | _Missing


class Policies:
    """See the laws above."""

    def __init__(self, store: Reader) -> None:
        self._store = store
        self._kept: dict[str, _Asked] = {}

    async def ruling(self, tenant: str, facts: dict[str, Any], *, fresh: bool = False) -> Ruling:
        """What the tenant's active policy says. `fresh` looks for the active version anew, also where it would allow."""
        return (await self._asked(tenant, facts, fresh))[1]

    async def judge(
        self, run: Run, spec: RunSpec, action: dict[str, Any], now_us: int, *, fresh: bool = False
    ) -> Ruling:
        """What the active policy says of an action proposed by a run, with what the store knows of its purse and its requester;
        and what it relied on. `fresh` as above."""
        purses: list[Purse] = await self._store.read("purses_of", run.id)
        requester = person_of(spec.requester)
        people: list[Person] = (
            [] if requester is None else await self._store.read("person_named", run.tenant, requester)
        )
        person = people[0] if people else None
        facts = facts_of(
            run=run,
            spec=spec,
            purse=purses[0] if purses else None,
            person=person,
            action=action,
            now_us=now_us,
        )
        asked, said = await self._asked(run.tenant, facts, fresh)
        relied = relied_facts(asked, said, facts, spec.requester, person, now_us)
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
        rows: list[Governance] = await self._store.read("governance_of", tenant)
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
            return Compiled(load(rows[0].text, f"version {version}"), version)
        except TenureError as fault:
            return _Broken(version, fault.message)
        except Exception as fault:  # whatever breaks is a denial, not a step that fails and is tried again
            return _Broken(version, f"{type(fault).__name__}: {fault}")
