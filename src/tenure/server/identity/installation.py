"""The installation: its tenants, made and closed by its operator; and how a person enrols.

Laws:
1. Changes of tenants are lines of the installation's own chain (tenant '').
2. Whatever is wrong with an enrolment code is refused in the same way, and a code is good once.
"""

from __future__ import annotations

import hmac

import msgspec

from tenure.errors import TenureError
from tenure.kernel.service import ApiKey, Person, Tenant
from tenure.server.identity.checks import checked_name, chosen_id, is_id, taken
from tenure.server.identity.principals import OPERATOR_TENANT, new_key
from tenure.server.identity.views import NewKeyView, TenantView, new_key_view, tenant_view
from tenure.store.identity import Change, Identity, Told, digest_of, no_tenant, saved
from tenure.store.port import Query, Transaction


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
        row = msgspec.structs.replace(row, enrol_hash=None, enrol_until=None)
        key = ApiKey(made.id, tenant, "person", person, "enrolled", made.hash, None, actor, now, None)
        yield from saved(row, *lost, key)
        about = {"person": person, "key": key.id, "revoked": [old.id for old in lost]}
        return (row, key), [Change(tenant=tenant, kind="person.enrolled", actor=actor, about=about)]

    row, key = await identity.change(tenant, make)
    return row, new_key_view(key, made.text)
