"""Policies and freezes of a tenant, in a database or on a server.

Laws:
1. `LocalPolicies` and `RemotePolicies` have the same methods, so that commands do not know which they call.
2. A database has a single local user, so two-person rules cannot be met. What takes two people is done only if the tenant has no
   people (`store.policies`, law 4). Otherwise people do it on the server, each with their own key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tenure import ids
from tenure.cli.common.backend import call_either
from tenure.clock import us
from tenure.errors import TenureError
from tenure.govern.policy import CompiledPolicy, load_policy
from tenure.govern.policy.explanations import explain_decisions
from tenure.govern.policy.shadow import ShadowEvaluation, ShadowReport
from tenure.limits import INTEGER_MAX, SHADOWED_MAX
from tenure.reads.policies import build_freezes, build_policy_text, build_policy_version
from tenure.shapes.policies import Freeze, PolicyDecision, PolicyText, PolicyVersion
from tenure.store.policies import PolicyRegistry

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.engine import Engine

T = TypeVar("T")
LISTED_MAX = 1_000


class LocalPolicies:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registry = PolicyRegistry(engine.store, engine.tenant)

    async def versions(self) -> list[PolicyVersion]:
        now = await self._registry.governance()
        return [
            build_policy_version(row, now) for row in await self._registry.versions(INTEGER_MAX, LISTED_MAX)
        ]

    async def version(self, version: int | None) -> PolicyText:
        """A version, or the active one."""
        now = await self._registry.governance()
        if version is None and now.version == 0:
            raise TenureError("POLICY_MISSING", f"the tenant {self._engine.tenant!r} has no active policy")
        return build_policy_text(
            await self._registry.policy(now.version if version is None else version), now
        )

    async def publish(self, text: str) -> PolicyVersion:
        """Store a text that the caller has checked as the next version."""
        row, _ = await self._registry.publish(text, self._engine.actor)
        return build_policy_version(row, await self._registry.governance())

    async def activate(self, version: int) -> tuple[str, PolicyVersion]:
        """Make a version active, as the only user (law 2)."""
        now = await self._registry.activate_alone(version, self._engine.actor)
        return "active", build_policy_version(await self._registry.policy(version), now)

    async def withdraw(self, version: int) -> PolicyVersion:
        now = await self._registry.withdraw(version, self._engine.actor)
        return build_policy_version(await self._registry.policy(version), now)

    async def decisions(self, run: str) -> list[PolicyDecision]:
        return await explain_decisions(self._engine.store, ids.run_int((await self._engine.get(run)).id))

    async def shadow(self, text: str, since_seconds: float) -> ShadowReport:
        [now] = await self._engine.store.read("now")
        looking = ShadowEvaluation(self._engine.store, self._engine.artifacts.get)
        return await looking.evaluate(
            self._engine.tenant,
            CompiledPolicy(load_policy(text)),
            now.now_us - us(since_seconds),
            SHADOWED_MAX,
        )

    async def frozen(self) -> list[Freeze]:
        return build_freezes(await self._registry.governance())

    async def freeze(self, workflow: str | None, connector: str | None) -> list[Freeze]:
        """Freeze a workflow, a connector or, without either, the tenant. Returns all freezes."""
        return build_freezes(await self._registry.freeze(_scope(workflow, connector), self._engine.actor))

    async def thaw(self, workflow: str | None, connector: str | None) -> tuple[str, list[Freeze]]:
        now = await self._registry.thaw_alone(_scope(workflow, connector), self._engine.actor)
        return "thawed", build_freezes(now)


class RemotePolicies:
    """Policies of the key's tenant. `tenant` is the one that the command line names, if any."""

    def __init__(self, client: Client, tenant: str | None) -> None:
        self._to = client.transport
        self._tenant = tenant

    async def versions(self) -> list[PolicyVersion]:
        return await self._to.pages("/policies", PolicyVersion, limit=LISTED_MAX)

    async def version(self, version: int | None) -> PolicyText:
        if version is None:
            version = next((one.version for one in await self.versions() if one.active), None)
            if version is None:
                raise TenureError("POLICY_MISSING", "the tenant has no active policy")
        return await self._to.get(f"/policies/{version}", PolicyText)

    async def publish(self, text: str) -> PolicyVersion:
        return await self._to.send("POST", "/policies", PolicyVersion, {"text": text})

    async def activate(self, version: int) -> tuple[str, PolicyVersion]:
        found = await self._to.send("POST", f"/policies/{version}/activate", dict[str, Any])
        return str(found["state"]), await self._to.get(f"/policies/{version}", PolicyVersion)

    async def withdraw(self, version: int) -> PolicyVersion:
        return await self._to.send("POST", f"/policies/{version}/withdraw", PolicyVersion)

    async def decisions(self, run: str) -> list[PolicyDecision]:
        return await self._to.pages(f"/runs/{run}/decisions", PolicyDecision, limit=LISTED_MAX)

    async def shadow(self, text: str, since_seconds: float) -> ShadowReport:
        body = {"text": text, "since_seconds": since_seconds}
        return await self._to.send("POST", "/policies/shadow", ShadowReport, body)

    async def frozen(self) -> list[Freeze]:
        return await self._to.pages("/freezes", Freeze)

    async def freeze(self, workflow: str | None, connector: str | None) -> list[Freeze]:
        await self._check_tenant()
        return await self._to.send("POST", "/freezes", list[Freeze], _named(workflow, connector))

    async def thaw(self, workflow: str | None, connector: str | None) -> tuple[str, list[Freeze]]:
        await self._check_tenant()
        found = await self._to.send("POST", "/freezes/thaw", dict[str, Any], _named(workflow, connector))
        return str(found["state"]), msgspec.convert(found["frozen"], list[Freeze])

    async def _check_tenant(self) -> None:
        """Refuse another tenant than the key's: nobody may believe that they have frozen it."""
        if self._tenant is not None:
            mine = (await self._to.get("/session", dict[str, Any]))["tenant"]
            if mine != self._tenant:
                raise TenureError("INVALID_INPUT", f"this key is of tenant {mine!r}, not of {self._tenant!r}")


def call_policies(
    db: str | None,
    tenant: str | None,
    by: str | None,
    call: Callable[[LocalPolicies | RemotePolicies], Awaitable[T]],
    *,
    make: bool = False,
) -> T:
    return call_either(
        db,
        tenant or "default",
        lambda engine: call(LocalPolicies(engine)),
        lambda client: call(RemotePolicies(client, tenant)),
        by=by,
        make=make,
    )


def _scope(workflow: str | None, connector: str | None) -> str:
    if workflow is not None:
        return f"wf:{workflow}"
    return "*" if connector is None else f"cn:{connector}"


def _named(workflow: str | None, connector: str | None) -> dict[str, str]:
    given = {"workflow": workflow, "connector": connector}
    return {name: value for name, value in given.items() if value is not None}
