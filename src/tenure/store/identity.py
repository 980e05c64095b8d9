"""Who may ask, read and written: tenants, clients, people, keys, sessions, and the chain of changes to them.

Laws:
1. A change and its line in the tenant's admin chain are one transaction, and changes of one tenant come one after the
   other: what a change has read is still so when it writes.
2. A secret is shown once, to whoever it is made for; what is kept is its SHA-256.
3. What is closed or revoked stays, so that histories can still be read; it only cannot ask any more.
4. No line of a chain has a secret or a name in it: only ids, roles and groups.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Protocol, TypeVar

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.beside import RegisteredWorkflow, Schedule
from tenure.kernel.service import (
    AccountLink,
    AdminEvent,
    ApiKey,
    Client,
    Hook,
    Person,
    Session,
    SlackApp,
    SlackCode,
    Tenant,
    UnconfirmedPerson,
)
from tenure.store.beside import settled
from tenure.store.port import Answer, Query, Store, Transaction

T = TypeVar("T")

SLACK_CODE_SECONDS = 600.0
LINES_AT_ONCE = 500


class ChainName(msgspec.Struct, gc=False):
    """A tenant that has a chain."""

    tenant: str


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
    unconfirmed: str
    """Who has made or changed the key and its owner since a second person confirmed that, as `id id`."""
    now_us: int


READS: dict[str, Answer] = {
    "key_owner": Owner,  # () ; key_id, now
    "tenant_named": Tenant,  # () ; id
    "tenants_before": Tenant,  # () ; created_at, id, limit -> newest first
    "clients_before": Client,  # () ; tenant, created_at, id, limit -> newest first
    "client_named": Client,  # () ; tenant, id
    "people_before": Person,  # () ; tenant, created_at, id, limit -> newest first
    "person_named": Person,  # () ; tenant, id
    "person_of_slack": Person,  # () ; tenant, slack
    "person_of_github": Person,  # () ; tenant, login in lower case
    "person_enrolling": Person,  # () ; enrol_hash
    "keys_before": ApiKey,  # () ; tenant, created_at, id, limit, owner_kind or '', owner_id -> newest first
    "keys_owned": ApiKey,  # () ; tenant, owner_kind, owner_id
    "key_named": ApiKey,  # () ; tenant, id
    "session_named": Session,  # () ; hash
    "people_unconfirmed": UnconfirmedPerson,  # () ; tenant -> those who count as one with others
    "approvers_of": Person,  # () ; tenant, limit -> open, with the role
    "account_links_of": AccountLink,  # () ; tenant, account -> everybody who has or had it
    "slack_app_of": SlackApp,  # () ; tenant, team
    "slack_apps_of": SlackApp,  # () ; tenant
    "workflow_version": RegisteredWorkflow,  # () ; tenant, name, version
    "admin_events_after": AdminEvent,  # () ; tenant, after_seq, limit -> in order
    "admin_events_before": AdminEvent,  # () ; tenant, before_seq, limit -> newest first
    "admin_head": AdminEvent,  # () ; tenant -> the newest
    "admin_chains": ChainName,  # ()
}
"""Queries used on their own; `identity.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "save_tenant": Tenant,
    "save_client": Client,
    "save_person": Person,
    "save_api_key": ApiKey,
    "touch_key": ApiKey,
    "save_session": Session,
    "delete_session": Session,
    "delete_expired_sessions": Session,
    "save_slack_code": SlackCode,
    "take_slack_code": SlackCode,
    "delete_expired_slack_codes": SlackCode,
    "save_account_link": AccountLink,
    "save_admin_event": AdminEvent,
    "save_slack_app": SlackApp,
    "delete_slack_app": SlackApp,  # tenant, team
    "confirm_hook": Hook,  # tenant, id, revision, unconfirmed
    "confirm_schedule": Schedule,  # tenant, name, revision, unconfirmed
    "confirm_workflow": RegisteredWorkflow,  # tenant, name, version, digest, unconfirmed
}
"""Statements of small transactions of their own. The `save_` ones insert a whole row, or replace it by its key."""

Kept = Tenant | Client | Person | ApiKey | Session | AccountLink | SlackApp


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A line for the admin chain: what was done, by whom, to what (law 4)."""

    tenant: str
    kind: str
    actor: str
    about: dict[str, Any] = {}


Told = tuple[T, list[Change]]
"""What a change answers, and its lines."""


class Identity:
    """See the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # ------------------------------------------------------------------------------------------ looking

    async def owner_of(self, key_id: str) -> Owner | None:
        """A key and its owner."""
        found: list[Owner] = await self._store.read("key_owner", key_id, await self.now_us())
        return found[0] if found else None

    async def now_us(self) -> int:
        """The store's time."""
        estimate = self._store.estimate_us()
        if estimate is not None:
            return estimate
        now: int = (await self._store.read("now"))[0].now_us
        return now

    async def read(self, name: str, *values: Any) -> list[Any]:
        """Ask one of `READS`."""
        return await self._store.read(name, *values)

    async def tenant(self, tenant: str) -> Tenant:
        """A tenant, or TENANT_NOT_FOUND."""
        found: list[Tenant] = await self._store.read("tenant_named", tenant)
        if not found:
            raise no_tenant(tenant)
        return found[0]

    async def by_slack(self, tenant: str, team: str, user: str) -> Person | None:
        """Whose Slack account it is, if somebody has linked it and may still ask."""
        found: list[Person] = await self._store.read("person_of_slack", tenant, f"{team}/{user}")
        return found[0] if found and found[0].closed_at is None else None

    async def links_of(self, tenant: str, account: str) -> list[AccountLink]:
        """Everybody whose account this is, or once was (`slack:TEAM/USER`, `github:LOGIN`)."""
        found: list[AccountLink] = await self._store.read("account_links_of", tenant, account)
        return found

    # ----------------------------------------------------------------------------------------- changing

    async def change(self, tenant: str, make: Callable[[int], Transaction[Told[T]]]) -> T:
        """Carry out a change of a tenant's people, clients or keys: `make(now)` reads, checks and writes (law 1)."""

        def work() -> Transaction[T]:
            yield _lock(tenant)
            now = (yield Query("now"))[0].now_us
            result, lines = yield from make(now)
            for line in lines:
                yield from told(line, now)
            return result

        return await settled(self._store, work)

    async def put(self, row: Kept, change: Change | None) -> None:
        """Insert or replace a row, with its line in the chain (law 1); a session has none."""
        await self.put_all([row], change)

    async def put_all(self, rows: list[Kept], change: Change | None) -> None:
        """Likewise of several, in one transaction."""

        def make(_now: int) -> Transaction[Told[None]]:
            yield from saved(*rows)
            return None, [] if change is None else [change]

        await self.change("" if change is None else change.tenant, make)

    async def touch_key(self, key_id: str, hour_us: int) -> None:
        """Write down the hour in which a key was used."""
        await self._do(Query("touch_key", scalars=(key_id, hour_us)))

    async def end_session(self, digest: bytes) -> None:
        """A browser signs out."""
        await self._do(Query("delete_session", scalars=(digest,)))

    async def begin_session(self, digest: bytes, key_id: str, tenant: str, seconds: float) -> Session:
        """A browser signs in; a good moment to forget the sessions that are over."""

        def work() -> Transaction[Session]:
            now = (yield Query("now"))[0].now_us
            yield Query("delete_expired_sessions", scalars=(now,))
            session = Session(digest, key_id, tenant, now, now + us(seconds))
            yield from saved(session)
            return session

        return await settled(self._store, work)

    async def slack_code(self, tenant: str, team: str, user: str) -> str:
        """A code that proves, once and for ten minutes, who has this Slack account. To be shown to that account only;
        the person gives it to `PUT /me/slack`."""
        code = f"tns_{secrets.token_urlsafe(32)}"

        def work() -> Transaction[None]:
            now = (yield Query("now"))[0].now_us
            yield Query("delete_expired_slack_codes", scalars=(now,))
            values = (digest_of(code), tenant, f"{team}/{user}", now + us(SLACK_CODE_SECONDS))
            yield Query("save_slack_code", scalars=values)

        await settled(self._store, work)
        return code

    async def _do(self, query: Query) -> None:
        def work() -> Transaction[None]:
            yield query

        await settled(self._store, work)

    async def broken_chain(self, tenant: str) -> list[str]:
        """What is wrong with a tenant's chain, in words."""
        found = await broken_chain(self._store, tenant)
        return [f"the admin chain of tenant {tenant!r} does not recompute at line {seq}" for _, seq in found]


class Reader(Protocol):
    """The part of a store that chains are read by."""

    async def read(self, name: str, *scalars: Any) -> list[Any]:
        """Ask one named query."""
        ...


async def broken_chains(store: Reader) -> list[tuple[str, int]]:
    """Where admin chains do not recompute (tenant, line): nowhere, unless somebody has written into the database by
    hand."""
    found: list[tuple[str, int]] = []
    for chain in await store.read("admin_chains"):
        found += await broken_chain(store, chain.tenant)
    return found


async def broken_chain(store: Reader, tenant: str) -> list[tuple[str, int]]:
    """Recompute a tenant's chain from its first line on."""
    before: AdminEvent | None = None
    while True:
        after = 0 if before is None else before.seq
        lines: list[AdminEvent] = await store.read("admin_events_after", tenant, after, LINES_AT_ONCE)
        for line in lines:
            if line != chained(before, tenant, line.kind, line.at, line.actor, line.body):
                return [(tenant, line.seq)]
            before = line
        if not lines:
            return []


def digest_of(secret: str) -> bytes:
    """What is kept of a secret."""
    return sha256(secret.encode()).digest()


def no_tenant(tenant: str) -> TenureError:
    """There is none."""
    return TenureError("TENANT_NOT_FOUND", f"there is no tenant {tenant!r}")


def saved(*rows: Kept) -> Transaction[None]:
    """Insert or replace rows, within a transaction."""
    for row in rows:
        yield Query(f"save_{row.table}", scalars=msgspec.structs.astuple(row))


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


def _lock(tenant: str) -> Query:
    """What those who change a tenant's people, or write into its chain, wait for. (No tenant is called like that.)"""
    return Query("lock_tenants", ((f"admin/{tenant}",),))


def told(change: Change, now: int) -> Transaction[None]:
    """Add a line to a chain, within a transaction."""
    yield _lock(change.tenant)
    before = yield Query("admin_head", scalars=(change.tenant,))
    body = msgspec.json.encode(change.about, order="sorted")
    line = chained(before[0] if before else None, change.tenant, change.kind, now, change.actor, body)
    yield Query("save_admin_event", scalars=msgspec.structs.astuple(line))
