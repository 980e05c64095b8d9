"""Tenants, clients, people, keys and sessions, and the admin chain of changes to them.

Laws:
1. A change and its line in the tenant's admin chain are one transaction, and changes of one tenant come one after the
   other: what a change has read still holds when it writes.
2. A secret is shown once, to the person it is made for; only its SHA-256 is stored.
3. Closed and revoked rows stay, so that histories can still be read; they only grant no access.
4. No line of a chain contains a secret or a name: only ids, roles and groups.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.identity_rows import (
    AccountLinkRow,
    AdminEventRow,
    ApiKeyRow,
    ClientRow,
    PersonRow,
    SessionRow,
    SlackAppRow,
    SlackCodeRow,
    TenantRow,
    UnconfirmedPerson,
)
from tenure.kernel.registry_rows import ScheduleRow, WorkflowRow
from tenure.kernel.server_rows import HookRow
from tenure.store.port import Query, RowType, Transaction
from tenure.store.transactions import Repository, read_first, run_transaction, timed_transaction, write_rows

T = TypeVar("T")

SLACK_CODE_SECONDS = 600.0


class ChainedTenant(msgspec.Struct, gc=False):
    tenant: str


class KeyOwner(msgspec.Struct, gc=False):
    """A key with its owner: all that is needed to authenticate a request."""

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
    """The owner's roles; the operator has an empty list."""
    groups: str
    owner: str | None
    closed: bool
    """Whether the owner or the tenant is closed."""
    unconfirmed: str
    """Who has created or changed the key or its owner since a second person confirmed it, as `id id`."""
    now_us: int


READS: dict[str, RowType] = {
    "key_owner": KeyOwner,  # () ; key_id, now
    "tenant_named": TenantRow,  # () ; id
    "tenants_before": TenantRow,  # () ; created_at, id, limit -> newest first
    "clients_before": ClientRow,  # () ; tenant, created_at, id, limit -> newest first
    "client_named": ClientRow,  # () ; tenant, id
    "people_before": PersonRow,  # () ; tenant, created_at, id, limit -> newest first
    "person_named": PersonRow,  # () ; tenant, id
    "person_of_slack": PersonRow,  # () ; tenant, slack
    "person_of_github": PersonRow,  # () ; tenant, login in lower case
    "person_enrolling": PersonRow,  # () ; enrol_hash
    "keys_before": ApiKeyRow,  # () ; tenant, created_at, id, limit, owner_kind or '', owner_id -> newest first
    "keys_owned": ApiKeyRow,  # () ; tenant, owner_kind, owner_id
    "key_named": ApiKeyRow,  # () ; tenant, id
    "session_named": SessionRow,  # () ; hash
    "people_unconfirmed": UnconfirmedPerson,  # () ; tenant -> those who count as one with others
    "approvers_of": PersonRow,  # () ; tenant, limit -> open, with the role
    "account_links_of": AccountLinkRow,  # () ; tenant, account -> everybody who has or had it
    "slack_app_of": SlackAppRow,  # () ; tenant, team
    "slack_apps_of": SlackAppRow,  # () ; tenant
    "workflow_version": WorkflowRow,  # () ; tenant, name, version
    "admin_events_after": AdminEventRow,  # () ; tenant, after_seq, limit -> in order
    "admin_events_before": AdminEventRow,  # () ; tenant, before_seq, limit -> newest first
    "admin_head": AdminEventRow,  # () ; tenant -> the newest
    "admin_chains": ChainedTenant,  # ()
}

WRITES: dict[str, RowType] = {
    "save_tenant": TenantRow,
    "save_client": ClientRow,
    "save_person": PersonRow,
    "save_api_key": ApiKeyRow,
    "touch_key": ApiKeyRow,
    "save_session": SessionRow,
    "delete_session": SessionRow,
    "delete_expired_sessions": SessionRow,
    "save_slack_code": SlackCodeRow,
    "take_slack_code": SlackCodeRow,
    "delete_expired_slack_codes": SlackCodeRow,
    "save_account_link": AccountLinkRow,
    "save_admin_event": AdminEventRow,
    "save_slack_app": SlackAppRow,
    "delete_slack_app": SlackAppRow,  # tenant, team
    "confirm_hook": HookRow,  # tenant, id, revision, unconfirmed
    "confirm_schedule": ScheduleRow,  # tenant, name, revision, unconfirmed
    "confirm_workflow": WorkflowRow,  # tenant, name, version, digest, unconfirmed
}
"""The `save_` queries insert a whole row, or replace it by its key."""

IdentityRow = TenantRow | ClientRow | PersonRow | ApiKeyRow | SessionRow | AccountLinkRow | SlackAppRow


class AdminChange(msgspec.Struct, frozen=True, kw_only=True):
    """A line for the admin chain: what was done, by whom, to what (law 4)."""

    tenant: str
    kind: str
    actor: str
    about: dict[str, Any] = {}


DATABASE_OWNER = "database-owner"
"""The audit chain names the account that owns the database `database-owner:uid:1000`."""


