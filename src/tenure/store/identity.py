"""Who may ask, read and written: tenants, clients, people, keys, sessions, and the chain of changes to them.

Laws:
1. A change and its line in the tenant's admin chain are one transaction.
2. A secret is shown once, to whoever it is made for; what is kept is its SHA-256.
3. What is closed or revoked stays, so that histories can still be read; it only cannot ask any more.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.kernel.service import AdminEvent, ApiKey, Client, Person, Session, Tenant
from tenure.store.beside import settled
from tenure.store.port import Answer, Query, Store, Transaction


class Owner(msgspec.Struct, gc=False):
    """A key with what is known of its owner: all that is needed to let somebody in."""

    id: str
    tenant: str
    owner_kind: str
    owner_id: str
    hash: bytes
    key_roles: str | None
    expires_at: int | None
    revoked_at: int | None
    used_at: int | None
    roles: str
    """The owner's; of the operator an empty list."""
    groups: str
    owner: str | None
    closed: bool
    """Whether the owner or the tenant is."""
    now_us: int


READS: dict[str, Answer] = {
    "key_owner": Owner,  # () ; key_id, now
    "tenant_named": Tenant,  # () ; id
    "tenants_after": Tenant,  # () ; after_id, limit -> by id
    "clients_of": Client,  # () ; tenant, after_id, limit -> by id
    "client_named": Client,  # () ; tenant, id
    "people_of": Person,  # () ; tenant, after_id, limit -> by id
    "person_named": Person,  # () ; tenant, id
    "keys_of": ApiKey,  # () ; tenant, after_id, limit -> by id
    "key_named": ApiKey,  # () ; tenant, id
    "session_named": Session,  # () ; hash
    "admin_events_after": AdminEvent,  # () ; tenant, after_seq, limit -> in order
    "admin_head": AdminEvent,  # () ; tenant -> the newest
}
"""Queries used on their own; `identity.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "save_tenant": Tenant,
    "save_client": Client,
    "save_person": Person,
    "save_api_key": ApiKey,
    "save_session": Session,
    "delete_session": Session,
    "delete_expired_sessions": Session,
    "save_admin_event": AdminEvent,
}
"""Statements of small transactions of their own. The `save_` ones insert a whole row, or replace it by its key."""


def chained(
    before: AdminEvent | None, tenant: str, kind: str, at: int, actor: str, body: bytes
) -> AdminEvent:
    """The next line of a tenant's chain: its hash covers the one before, with length prefixes."""
    seq = 1 if before is None else before.seq + 1
    parts = (b"tenure-admin-1", b"" if before is None else before.hash, tenant.encode(), str(seq).encode(),
             kind.encode(), str(at).encode(), actor.encode(), body)  # fmt: skip
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return AdminEvent(tenant, seq, kind, at, actor, body, digest.digest())


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A line for the admin chain: what was done, by whom, to what. No secrets and no names."""

    tenant: str
    kind: str
    actor: str
    about: dict[str, Any] = {}


class Identity:
    """See the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def owner_of(self, key_id: str) -> Owner | None:
        """A key and its owner."""
        now = (await self._store.read("now"))[0].now_us
        found: list[Owner] = await self._store.read("key_owner", key_id, now)
        return found[0] if found else None

    async def put(self, row: Tenant | Client | Person | ApiKey | Session, change: Change | None) -> None:
        """Insert or replace a row, with its line in the chain (law 1); a session has none."""
        await self.put_all([row], change)

    async def put_all(
        self, rows: list[Tenant | Client | Person | ApiKey | Session], change: Change | None
    ) -> None:
        """Likewise of several, in one transaction."""

        def work() -> Transaction[None]:
            now = (yield Query("now"))[0].now_us
            for row in rows:
                yield Query(f"save_{row.table}", scalars=msgspec.structs.astuple(row))
            if change is not None:
                yield from _told(change, now)

        await settled(self._store, work)

    async def tenant(self, tenant: str) -> Tenant:
        """A tenant, or TENANT_NOT_FOUND."""
        found: list[Tenant] = await self._store.read("tenant_named", tenant)
        if not found:
            raise TenureError("TENANT_NOT_FOUND", f"there is no tenant {tenant!r}")
        return found[0]


def _told(change: Change, now: int) -> Transaction[None]:
    """Add a line to a chain. Of two writers one is refused by the key and does it all again."""
    before = yield Query("admin_head", scalars=(change.tenant,))
    body = msgspec.json.encode(change.about, order="sorted")
    line = chained(before[0] if before else None, change.tenant, change.kind, now, change.actor, body)
    yield Query("save_admin_event", scalars=msgspec.structs.astuple(line))
