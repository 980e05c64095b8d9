"""Where tenants, clients, people and keys are looked after: in a database, or over a server.

Law: both have the same words, so that a command does not know which it is. In a database whoever can write it may do it all; a
server asks for the key of an admin of the tenant, or of the installation's operator for tenants.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from tenure.client.transport import Transport
from tenure.embedded import Engine
from tenure.errors import TenureError
from tenure.kernel.decide.checks import check_cap
from tenure.kernel.model import Cap
from tenure.limits import INTEGER_MAX, MOMENT_US_MAX
from tenure.server.identity.directory import ENROLMENT_SECONDS, OVERLAP_SECONDS, Directory
from tenure.server.identity.installation import Installation
from tenure.server.identity.views import (
    AuditLine,
    ClientView,
    EnrolmentView,
    KeyView,
    NewKeyView,
    PersonView,
    SlackAppView,
    TenantView,
    audit_line,
    client_view,
    key_view,
    person_view,
    tenant_view,
)
from tenure.store.identity import Identity

LISTED_MAX = 1_000


class OfficeHere(Directory):
    """A tenant's clients, people and keys, in a database."""

    async def clients(self) -> list[ClientView]:
        """All of them, newest first."""
        return [client_view(row) for row in await self._newest("clients_before")]

    async def client(self, client: str) -> ClientView:
        """One of them."""
        found = await self._identity.read("client_named", self._tenant, client)
        if not found:
            raise TenureError("CLIENT_NOT_FOUND", f"there is no client {client!r} of tenant {self._tenant!r}")
        return client_view(found[0])

    async def people(self) -> list[PersonView]:
        """All of them, newest first."""
        return [person_view(row) for row in await self._newest("people_before")]

    async def person(self, person: str) -> PersonView:
        """One of them."""
        found = await self._identity.read("person_named", self._tenant, person)
        if not found:
            raise TenureError("PERSON_NOT_FOUND", f"there is no person {person!r} of tenant {self._tenant!r}")
        return person_view(found[0])

    async def keys(self, *, client: str | None = None, person: str | None = None) -> list[KeyView]:
        """All of them or one owner's, newest first."""
        whose = ("client", client) if client else ("person", person) if person else ("", "")
        return [key_view(row) for row in await self._newest("keys_before", *whose)]

    async def key(self, key_id: str) -> KeyView:
        """One of them."""
        found = await self._identity.read("key_named", self._tenant, key_id)
        if not found:
            raise TenureError("KEY_NOT_FOUND", f"there is no key {key_id[:64]!r} of tenant {self._tenant!r}")
        return key_view(found[0])

    async def _newest(self, query: str, *last: Any) -> list[Any]:
        return await self._identity.read(query, self._tenant, MOMENT_US_MAX, "", LISTED_MAX, *last)


