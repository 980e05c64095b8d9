"""The people, clients and keys of a tenant, for an admin's key; and all tenants, for the operator's key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from tenure.client.transport import RemoteGroup, join_path
from tenure.errors import TenureError
from tenure.shapes.identity import (
    ENROLMENT_SECONDS,
    OVERLAP_SECONDS,
    ApiClient,
    ApiKey,
    AuditEntry,
    EnrolledPerson,
    Enrolment,
    IssuedApiKey,
    Person,
    SlackApp,
    Tenant,
    TenantAudit,
    TenantCaps,
)

ROWS_MAX = 1_000
_List = list  # the method `list` hides the builtin in annotations of a class


class RemoteClients(RemoteGroup):
    """`engine.clients`, over HTTP."""

    async def list(self) -> _List[ApiClient]:
        return await self._transport.pages("/clients", ApiClient, limit=ROWS_MAX)

    async def get(self, client: str) -> ApiClient:
        return await self._transport.get(join_path("clients", client), ApiClient)

    async def create(
        self, *, name: str, roles: Collection[str], owner: str | None = None, client: str | None = None
    ) -> ApiClient:
        body = {"id": client, "name": name, "roles": [*roles], "owner": owner}
        return await self._transport.send("POST", "/clients", ApiClient, body)

    async def update(
        self, client: str, *, name: str, roles: Collection[str], owner: str | None = None
    ) -> ApiClient:
        body = {"name": name, "roles": [*roles], "owner": owner}
        return await self._transport.send("PUT", join_path("clients", client), ApiClient, body)

    async def close(self, client: str) -> ApiClient:
        await self._transport.ask("DELETE", join_path("clients", client))
        return await self.get(client)


class RemotePeople(RemoteGroup):
    """`engine.people`, over HTTP."""

    async def list(self) -> _List[Person]:
        return await self._transport.pages("/people", Person, limit=ROWS_MAX)

    async def get(self, person: str) -> Person:
        return await self._transport.get(join_path("people", person), Person)

    async def create(
        self, *, name: str, roles: Collection[str], groups: Collection[str] = (), person: str | None = None,
        github: str | None = None,
    ) -> Person:  # fmt: skip
        body = {"id": person, "name": name, "roles": [*roles], "groups": [*groups], "github": github}
        return await self._transport.send("POST", "/people", Person, body)

    async def update(
        self, person: str, *, name: str, roles: Collection[str], groups: Collection[str] = (),
        github: str | None = None,
    ) -> Person:  # fmt: skip
        body = {"name": name, "roles": [*roles], "groups": [*groups], "github": github}
        return await self._transport.send("PUT", join_path("people", person), Person, body)

    async def close(self, person: str) -> Person:
        await self._transport.ask("DELETE", join_path("people", person))
        return await self.get(person)

    async def invite(self, person: str, seconds: float = ENROLMENT_SECONDS) -> Enrolment:
        return await self._transport.send(
            "POST", join_path("people", person, "enrolment"), Enrolment, {"expires_in": seconds}
        )

    async def enrol(self, code: str) -> EnrolledPerson:
        return await self._transport.send("POST", "/enrolments", EnrolledPerson, {"code": code})


class RemoteKeys(RemoteGroup):
    """`engine.keys`, over HTTP."""

    async def list(self, *, client: str | None = None, person: str | None = None) -> _List[ApiKey]:
        return await self._transport.pages("/keys", ApiKey, limit=ROWS_MAX, client=client, person=person)

    async def get(self, key_id: str) -> ApiKey:
        return await self._transport.get(join_path("keys", key_id), ApiKey)

    async def create(
        self,
        client: str,
        *,
        name: str = "",
        roles: Collection[str] | None = None,
        expires_at: datetime | None = None,
    ) -> IssuedApiKey:
        body = {
            "client": client,
            "name": name,
            "roles": None if roles is None else [*roles],
            "expires_at": expires_at,
        }
        return await self._transport.send("POST", "/keys", IssuedApiKey, body)

    async def create_for_operator(
        self, *, name: str = "", expires_at: datetime | None = None
    ) -> IssuedApiKey:
        """Refused: only the owner of the database creates an operator's key."""
        raise TenureError(
            "INVALID_INPUT", "an operator's key can only be created with database access: use --db"
        )

    async def rotate(
        self, key_id: str, *, overlap: float = OVERLAP_SECONDS, expires_at: datetime | None = None
    ) -> IssuedApiKey:
        body = {"overlap": overlap, "expires_at": expires_at}
        return await self._transport.send("POST", join_path("keys", key_id, "rotate"), IssuedApiKey, body)

    async def revoke(self, key_id: str) -> ApiKey:
        await self._transport.ask("DELETE", join_path("keys", key_id))
        return await self.get(key_id)


class RemoteTenants(RemoteGroup):
    """`engine.tenants`, over HTTP, with the operator's key."""

    async def list(self) -> _List[Tenant]:
        return await self._transport.pages("/admin/tenants", Tenant, limit=ROWS_MAX)

    async def get(self, tenant: str) -> Tenant:
        return await self._transport.get(join_path("admin", "tenants", tenant), Tenant)

    async def create(self, tenant: str, *, name: str) -> Tenant:
        return await self._transport.send("POST", "/admin/tenants", Tenant, {"id": tenant, "name": name})

    async def update(self, tenant: str, *, name: str | None = None, closed: bool | None = None) -> Tenant:
        body = {"name": name or (await self.get(tenant)).name, "closed": closed}
        return await self._transport.send("PUT", join_path("admin", "tenants", tenant), Tenant, body)

    async def caps(self, tenant: str) -> TenantCaps:
        return await self._transport.get(join_path("admin", "tenants", tenant, "caps"), TenantCaps)

    async def set_caps(self, tenant: str, caps: TenantCaps) -> TenantCaps:
        return await self._transport.send(
            "PUT", join_path("admin", "tenants", tenant, "caps"), TenantCaps, caps
        )

    async def slack_apps(self, tenant: str) -> _List[SlackApp]:
        return await self._transport.get(join_path("admin", "tenants", tenant, "slack-apps"), _List[SlackApp])

    async def set_slack_app(self, tenant: str, team: str, secrets: Sequence[str]) -> SlackApp:
        path = join_path("admin", "tenants", tenant, "slack-apps", team)
        return await self._transport.send("PUT", path, SlackApp, {"secrets": [*secrets]})

    async def remove_slack_app(self, tenant: str, team: str) -> None:
        await self._transport.ask("DELETE", join_path("admin", "tenants", tenant, "slack-apps", team))

    async def audit(self, tenant: str = "") -> TenantAudit:
        """The installation's chain needs the operator's key, a tenant's chain the key of its admin."""
        return TenantAudit(
            entries=await self._transport.pages(
                "/audit" if tenant else "/admin/audit", AuditEntry, limit=ROWS_MAX
            ),
            problems=[],
        )
