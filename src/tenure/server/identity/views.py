"""Tenants, clients, people and keys as they are shown.

Law: neither a secret nor its hash is in any of these, but for the two that are made to hand one over (`NewKeyView`,
`EnrolmentView`), once, to whoever it is for.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tenure.kernel.service import AdminEvent, ApiKey, Client, Person, SlackApp, Tenant
from tenure.orchestrator.step_views import moment


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """Whose runs they are."""

    id: str
    name: str
    created_at: datetime
    closed_at: datetime | None
    """Since when none of its keys works."""


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """A program that asks."""

    id: str
    name: str
    roles: list[str]
    owner: str | None
    """The person who answers for it."""
    created_at: datetime
    closed_at: datetime | None
    revision: int
    unconfirmed: list[str]
    """Who has made or changed it since a second person confirmed it: they stand behind what it asks."""


class PersonView(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who asks and decides."""

    id: str
    name: str
    roles: list[str]
    groups: list[str]
    """Whose approvals this person can give."""
    slack: str | None
    """`team/user`, linked by that person."""
    github: str | None
    """The login at GitHub: whose pull requests and pushes this person is behind."""
    enrolment_until: datetime | None
    """Until when an enrolment code waits to be used."""
    created_at: datetime
    closed_at: datetime | None
    revision: int
    unconfirmed: list[str]
    """Who has made, enrolled or promoted this person since a second administrator confirmed it: they count as one."""


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A credential, without its secret."""

    id: str
    owner_kind: str
    owner_id: str
    name: str
    roles: list[str] | None
    """Fewer than its owner has; null: all of them."""
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    """The hour in which it was last used."""
    replaced_until: datetime | None
    """Of one that was rotated: how long it still works."""
    unconfirmed: list[str]
    """Who has made it, until a second person confirms it: they stand behind what is asked with it."""


class NewKeyView(KeyView, frozen=True, kw_only=True):
    """A credential that was just made."""

    key: str
    """What its owner sends after `Authorization: Bearer`. It is shown here and never again."""


class EnrolmentView(msgspec.Struct, frozen=True, kw_only=True):
    """A one-time code by which a person gets a key."""

    person: str
    code: str
    """For that person: `POST /enrolments` takes it once. It is shown here and never again."""
    expires_at: datetime


class SlackAppView(msgspec.Struct, frozen=True, kw_only=True):
    """A Slack app through which a tenant's people link accounts and decide."""

    team: str
    secrets: list[str]
    """References of its signing secret."""
    registered_by: str
    registered_at: datetime


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """A change of who may do what."""

    seq: int
    kind: str
    at: datetime
    actor: str
    about: dict[str, Any]
    hash: str
    """Covers this line and the one before."""


def tenant_view(row: Tenant) -> TenantView:
    """A tenant, shown."""
    return TenantView(
        id=row.id, name=row.name, created_at=moment(row.created_at), closed_at=_moment(row.closed_at)
    )


def client_view(row: Client) -> ClientView:
    """A client, shown."""
    return ClientView(
        id=row.id,
        name=row.name,
        roles=listed(row.roles),
        owner=row.owner,
        created_at=moment(row.created_at),
        closed_at=_moment(row.closed_at),
        revision=row.revision,
        unconfirmed=row.unconfirmed.split(),
    )


def person_view(row: Person) -> PersonView:
    """A person, shown."""
    return PersonView(
        id=row.id,
        name=row.name,
        roles=listed(row.roles),
        groups=listed(row.groups),
        slack=row.slack,
        github=row.github,
        enrolment_until=_moment(row.enrol_until),
        created_at=moment(row.created_at),
        closed_at=_moment(row.closed_at),
        revision=row.revision,
        unconfirmed=row.unconfirmed.split(),
    )


def _fields(row: ApiKey) -> dict[str, Any]:
    return {
        "id": row.id,
        "owner_kind": row.owner_kind,
        "owner_id": row.owner_id,
        "name": row.name,
        "roles": None if row.roles is None else listed(row.roles),
        "created_by": row.created_by,
        "created_at": moment(row.created_at),
        "expires_at": _moment(row.expires_at),
        "revoked_at": _moment(row.revoked_at),
        "used_at": _moment(row.used_at),
        "replaced_until": _moment(row.replaced_until),
        "unconfirmed": row.unconfirmed.split(),
    }


def key_view(row: ApiKey) -> KeyView:
    """A key, shown."""
    return KeyView(**_fields(row))


def new_key_view(row: ApiKey, text: str) -> NewKeyView:
    """A key with its secret, for the one time it is shown."""
    return NewKeyView(**_fields(row), key=text)


def slack_app_view(row: SlackApp) -> SlackAppView:
    """A Slack app, shown."""
    return SlackAppView(
        team=row.team,
        secrets=listed(row.secrets),
        registered_by=row.registered_by,
        registered_at=moment(row.registered_at),
    )


def audit_line(row: AdminEvent) -> AuditLine:
    """A line of a chain, shown."""
    return AuditLine(
        seq=row.seq,
        kind=row.kind,
        at=moment(row.at),
        actor=row.actor,
        about=msgspec.json.decode(row.body),
        hash=row.hash.hex(),
    )


def listed(text: str) -> list[str]:
    """A list as it is stored."""
    return msgspec.json.decode(text, type=list[str])


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)
