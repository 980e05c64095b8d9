"""Where policies and freezes are looked after: in a database, or over a server.

Laws:
1. Both have the same words, so that a command does not know which it is.
2. Beside a database there is one local person, who never is two: what takes two people is done only where the tenant has none
   (see `store.policies`, law 4); otherwise they do it at the server, each with a key of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tenure import ids
from tenure.cli.common.session import caller_id
from tenure.cli.identity.shared import call_local_or_server
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
    from tenure.client.transport import Transport
    from tenure.engine import Engine

T = TypeVar("T")
LISTED_MAX = 1_000


class LocalPolicies:
    """In a database."""

    def __init__(self, engine: Engine, tenant: str, actor: str) -> None:
        self._engine = engine
        self._tenant = tenant
        self._actor = actor
        self._office = PolicyRegistry(engine.store, tenant)

    async def versions(self) -> list[PolicyVersion]:
        """All of them, newest first."""
        now = await self._office.governance()
        return [
            build_policy_version(row, now) for row in await self._office.versions(INTEGER_MAX, LISTED_MAX)
        ]

    async def version(self, version: int | None) -> PolicyText:
        """One of them; None: the active one."""
        now = await self._office.governance()
        if version is None and now.version == 0:
            raise TenureError("POLICY_MISSING", f"the tenant {self._tenant!r} has no active policy")
        return build_policy_text(await self._office.policy(now.version if version is None else version), now)

    async def publish(self, text: str) -> PolicyVersion:
        """Keep a text as a version; whoever calls has checked it."""
        row, _ = await self._office.publish(text, self._actor)
        return build_policy_version(row, await self._office.governance())

    async def activate(self, version: int) -> tuple[str, PolicyVersion]:
        """Make a version active; see law 2."""
        now = await self._office.activate_alone(version, self._actor)
        return "active", build_policy_version(await self._office.policy(version), now)

    async def withdraw(self, version: int) -> PolicyVersion:
        """Take back a proposal."""
        now = await self._office.withdraw(version, self._actor)
        return build_policy_version(await self._office.policy(version), now)

    async def decisions(self, run: str) -> list[PolicyDecision]:
        """What policies said of a run's actions."""
        return await explain_decisions(self._engine.store, ids.run_int((await self._engine.get(run)).id))

    async def shadow(self, text: str, since_seconds: float) -> ShadowReport:
        """What another policy would have decided."""
        [now] = await self._engine.store.read("now")
        looking = ShadowEvaluation(self._engine.store, self._engine.artifacts.get)
        return await looking.evaluate(
            self._tenant, CompiledPolicy(load_policy(text)), now.now_us - us(since_seconds), SHADOWED_MAX
        )

    async def frozen(self) -> list[Freeze]:
        """What is frozen."""
        return build_freezes(await self._office.governance())

    async def freeze(self, workflow: str | None, connector: str | None) -> list[Freeze]:
        """Freeze a workflow, a connector or (neither) the tenant; all that is frozen then."""
        return build_freezes(await self._office.freeze(_scope(workflow, connector), self._actor))

    async def thaw(self, workflow: str | None, connector: str | None) -> tuple[str, list[Freeze]]:
        """Thaw it; see law 2."""
        now = await self._office.thaw_alone(_scope(workflow, connector), self._actor)
        return "thawed", build_freezes(now)


class RemotePolicies:
    """Over a server, of the tenant whose key is used. `tenant` is the one that was named, if one was."""

    def __init__(self, to: Transport, tenant: str | None) -> None:
        self._to = to
        self._tenant = tenant

    async def versions(self) -> list[PolicyVersion]:
        """All of them, newest first."""
        return await self._to.pages("/policies", PolicyVersion, limit=LISTED_MAX)

    async def version(self, version: int | None) -> PolicyText:
        """One of them; None: the active one."""
        if version is None:
            active = [one.version for one in await self.versions() if one.active]
            if not active:
                raise TenureError("POLICY_MISSING", "there is no active policy")
            version = active[0]
        return await self._to.get(f"/policies/{version}", PolicyText)

    async def publish(self, text: str) -> PolicyVersion:
        """Keep a text as a version."""
        return await self._to.send("POST", "/policies", PolicyVersion, {"text": text})

    async def activate(self, version: int) -> tuple[str, PolicyVersion]:
        """Propose a version, or be the second to."""
        found = await self._to.send("POST", f"/policies/{version}/activate", dict[str, Any])
        return str(found["state"]), await self._to.get(f"/policies/{version}", PolicyVersion)

    async def withdraw(self, version: int) -> PolicyVersion:
        """Take back a proposal."""
        return await self._to.send("POST", f"/policies/{version}/withdraw", PolicyVersion)

    async def decisions(self, run: str) -> list[PolicyDecision]:
        """What policies said of a run's actions."""
        return await self._to.pages(f"/runs/{run}/decisions", PolicyDecision, limit=LISTED_MAX)

    async def shadow(self, text: str, since_seconds: float) -> ShadowReport:
        """What another policy would have decided."""
        body = {"text": text, "since_seconds": since_seconds}
        return await self._to.send("POST", "/policies/shadow", ShadowReport, body)

    async def frozen(self) -> list[Freeze]:
        """What is frozen."""
        return await self._to.pages("/freezes", Freeze)

    async def freeze(self, workflow: str | None, connector: str | None) -> list[Freeze]:
        """Freeze it; all that is frozen then."""
        await self._check_tenant()
        return await self._to.send("POST", "/freezes", list[Freeze], _named(workflow, connector))

    async def thaw(self, workflow: str | None, connector: str | None) -> tuple[str, list[Freeze]]:
        """Propose that it thaws, or be the second to."""
        await self._check_tenant()
        found = await self._to.send("POST", "/freezes/thaw", dict[str, Any], _named(workflow, connector))
        return str(found["state"]), msgspec.convert(found["frozen"], list[Freeze])

    async def _check_tenant(self) -> None:
        """A key is of one tenant: nobody believes to have frozen another."""
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
    """One call about a tenant's policies or freezes."""

    def here(engine: Engine) -> Awaitable[T]:
        of = tenant or "default"
        return call(LocalPolicies(engine.scoped(tenant=of), of, caller_id(by)))

    return call_local_or_server(db, here, lambda to: call(RemotePolicies(to, tenant)), make=make)


def _scope(workflow: str | None, connector: str | None) -> str:
    if workflow is not None:
        return f"wf:{workflow}"
    return "*" if connector is None else f"cn:{connector}"


def _named(workflow: str | None, connector: str | None) -> dict[str, str]:
    given = {"workflow": workflow, "connector": connector}
    return {name: value for name, value in given.items() if value is not None}