class OfficeThere:
    """The same of the tenant whose admin's key is used, over a server."""

    def __init__(self, to: Transport) -> None:
        self._to = to

    async def clients(self) -> list[ClientView]:
        """All of them, newest first."""
        return await self._to.pages("/clients", ClientView, limit=LISTED_MAX)

    async def client(self, client: str) -> ClientView:
        """One of them."""
        return await self._to.get(_at("/clients", client), ClientView)

    async def add_client(
        self, *, name: str, roles: Collection[str], owner: str | None = None, client: str | None = None
    ) -> ClientView:
        """Make one."""
        body = {"id": client, "name": name, "roles": list(roles), "owner": owner}
        return await self._to.send("POST", "/clients", ClientView, body)

    async def set_client(
        self, client: str, *, name: str, roles: Collection[str], owner: str | None = None
    ) -> ClientView:
        """Change one."""
        body = {"name": name, "roles": list(roles), "owner": owner}
        return await self._to.send("PUT", _at("/clients", client), ClientView, body)

    async def close_client(self, client: str) -> ClientView:
        """Close one for good."""
        await self._to.ask("DELETE", _at("/clients", client))
        return await self.client(client)

    async def people(self) -> list[PersonView]:
        """All of them, newest first."""
        return await self._to.pages("/people", PersonView, limit=LISTED_MAX)

    async def person(self, person: str) -> PersonView:
        """One of them."""
        return await self._to.get(_at("/people", person), PersonView)

    async def add_person(
        self, *, name: str, roles: Collection[str], groups: Collection[str] = (), person: str | None = None,
        github: str | None = None,
    ) -> PersonView:  # fmt: skip
        """Make one."""
        body = {"id": person, "name": name, "roles": list(roles), "groups": list(groups), "github": github}
        return await self._to.send("POST", "/people", PersonView, body)

    async def set_person(
        self, person: str, *, name: str, roles: Collection[str], groups: Collection[str] = (),
        github: str | None = None,
    ) -> PersonView:  # fmt: skip
        """Change one."""
        body = {"name": name, "roles": list(roles), "groups": list(groups), "github": github}
        return await self._to.send("PUT", _at("/people", person), PersonView, body)

    async def close_person(self, person: str) -> PersonView:
        """Close one for good."""
        await self._to.ask("DELETE", _at("/people", person))
        return await self.person(person)

    async def invite(self, person: str, seconds: float = ENROLMENT_SECONDS) -> EnrolmentView:
        """A one-time code for one."""
        path = f"{_at('/people', person)}/enrolment"
        return await self._to.send("POST", path, EnrolmentView, {"expires_in": seconds})

    async def keys(self, *, client: str | None = None, person: str | None = None) -> list[KeyView]:
        """All of them or one owner's, newest first."""
        return await self._to.pages("/keys", KeyView, limit=LISTED_MAX, client=client, person=person)

    async def key(self, key_id: str) -> KeyView:
        """One of them."""
        return await self._to.get(_at("/keys", key_id), KeyView)

    async def add_key(
        self,
        client: str,
        *,
        name: str = "",
        roles: Collection[str] | None = None,
        expires_at: datetime | None = None,
    ) -> NewKeyView:
        """Make one of a client."""
        fewer = None if roles is None else list(roles)
        body = {"client": client, "name": name, "roles": fewer, "expires_at": expires_at}
        return await self._to.send("POST", "/keys", NewKeyView, body)

    async def add_operator_key(self, *, name: str = "", expires_at: datetime | None = None) -> NewKeyView:
        """Whoever can write the database is the operator: nobody becomes it over a server."""
        del name, expires_at
        raise TenureError("INVALID_INPUT", "an operator's key is made where the database is: use --db")

    async def rotate_key(
        self, key_id: str, *, overlap: float = OVERLAP_SECONDS, expires_at: datetime | None = None
    ) -> NewKeyView:
        """A new key in the place of one that works a while longer."""
        body = {"overlap": overlap, "expires_at": expires_at}
        return await self._to.send("POST", f"{_at('/keys', key_id)}/rotate", NewKeyView, body)

    async def revoke_key(self, key_id: str) -> KeyView:
        """End one."""
        await self._to.ask("DELETE", _at("/keys", key_id))
        return await self._to.get(_at("/keys", key_id), KeyView)


class InstallationHere(Installation):
    """Tenants, in a database."""

    def __init__(self, engine: Engine, actor: str) -> None:
        self._engine = engine
        self._rows = Identity(engine.store)
        super().__init__(self._rows, actor)

    async def tenants(self) -> list[TenantView]:
        """All of them, newest first."""
        rows = await self._rows.read("tenants_before", MOMENT_US_MAX, "", LISTED_MAX)
        return [tenant_view(row) for row in rows]

    async def caps(self, tenant: str) -> list[Cap]:
        """A tenant's weights and limits: its own, its workspaces' and its workflows'."""
        await self.tenant(tenant)
        rows: list[Cap] = await self._rows.read("all_caps")
        return sorted((cap for cap in rows if cap.tenant == tenant), key=_scope)

    async def set_cap(self, tenant: str, scope: str, *asked: int | None, clear: bool = False) -> list[Cap]:
        """Set one of them (in the order of `LIMITS`; None: as it is); all of them then."""
        known = {cap.scope: cap for cap in await self.caps(tenant)}
        cap = _changed(known.get(scope, Cap(tenant, scope)), asked, clear)
        check_cap(cap)
        await self.note("tenant.caps_set", tenant=tenant, caps={scope: _limits(cap)})
        await self._engine.put_caps([cap])
        return sorted({**known, scope: cap}.values(), key=_scope)

    async def audit(self, tenant: str) -> tuple[list[AuditLine], list[str]]:
        """The newest lines of a chain, and what is wrong with it as a whole."""
        rows = await self._rows.read("admin_events_before", tenant, INTEGER_MAX, LISTED_MAX)
        return [audit_line(row) for row in rows], await self._rows.broken_chain(tenant)


