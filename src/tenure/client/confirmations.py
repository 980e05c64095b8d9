"""Confirming, as a second person, what others have made or changed: over a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tenure.embedded.confirmations import Confirmable, Confirmed, check_seen

if TYPE_CHECKING:
    from tenure.client.transport import Transport

_PLACES = {
    "hook": "/hooks",
    "schedule": "/schedules",
    "workflow": "/workflows",
    "client": "/clients",
    "key": "/keys",
    "person": "/people",
}


class RemoteConfirmations:
    """With the words of an engine's."""

    _to: Transport

    async def confirm(
        self,
        kind: Confirmable,
        name: str,
        *,
        by: str = "",
        revision: int | None = None,
        version: str | None = None,
        digest: str | None = None,
    ) -> Confirmed:
        """Confirm what others have made or changed, as the person whose key it is."""
        del by
        check_seen(kind, revision, version, digest)
        said = {"revision": revision, "version": version, "digest": digest}
        return await self._confirmed(f"{_PLACES[kind]}/{quote(name, safe='')}/confirm", kind, name, said)

    async def confirm_as_operator(self, tenant: str, person: str, *, revision: int | None) -> Confirmed:
        """Confirm a person of a tenant that has no second administrator, with the installation operator's key."""
        check_seen("person", revision, None, None)
        path = f"/admin/tenants/{quote(tenant, safe='')}/people/{quote(person, safe='')}/confirm"
        return await self._confirmed(path, "person", person, {"revision": revision})

    async def _confirmed(self, path: str, kind: str, name: str, said: dict[str, Any]) -> Confirmed:
        body = {word: value for word, value in said.items() if value is not None}
        made = await self._to.send("POST", path, dict[str, Any], body or None)
        return Confirmed(kind=kind, name=name, confirmed=made["confirmed"], unconfirmed=made["unconfirmed"])
