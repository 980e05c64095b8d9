"""Confirming, as a second person, what others have made or changed: over a server."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tenure.client.transport import Transport
from tenure.shapes.identity import Confirmable, ConfirmationResult, check_version_named

_PLACES = {
    "hook": "/hooks",
    "schedule": "/schedules",
    "workflow": "/workflows",
    "client": "/clients",
    "key": "/keys",
    "person": "/people",
}


class RemoteConfirmations:
    """`engine.confirmations`, over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def confirm(
        self,
        kind: Confirmable,
        name: str,
        *,
        revision: int | None = None,
        version: str | None = None,
        digest: str | None = None,
    ) -> ConfirmationResult:
        """Confirm what others have made or changed, as the person whose key it is."""
        check_version_named(kind, revision, version, digest)
        said = {"revision": revision, "version": version, "digest": digest}
        return await self._confirmed(f"{_PLACES[kind]}/{quote(name, safe='')}/confirm", kind, name, said)

    async def confirm_as_operator(
        self, tenant: str, person: str, *, revision: int | None
    ) -> ConfirmationResult:
        """Confirm a person of a tenant that has no second administrator, with the installation operator's key."""
        check_version_named("person", revision, None, None)
        path = f"/admin/tenants/{quote(tenant, safe='')}/people/{quote(person, safe='')}/confirm"
        return await self._confirmed(path, "person", person, {"revision": revision})

    async def _confirmed(self, path: str, kind: str, name: str, said: dict[str, Any]) -> ConfirmationResult:
        body = {word: value for word, value in said.items() if value is not None}
        made = await self._transport.send("POST", path, dict[str, Any], body or None)
        return ConfirmationResult(
            kind=kind, name=name, confirmed=made["confirmed"], unconfirmed=made["unconfirmed"]
        )