class InstallationThere:
    """Tenants, over a server, with the operator's key."""

    def __init__(self, to: Transport) -> None:
        self._to = to

    async def tenants(self) -> list[TenantView]:
        """All of them, newest first."""
        return await self._to.pages("/admin/tenants", TenantView, limit=LISTED_MAX)

    async def tenant(self, tenant: str) -> TenantView:
        """One of them."""
        return await self._to.get(_at("/admin/tenants", tenant), TenantView)

    async def add_tenant(self, tenant: str, *, name: str) -> TenantView:
        """Make one."""
        return await self._to.send("POST", "/admin/tenants", TenantView, {"id": tenant, "name": name})

    async def set_tenant(
        self, tenant: str, *, name: str | None = None, closed: bool | None = None
    ) -> TenantView:
        """Rename, close or reopen one."""
        body = {"name": name or (await self.tenant(tenant)).name, "closed": closed}
        return await self._to.send("PUT", _at("/admin/tenants", tenant), TenantView, body)

    async def caps(self, tenant: str) -> list[Cap]:
        """A tenant's weights and limits: its own, its workspaces' and its workflows'."""
        return _listed(tenant, await self._to.get(f"{_at('/admin/tenants', tenant)}/caps", dict[str, Any]))

    async def set_cap(self, tenant: str, scope: str, *asked: int | None, clear: bool = False) -> list[Cap]:
        """Set one of them; a server takes them as a whole."""
        known = {cap.scope: cap for cap in await self.caps(tenant)}
        known[scope] = _changed(known.get(scope, Cap(tenant, scope)), asked, clear)
        body: dict[str, Any] = {"workspaces": {}, "workflows": {}}
        for cap in known.values():
            kind, _, name = cap.scope.partition(":")
            place = body if not kind else body["workspaces" if kind == "ws" else "workflows"]
            place[name or "tenant"] = dict(zip(LIMITS, _limits(cap), strict=True))
        path = f"{_at('/admin/tenants', tenant)}/caps"
        return _listed(tenant, await self._to.send("PUT", path, dict[str, Any], body))

    async def slack_apps(self, tenant: str) -> list[SlackAppView]:
        """The Slack apps of a tenant, by team."""
        return await self._to.get(f"{_at('/admin/tenants', tenant)}/slack-apps", list[SlackAppView])

    async def set_slack_app(self, tenant: str, team: str, secrets: Sequence[str]) -> SlackAppView:
        """Register the Slack app of a team."""
        path = _at(f"{_at('/admin/tenants', tenant)}/slack-apps", team)
        return await self._to.send("PUT", path, SlackAppView, {"secrets": list(secrets)})

    async def drop_slack_app(self, tenant: str, team: str) -> None:
        """Remove it."""
        await self._to.ask("DELETE", _at(f"{_at('/admin/tenants', tenant)}/slack-apps", team))

    async def audit(self, tenant: str) -> tuple[list[AuditLine], list[str]]:
        """The newest lines: the installation's own by the operator's key, a tenant's by its admin's. Whether the chain is
        whole is told where the database is."""
        path = "/audit" if tenant else "/admin/audit"
        return await self._to.pages(path, AuditLine, limit=LISTED_MAX), []


LIMITS = ("weight", "max_concurrency", "max_runs_per_min", "max_writes_per_run")


def _scope(cap: Cap) -> str:
    return cap.scope


def _limits(cap: Cap) -> list[int | None]:
    return [getattr(cap, name) for name in LIMITS]


def _changed(cap: Cap, asked: tuple[int | None, ...], clear: bool) -> Cap:
    """A cap with what is asked of it; cleared, it limits nothing."""
    if clear:
        return Cap(cap.tenant, cap.scope)
    said = {word: value for word, value in zip(LIMITS, asked, strict=True) if value is not None}
    return msgspec.structs.replace(cap, **said)


def _listed(tenant: str, caps: dict[str, Any]) -> list[Cap]:
    """Caps as a server shows them, one by one."""
    found = {"": caps["tenant"]}
    found |= {f"ws:{name}": limits for name, limits in caps["workspaces"].items()}
    found |= {f"wf:{name}": limits for name, limits in caps["workflows"].items()}
    return [Cap(tenant, scope, **limits) for scope, limits in sorted(found.items())]


def _at(place: str, name: str) -> str:
    return f"{place}/{quote(name, safe='')}"
