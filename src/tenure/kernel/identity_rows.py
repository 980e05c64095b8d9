"""The rows of tenants, clients, people, keys and sessions, and of their audit."""

from __future__ import annotations

import msgspec

from tenure.kernel.row import Row, table


@table("tenant", key=("id",))
class TenantRow(Row):
    id: str
    name: str
    settings: str
    """Settings that differ from the installation's, as a JSON object."""
    created_at: int
    closed_at: int | None = None


@table("client", key=("tenant", "id"))
class ClientRow(Row):
    """A program with an account. It owns idempotency keys; its API keys are rotated."""

    tenant: str
    id: str
    name: str
    roles: str
    """A sorted JSON list."""
    owner: str | None
    """The person who answers for it."""
    created_at: int
    closed_at: int | None = None
    revision: int = 1
    """Grows with every change, so that a confirmation covers exactly what was reviewed."""
    unconfirmed: str = ""
    """Who has made or changed it since a second person confirmed it, as `id id`."""


@table("person", key=("tenant", "id"))
class PersonRow(Row):
    """A human with an account, who starts runs and decides approvals."""

    tenant: str
    id: str
    name: str
    roles: str
    """A sorted JSON list."""
    groups: str
    """A sorted JSON list. The person can give the approvals of these groups."""
    slack: str | None
    """`team/user`. The person linked it while signed in."""
    enrol_hash: bytes | None
    """The hash of the one-time code that gives this person a first key."""
    enrol_until: int | None
    created_at: int
    closed_at: int | None = None
    github: str | None = None
    """The GitHub login, in lower case. It identifies who opened a pull request or pushed."""
    revision: int = 1
    """As in `ClientRow`."""
    unconfirmed: str = ""
    """Who has created, enrolled or promoted this person since a second administrator confirmed it, as `id id`. They count
    as one person."""
    enrol_by: str = ""
    """Who has created the enrolment code, as `id id`. They have enrolled this person when it is used."""


class UnconfirmedPerson(msgspec.Struct, gc=False):
    """A person who is treated as the same person as others."""

    id: str
    unconfirmed: str


@table("api_key", key=("id",))
class ApiKeyRow(Row):
    """A credential `tn_<id>_<secret>` of a client, a person or (with the tenant '') the installation's operator."""

    id: str
    tenant: str
    owner_kind: str
    """client, person or operator."""
    owner_id: str
    name: str
    hash: bytes
    """The SHA-256 of the secret."""
    roles: str | None
    """A subset of its owner's roles, as a JSON list. None: all of them."""
    created_by: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None = None
    used_at: int | None = None
    """The hour in which it was last used."""
    replaced_until: int | None = None
    """For a rotated key: until when it still works."""
    unconfirmed: str = ""
    """Who has created it, as `id id`, until a second person confirms it."""


@table("session", key=("hash",))
class SessionRow(Row):
    """A browser's session. Its cookie stands for the key."""

    hash: bytes
    key_id: str
    tenant: str
    created_at: int
    expires_at: int


@table("slack_code", key=("hash",))
class SlackCodeRow(Row):
    """A one-time code that proves that a person owns a Slack account: `/tenure link` shows it in Slack."""

    hash: bytes
    tenant: str
    slack: str
    """`team/user`."""
    expires_at: int


@table("account_link", key=("tenant", "account", "person"))
class AccountLinkRow(Row):
    """Records that an external account is, or once was, a person's. Unlinking does not delete it."""

    tenant: str
    account: str
    """`slack:TEAM/USER` or `github:LOGIN`, with the login in lower case."""
    person: str
    linked_at: int
    """When it was linked last."""


@table("slack_app", key=("tenant", "team"))
class SlackAppRow(Row):
    """A Slack app that the operator registered for a tenant. People link accounts and decide approvals through it."""

    tenant: str
    team: str
    """Slack's id of the workspace that it is installed in."""
    secrets: str
    """References to its signing secrets, newest first, as a JSON list of one or two."""
    registered_by: str
    registered_at: int


@table("admin_event", key=("tenant", "seq"))
class AdminEventRow(Row):
    """A change of people, keys or settings, in the tenant's hash chain. The tenant '' stands for the installation."""

    tenant: str
    seq: int
    kind: str
    at: int
    actor: str
    body: bytes
    """The exact bytes that were hashed: a JSON object without secrets and without names."""
    hash: bytes
