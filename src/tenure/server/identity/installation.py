"""The installation: its tenants, made and closed by its operator; and how a person enrols.

Laws:
1. Changes of tenants are lines of the installation's own chain (tenant '').
2. Whatever is wrong with an enrolment code is refused in the same way, and a code is good once.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence

import msgspec

from tenure.errors import TenureError
from tenure.kernel.behind import joined
from tenure.kernel.service import ApiKey, Person, SlackApp, Tenant
from tenure.server.identity.checks import checked_name, chosen_id, invalid, is_id, taken
from tenure.server.identity.principals import OPERATOR_TENANT, new_key
from tenure.server.identity.views import (
    NewKeyView,
    SlackAppView,
    TenantView,
    new_key_view,
    slack_app_view,
    tenant_view,
)
from tenure.store.identity import Change, Identity, Told, digest_of, no_tenant, saved
from tenure.store.port import Query, Transaction

TEAM = re.compile(r"[TE][A-Z0-9]{1,30}")
"""Slack's ids of teams."""
SLACK_SECRETS_MAX = 2


class Installation:
    """The changes of tenants, asked for by `actor`."""

    def __init__(self, identity: Identity, actor: str) -> None:
        self._identity = identity
        self._actor = actor

    async def add_tenant(self, tenant: str, *, name: str) -> TenantView:
        """Make a tenant."""
        chosen, named = chosen_id(tenant, ""), checked_name(name)

        def make(now: int) -> Transaction[Told[Tenant]]:
            if (yield Query("tenant_named", scalars=(chosen,))):
                raise taken("tenant", chosen)
            row = Tenant(chosen, named, "{}", now)
            yield from saved(row)
            return row, [self._line("tenant.created", tenant=chosen)]

        return tenant_view(await self._identity.change(OPERATOR_TENANT, make))

    async def tenant(self, tenant: str) -> TenantView:
        """A tenant."""
        if not is_id(tenant):
            raise no_tenant(tenant[:64])
        return tenant_view(await self._identity.tenant(tenant))

    async def set_tenant(
        self, tenant: str, *, name: str | None = None, closed: bool | None = None
    ) -> TenantView:
        """Rename a tenant, close it (none of its keys works any more) or open it again."""
        named = None if name is None else checked_name(name)

        def make(now: int) -> Transaction[Told[Tenant]]:
            found = (yield Query("tenant_named", scalars=(tenant,))) if is_id(tenant) else []
            if not found:
                raise no_tenant(tenant[:64])
            before: Tenant = found[0]
            row = before if named is None else msgspec.structs.replace(before, name=named)
            lines = [] if row.name == before.name else [self._line("tenant.renamed", tenant=tenant)]
            if closed is not None and closed != (before.closed_at is not None):
                row = msgspec.structs.replace(row, closed_at=now if closed else None)
                lines.append(self._line("tenant.closed" if closed else "tenant.opened", tenant=tenant))
            if lines:
                yield from saved(row)
            return row, lines

        return tenant_view(await self._identity.change(OPERATOR_TENANT, make))

    async def set_slack_app(self, tenant: str, team: str, secrets: Sequence[str]) -> SlackAppView:
        """Register the Slack app of a team, by the references of its signing secret: through it a tenant's people link accounts
        and decide. The caller has checked that they are the tenant's."""
        if not TEAM.fullmatch(team):
            raise invalid("team", "is Slack's id of a team, like T0123456789")
        if not 1 <= len(secrets) <= SLACK_SECRETS_MAX:
            raise invalid("secrets", f"there is one, or during a rotation {SLACK_SECRETS_MAX}")

        def make(now: int) -> Transaction[Told[SlackApp]]:
            yield from self._known(tenant)
            row = SlackApp(tenant, team, msgspec.json.encode(list(secrets)).decode(), self._actor, now)
            yield from saved(row)
            return row, self._both("slack_app.registered", tenant, team=team)

        return slack_app_view(await self._identity.change(OPERATOR_TENANT, make))

    async def drop_slack_app(self, tenant: str, team: str) -> None:
        """Nobody links or decides through this app any more."""

        def make(_now: int) -> Transaction[Told[None]]:
            yield from self._known(tenant)
            gone = yield Query("delete_slack_app", scalars=(tenant, team))
            if not gone:
                raise TenureError("SLACK_APP_NOT_FOUND", f"there is no Slack app of team {team[:64]!r}")
            return None, self._both("slack_app.removed", tenant, team=team)

        await self._identity.change(OPERATOR_TENANT, make)

    async def slack_apps(self, tenant: str) -> list[SlackAppView]:
        """The Slack apps of a tenant, by team."""
        await self.tenant(tenant)
        return [slack_app_view(row) for row in await self._identity.read("slack_apps_of", tenant)]

    def _known(self, tenant: str) -> Transaction[None]:
        found = (yield Query("tenant_named", scalars=(tenant,))) if is_id(tenant) else []
        if not found:
            raise no_tenant(tenant[:64])

    def _both(self, kind: str, tenant: str, **about: object) -> list[Change]:
        """A line for the installation's chain, and the same for the tenant's, whose people it concerns."""
        line = self._line(kind, tenant=tenant, **about)
        return [line, msgspec.structs.replace(line, tenant=tenant)]

    async def note(self, kind: str, **about: object) -> None:
        """Write a line into the installation's chain."""

        def make(_now: int) -> Transaction[Told[None]]:
            yield from ()
            return None, [self._line(kind, **about)]

        await self._identity.change(OPERATOR_TENANT, make)

    def _line(self, kind: str, **about: object) -> Change:
        return Change(tenant=OPERATOR_TENANT, kind=kind, actor=self._actor, about=about)


async def enrol(identity: Identity, code: str) -> tuple[Person, NewKeyView]:
    """Give a person a key for an enrolment code; keys that person had before are revoked: they were lost."""
    digest, made = digest_of(code), new_key()
    found: list[Person] = await identity.read("person_enrolling", digest)
    if not found:
        raise TenureError("ENROLMENT_INVALID")
    tenant, person = found[0].tenant, found[0].id

    def make(now: int) -> Transaction[Told[tuple[Person, ApiKey]]]:
        [row] = yield Query("person_named", scalars=(tenant, person))
        [whose] = yield Query("tenant_named", scalars=(tenant,))
        fits = row.enrol_hash is not None and hmac.compare_digest(row.enrol_hash, digest)
        if not fits or row.enrol_until <= now or row.closed_at is not None or whose.closed_at is not None:
            raise TenureError("ENROLMENT_INVALID")
        keys = yield Query("keys_owned", scalars=(tenant, "person", person))
        lost = [msgspec.structs.replace(old, revoked_at=now) for old in keys if old.revoked_at is None]
        actor = f"person:{person}"
        row = msgspec.structs.replace(
            row,
            enrol_hash=None,
            enrol_until=None,
            enrol_by="",
            revision=row.revision + 1,
            unconfirmed=joined(row.unconfirmed, row.enrol_by),
        )
        key = ApiKey(made.id, tenant, "person", person, "enrolled", made.hash, None, actor, now, None)
        yield from saved(row, *lost, key)
        about = {
            "person": person,
            "key": key.id,
            "revoked": [old.id for old in lost],
            "unconfirmed": row.unconfirmed.split(),
        }
        return (row, key), [Change(tenant=tenant, kind="person.enrolled", actor=actor, about=about)]

    row, key = await identity.change(tenant, make)
    return row, new_key_view(key, made.text)
