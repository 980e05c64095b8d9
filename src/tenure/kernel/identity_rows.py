"""Rows of tenants, clients, people, keys, sessions and their audit."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tenure.kernel.run_rows import Row


class TenantRow(Row, gc=False):
    """Whose runs they are."""

    table: ClassVar[str] = "tenant"
    key: ClassVar[tuple[str, ...]] = ("id",)

    id: str
    name: str
    settings: str
    """What this tenant has otherwise than the installation, as a JSON object."""
    created_at: int
    closed_at: int | None = None


class ClientRow(Row, gc=False):
    """A program that asks: it owns idempotency keys, and its API keys rotate beneath it."""

    table: ClassVar[str] = "client"
    key: ClassVar[tuple[str, ...]] = ("tenant", "id")

    tenant: str
    id: str
    name: str
    roles: str
    """As a sorted JSON list."""
    owner: str | None
    """The person who answers for it."""
    created_at: int
    closed_at: int | None = None
    revision: int = 1
    """Grows with every change, so that what is confirmed is what was looked at."""
    unconfirmed: str = ""
    """Who has made or changed it since a second person confirmed it, as `id id`."""


class PersonRow(Row, gc=False):
    """Somebody who asks and decides."""

    table: ClassVar[str] = "person"
    key: ClassVar[tuple[str, ...]] = ("tenant", "id")

    tenant: str
    id: str
    name: str
    roles: str
    """As a sorted JSON list."""
    groups: str
    """Likewise: whose approvals this person can give."""
    slack: str | None
    """`team/user`, linked by that person while signed in."""
    enrol_hash: bytes | None
    """Of the one-time code by which this person gets a first key."""
    enrol_until: int | None
    created_at: int
    closed_at: int | None = None
    github: str | None = None
    """The login at GitHub, in lower case: who it is that opened a pull request, or pushed."""
    revision: int = 1
    """As of a client."""
    unconfirmed: str = ""
    """Who has made, enrolled or promoted this person since a second administrator confirmed it, as `id id`: they count as one."""
    enrol_by: str = ""
    """Who has made the enrolment code, likewise: they have enrolled this person when it is used."""


class UnconfirmedPerson(msgspec.Struct, gc=False):
    """A person who counts as one with others."""

    id: str
    unconfirmed: str


class ApiKeyRow(Row, gc=False):
    """A credential `tn_<id>_<secret>` of a client, a person or (with the tenant '') the installation's operator."""

    table: ClassVar[str] = "api_key"
    key: ClassVar[tuple[str, ...]] = ("id",)

    id: str
    tenant: str
    owner_kind: str
    """client, person or operator."""
    owner_id: str
    name: str
    hash: bytes
    """SHA-256 of the secret."""
    roles: str | None
    """Fewer roles than its owner has, as a JSON list; None: all of them."""
    created_by: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None = None
    used_at: int | None = None
    """The hour in which it was last used."""
    replaced_until: int | None = None
    """Of one that was rotated: how long it still works."""
    unconfirmed: str = ""
    """Who has made it, as `id id`, until a second person confirms it."""


class SessionRow(Row, gc=False):
    """A browser's session: a cookie instead of the key."""

    table: ClassVar[str] = "session"
    key: ClassVar[tuple[str, ...]] = ("hash",)

    hash: bytes
    key_id: str
    tenant: str
    created_at: int
    expires_at: int


class SlackCodeRow(Row, gc=False):
    """What proves that somebody has a Slack account: `/tenure link` hands it out there, and it is given once here."""

    table: ClassVar[str] = "slack_code"
    key: ClassVar[tuple[str, ...]] = ("hash",)

    hash: bytes
    tenant: str
    slack: str
    """`team/user`."""
    expires_at: int


class AccountLinkRow(Row, gc=False):
    """That an account elsewhere is, or once was, a person's: it outlives the link, so that unlinking hides nobody."""

    table: ClassVar[str] = "account_link"
    key: ClassVar[tuple[str, ...]] = ("tenant", "account", "person")

    tenant: str
    account: str
    """`slack:TEAM/USER` or `github:LOGIN`, the login in lower case."""
    person: str
    linked_at: int
    """The last time."""


class SlackAppRow(Row, gc=False):
    """A Slack app that the installation's operator has registered for a tenant: through it people link accounts and decide."""

    table: ClassVar[str] = "slack_app"
    key: ClassVar[tuple[str, ...]] = ("tenant", "team")

    tenant: str
    team: str
    """Slack's id of the workspace it is installed in."""
    secrets: str
    """References of its signing secret, newest first, as a JSON list of one or two."""
    registered_by: str
    registered_at: int


class AdminEventRow(Row, gc=False):
    """A change of who may do what, in a chain per tenant ('' for the installation's own)."""

    table: ClassVar[str] = "admin_event"
    key: ClassVar[tuple[str, ...]] = ("tenant", "seq")

    tenant: str
    seq: int
    kind: str
    at: int
    actor: str
    body: bytes
    """The exact bytes that were hashed: a JSON object without secrets and without names."""
    hash: bytes