class AdminActor(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes or confirms an administrative change."""

    actor: str
    """The name in the audit chain."""
    people: str
    """Everybody who answers for the change, as `id id`."""
    breaks_glass: bool = False
    """Whether the actor is the installation's operator or owns the database: they need no second person."""


ChangeResult = tuple[T, list[AdminChange]]
"""The result of a change, and its lines."""


class Identity(Repository):
    """The identities of a store; see the laws above."""

    # ------------------------------------------------------------------------------------------ looking

    async def owner_of(self, key_id: str) -> KeyOwner | None:
        return await read_first(self._store, KeyOwner, "key_owner", key_id, await self.now_us())

    async def now_us(self) -> int:
        return self._store.estimate_us() or (await self._store.read("now"))[0].now_us

    async def read(self, name: str, *values: Any) -> list[Any]:
        return await self._store.read(name, *values)

    async def tenant(self, tenant: str) -> TenantRow:
        """A tenant, or TENANT_NOT_FOUND."""
        found = await read_first(self._store, TenantRow, "tenant_named", tenant)
        if found is None:
            raise tenant_not_found(tenant)
        return found

    async def find_person_by_slack(self, tenant: str, team: str, user: str) -> PersonRow | None:
        """The person who has linked this Slack account, unless the person is closed."""
        found = await read_first(self._store, PersonRow, "person_of_slack", tenant, f"{team}/{user}")
        return found if found and found.closed_at is None else None

    async def find_account_links(self, tenant: str, account: str) -> list[AccountLinkRow]:
        """Everybody who has or had this account (`slack:TEAM/USER`, `github:LOGIN`)."""
        return await self._store.read("account_links_of", tenant, account)

    # ----------------------------------------------------------------------------------------- changing

    async def change(self, tenant: str, make: Callable[[int], Transaction[ChangeResult[T]]]) -> T:
        """Carry out a change of a tenant's people, clients or keys: `make(now)` reads, checks and writes (law 1)."""

        def work() -> Transaction[T]:
            yield _lock(tenant)
            now = (yield Query("now"))[0].now_us
            result, lines = yield from make(now)
            for line in lines:
                yield from append_admin_event(line, now)
            return result

        return await run_transaction(self._store, work)

    async def put(self, row: IdentityRow, change: AdminChange | None) -> None:
        """Insert or replace a row, with its line in the chain (law 1); a session has none."""
        await self.put_all([row], change)

    async def put_all(self, rows: list[IdentityRow], change: AdminChange | None) -> None:
        """Insert or replace several rows, with one line in the chain."""

        def make(_now: int) -> Transaction[ChangeResult[None]]:
            yield from save_rows(*rows)
            return None, [] if change is None else [change]

        await self.change("" if change is None else change.tenant, make)

    async def touch_key(self, key_id: str, hour_us: int) -> None:
        """Record the hour in which a key was used."""
        await write_rows(self._store, "touch_key", key_id, hour_us)

    async def end_session(self, digest: bytes) -> None:
        """Sign a browser out."""
        await write_rows(self._store, "delete_session", digest)

    @timed_transaction
    def begin_session(
        self, now: int, digest: bytes, key_id: str, tenant: str, seconds: float
    ) -> Transaction[SessionRow]:
        """Sign a browser in, and delete expired sessions."""
        yield Query("delete_expired_sessions", scalars=(now,))
        session = SessionRow(digest, key_id, tenant, now, now + us(seconds))
        yield from save_rows(session)
        return session

    @timed_transaction
    def slack_code(self, now: int, tenant: str, team: str, user: str) -> Transaction[str]:
        """A code that proves, once and for ten minutes, who has this Slack account. Show it to that account only; the person
        gives it to `PUT /me/slack`."""
        yield Query("delete_expired_slack_codes", scalars=(now,))
        code = f"tns_{secrets.token_urlsafe(32)}"
        yield Query(
            "save_slack_code",
            scalars=(hash_secret(code), tenant, f"{team}/{user}", now + us(SLACK_CODE_SECONDS)),
        )
        return code


def hash_secret(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def tenant_not_found(tenant: str) -> TenureError:
    return TenureError("TENANT_NOT_FOUND", f"there is no tenant {tenant!r}")


def save_rows(*rows: IdentityRow) -> Transaction[None]:
    """Insert or replace rows, within a transaction."""
    for row in rows:
        yield Query(f"save_{row.table}", scalars=msgspec.structs.astuple(row))


def next_admin_event(
    before: AdminEventRow | None, tenant: str, kind: str, at: int, actor: str, body: bytes
) -> AdminEventRow:
    """The next line of a tenant's chain: its hash covers the one before, with length prefixes."""
    seq = 1 if before is None else before.seq + 1
    parts = (b"tenure-admin-1", b"" if before is None else before.hash, tenant.encode(), str(seq).encode(),
             kind.encode(), str(at).encode(), actor.encode(), body)  # fmt: skip
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return AdminEventRow(tenant, seq, kind, at, actor, body, digest.digest())


def _lock(tenant: str) -> Query:
    """The lock for changes of a tenant's people and of its chain. (No tenant can have this name.)"""
    return Query("lock_tenants", ((f"admin/{tenant}",),))


def append_admin_event(change: AdminChange, now: int) -> Transaction[None]:
    """Add a line to a chain, within a transaction."""
    yield _lock(change.tenant)
    before = yield Query("admin_head", scalars=(change.tenant,))
    line = next_admin_event(
        before[0] if before else None,
        change.tenant,
        change.kind,
        now,
        change.actor,
        msgspec.json.encode(change.about, order="sorted"),
    )
    yield Query("save_admin_event", scalars=msgspec.structs.astuple(line))
