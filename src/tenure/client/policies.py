"""The policies and freezes of a server's tenant."""

from __future__ import annotations

from typing import Any

from tenure.client.transport import RemoteGroup, drop_none, join_path
from tenure.errors import TenureError
from tenure.shapes.policies import (
    ActivationResult,
    Freeze,
    PolicyDecision,
    PolicyText,
    PolicyVersion,
    ShadowReport,
    ThawResult,
)

LISTED_MAX = 1_000
_List = list  # the method `list` hides the builtin in annotations of a class


class RemotePolicies(RemoteGroup):
    """`engine.policies`, over HTTP. The owner of the key is the person who proposes and activates."""

    async def list(self) -> _List[PolicyVersion]:
        """The versions, newest first, without their texts."""
        return await self._transport.pages("/policies", PolicyVersion, limit=LISTED_MAX)

    async def get(self, version: int | None = None) -> PolicyText:
        """A version, or the active one."""
        if version is None:
            version = next((one.version for one in await self.list() if one.active), None)
        if version is None:
            raise TenureError("POLICY_MISSING", "the tenant has no active policy")
        return await self._transport.get(f"/policies/{version}", PolicyText)

    async def publish(self, text: str, *, connectors: Any = None) -> PolicyVersion:
        """Keep a policy as the next version. The server checks it against its own connectors: those that are given are not sent."""
        return await self._transport.send("POST", "/policies", PolicyVersion, {"text": text})

    async def shadow(self, text: str, since_seconds: float) -> ShadowReport:
        """What another policy would have decided about the newest actions."""
        body = {"text": text, "since_seconds": since_seconds}
        return await self._transport.send("POST", "/policies/shadow", ShadowReport, body)

    async def activate(self, version: int) -> ActivationResult:
        """Propose a version, or make it active as the second person."""
        return await self._transport.send("POST", f"/policies/{version}/activate", ActivationResult)

    async def withdraw(self, version: int) -> PolicyVersion:
        """Take back the proposal to activate a version."""
        return await self._transport.send("POST", f"/policies/{version}/withdraw", PolicyVersion)

    async def decisions(self, run_id: str) -> _List[PolicyDecision]:
        """What policies decided about the actions of a run, in order."""
        path = join_path("runs", run_id, "decisions")
        return await self._transport.pages(path, PolicyDecision, limit=LISTED_MAX)


class RemoteFreezes(RemoteGroup):
    """`engine.freezes`, over HTTP. Without a workflow or connector, a freeze is of the whole tenant of the key."""

    async def list(self) -> _List[Freeze]:
        return await self._transport.pages("/freezes", Freeze)

    async def freeze(self, *, workflow: str | None = None, connector: str | None = None) -> _List[Freeze]:
        """Deny every action from the next commit on. Returns all freezes."""
        body = drop_none(workflow=workflow, connector=connector)
        return await self._transport.send("POST", "/freezes", _List[Freeze], body)

    async def thaw(self, *, workflow: str | None = None, connector: str | None = None) -> ThawResult:
        """Propose to thaw what is frozen, or thaw it as the second person."""
        body = drop_none(workflow=workflow, connector=connector)
        return await self._transport.send("POST", "/freezes/thaw", ThawResult, body)
