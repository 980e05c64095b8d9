"""Keys: the credentials of clients, of people and of the installation's operator.

Laws:
1. Only the call that creates a key returns its secret. Nobody can create a key for a person: a person exchanges an enrolment code for a
   key, which revokes the person's earlier keys.
2. A key cannot extend its own rights. A key with fewer roles than another key of its owner can neither replace nor revoke that key, and
   a key that replaces itself does not get a longer life.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec

from tenure.clock import us
from tenure.errors import TenureError, field_error
from tenure.kernel.identity_rows import ApiKeyRow
from tenure.kernel.separation_of_duties import join_people
from tenure.reads.identity import show_issued_key, show_key, split_list
from tenure.services.identity.changes import IdentityService
from tenure.services.identity.principals import OPERATOR_ID, OPERATOR_TENANT, Principal, new_key
from tenure.services.identity.validation import (
    check_name,
    check_roles,
    check_seconds,
    expiry_us,
    is_id,
    key_not_found,
)
from tenure.services.paging import ROWS_MAX
from tenure.shapes.identity import OVERLAP_SECONDS, ApiKey, IssuedApiKey
from tenure.shapes.pages import Page
from tenure.store.identity import AdminChange, ChangeResult, save_rows
from tenure.store.port import Query, Transaction

OVERLAP_SECONDS_MAX = 30 * 86_400.0
KEYS_PER_OWNER_MAX = 100
"""The working keys of one client or person."""
_List = list  # `Keys.list` hides the builtin in annotations of the class


class Keys(IdentityService):
    """The keys of a scope's tenant; see the laws above and those of `services.identity.changes`."""

    async def list(self, *, client: str | None = None, person: str | None = None) -> _List[ApiKey]:
        """The keys of the tenant, or of one client or person, newest first, including keys that ended."""
        return (await self.page(ROWS_MAX, client=client, person=person)).items

    async def page(
        self, limit: int, cursor: str | None = None, *, client: str | None = None, person: str | None = None
    ) -> Page[ApiKey]:
        if client is not None and person is not None:
            raise field_error("person", "name a client or a person, not both")
        kind, owner = ("client", client) if client is not None else ("person", person)
        if owner is not None and not is_id(owner):
            raise field_error(kind, "this is not an id")
        return await self.page_of_owner(("", "") if owner is None else (kind, owner), limit, cursor)

    async def page_of_owner(
        self, owner: tuple[str, str], limit: int, cursor: str | None = None
    ) -> Page[ApiKey]:
        """A page of the keys of an owner, by kind and id; `("", "")` is everybody."""
        return await self._page("keys_before", show_key, limit, cursor, last=owner)

    async def get(self, key_id: str) -> ApiKey:
        return show_key(await self._find("key_named", key_id, key_not_found(key_id)))

    async def create(
        self,
        client: str,
        *,
        name: str = "",
        roles: Collection[str] | None = None,
        expires_at: datetime | None = None,
    ) -> IssuedApiKey:
        """Create a key of a client, perhaps with fewer roles than the client has."""
        fewer = None if roles is None else check_roles(roles)
        label, made = check_name(name, fewest=0), new_key()

        def make(now: int) -> Transaction[ChangeResult[ApiKeyRow]]:
            scope, by = self._scope, self._scope.admin_actor
            owner = yield from self._client(client, is_open=True, field="client")
            yield from self._check_room("client", client, now)
            if fewer is not None and not set(split_list(fewer)) <= set(split_list(owner.roles)):
                raise field_error("roles", f"the client has only {', '.join(split_list(owner.roles))}")
            row = ApiKeyRow(
                made.id, scope.tenant, "client", client, label, made.hash, fewer, by.actor, now, expiry_us(expires_at, now),
                unconfirmed=by.people,
            )  # fmt: skip
            yield from save_rows(row)
            return row, [self._key_entry("key.created", row)]

        return show_issued_key(await self._change(make), made.text)

    async def create_for_operator(
        self, *, name: str = "", expires_at: datetime | None = None
    ) -> IssuedApiKey:
        """Create a key of the installation's operator. Only the owner of the database can; the scope's tenant is ''."""
        label, made = check_name(name, fewest=0), new_key()

        def make(now: int) -> Transaction[ChangeResult[ApiKeyRow]]:
            row = ApiKeyRow(
                made.id, OPERATOR_TENANT, "operator", OPERATOR_ID, label, made.hash, None, self._scope.admin_actor.actor, now,
                expiry_us(expires_at, now),
            )  # fmt: skip
            yield from save_rows(row)
            return row, [self._key_entry("key.created", row)]

        return show_issued_key(await self._change(make), made.text)

    async def rotate(
        self,
        key_id: str,
        *,
        overlap: float = OVERLAP_SECONDS,
        expires_at: datetime | None = None,
        own: bool = False,
    ) -> IssuedApiKey:
        """Replace a key. The old key works for `overlap` more seconds. The new key has the lifetime of the old one, unless
        `expires_at` is given. `own`: the caller replaces a key of its own (law 2); otherwise the key must not be a person's (law 1).
        """
        check_seconds("overlap", overlap, 0.0, OVERLAP_SECONDS_MAX)
        made = new_key()

        def make(now: int) -> Transaction[ChangeResult[ApiKeyRow]]:
            by = self._scope.admin_actor
            old = yield from self._key(key_id, own)
            if not own and old.owner_kind == "person":
                raise TenureError(
                    "FORBIDDEN",
                    "only the person rotates a person's key; `tenure people enrol` gives them a new one",
                )
            if _has_ended(old, now):
                raise field_error("key_id", "this key has ended: create a new one instead")
            yield from self._check_room(old.owner_kind, old.owner_id, now)
            until = expiry_us(expires_at, now)
            if old.expires_at is not None:
                usual = now + (old.expires_at - old.created_at)
                if own and until is not None and until > usual:
                    raise field_error("expires_at", "the new key cannot live longer than the old one")
                until = usual if until is None else until
            row = msgspec.structs.replace(
                old, id=made.id, hash=made.hash, created_by=by.actor, created_at=now, expires_at=until,
                used_at=None, replaced_until=None,
                # The owner of a key knew its secret before. Any other caller learns a new secret, and becomes involved.
                unconfirmed=old.unconfirmed if own else join_people(old.unconfirmed, by.people),
            )  # fmt: skip
            ends = now + us(overlap)
            ends = ends if old.replaced_until is None else min(ends, old.replaced_until)
            yield from save_rows(row, msgspec.structs.replace(old, replaced_until=ends))
            return row, [self._key_entry("key.rotated", row, instead_of=key_id, until=ends)]

        return show_issued_key(await self._change(make), made.text)

    async def revoke(self, key_id: str, *, own: bool = False) -> ApiKey:
        """End a key with its sessions and streams. `own`: the key must be the caller's own (law 2)."""

        def make(now: int) -> Transaction[ChangeResult[ApiKeyRow]]:
            row = yield from self._key(key_id, own)
            if row.revoked_at is not None:
                return row, []
            row = msgspec.structs.replace(row, revoked_at=now)
            yield from save_rows(row)
            return row, [self._entry("key.revoked", key=key_id, owner=f"{row.owner_kind}:{row.owner_id}")]

        return show_key(await self._change(make))

    def _key_entry(self, kind: str, row: ApiKeyRow, **about: Any) -> AdminChange:
        roles = None if row.roles is None else split_list(row.roles)
        owner = f"{row.owner_kind}:{row.owner_id}"
        return self._entry(kind, key=row.id, owner=owner, roles=roles, expires_at=row.expires_at, **about)

    def _key(self, key_id: str, own: bool) -> Transaction[ApiKeyRow]:
        tenant = self._scope.tenant
        caller: Principal | None = self._scope.caller if own else None
        found: ApiKeyRow = yield from self._named("key", key_id, key_not_found(key_id))
        if caller is None:
            return found
        if (found.owner_kind, found.owner_id) != (caller.kind, caller.id):
            raise key_not_found(key_id)
        if caller.kind != "operator":
            [owner] = yield Query(f"{caller.kind}_named", scalars=(tenant, caller.id))
            if not set(split_list(found.roles or owner.roles)) & set(split_list(owner.roles)) <= caller.roles:
                raise TenureError("FORBIDDEN", "that key has more roles than the key of this request")
        return found

    def _check_room(self, kind: str, owner: str, now: int) -> Transaction[None]:
        keys = yield Query("keys_owned", scalars=(self._scope.tenant, kind, owner))
        live = [key for key in keys if not _has_ended(key, now)]
        if len(live) >= KEYS_PER_OWNER_MAX:
            raise TenureError("LIMIT_EXCEEDED", f"{kind} {owner} has {len(live)} keys: revoke some first")


def _has_ended(key: ApiKeyRow, now: int) -> bool:
    ends = [at for at in (key.expires_at, key.replaced_until) if at is not None]
    return key.revoked_at is not None or any(at <= now for at in ends)
