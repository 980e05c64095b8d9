"""Tenants, clients, people and keys as they are shown.

Law: none of these shapes has a secret or its hash, except the two that hand a secret over once, to its owner (`IssuedApiKey`,
`Enrolment`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.clock import to_datetime, to_optional_datetime
from tenure.kernel.identity_rows import AdminEventRow, ApiKeyRow, ClientRow, PersonRow, SlackAppRow, TenantRow
from tenure.shapes.identity import ApiClient, ApiKey, AuditEntry, IssuedApiKey, Person, SlackApp, Tenant


def show_tenant(row: TenantRow) -> Tenant:
    return Tenant(
        id=row.id,
        name=row.name,
        created_at=to_datetime(row.created_at),
        closed_at=to_optional_datetime(row.closed_at),
    )


def show_client(row: ClientRow) -> ApiClient:
    return ApiClient(
        id=row.id,
        name=row.name,
        roles=split_list(row.roles),
        owner=row.owner,
        created_at=to_datetime(row.created_at),
        closed_at=to_optional_datetime(row.closed_at),
        revision=row.revision,
        unconfirmed=row.unconfirmed.split(),
    )


def show_person(row: PersonRow) -> Person:
    return Person(
        id=row.id,
        name=row.name,
        roles=split_list(row.roles),
        groups=split_list(row.groups),
        slack=row.slack,
        github=row.github,
        enrolment_until=to_optional_datetime(row.enrol_until),
        created_at=to_datetime(row.created_at),
        closed_at=to_optional_datetime(row.closed_at),
        revision=row.revision,
        unconfirmed=row.unconfirmed.split(),
    )


def _fields(row: ApiKeyRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "owner_kind": row.owner_kind,
        "owner_id": row.owner_id,
        "name": row.name,
        "roles": None if row.roles is None else split_list(row.roles),
        "created_by": row.created_by,
        "created_at": to_datetime(row.created_at),
        "expires_at": to_optional_datetime(row.expires_at),
        "revoked_at": to_optional_datetime(row.revoked_at),
        "used_at": to_optional_datetime(row.used_at),
        "replaced_until": to_optional_datetime(row.replaced_until),
        "unconfirmed": row.unconfirmed.split(),
    }


def show_key(row: ApiKeyRow) -> ApiKey:
    return ApiKey(**_fields(row))


def show_issued_key(row: ApiKeyRow, text: str) -> IssuedApiKey:
    """A key with its secret, which is shown once."""
    return IssuedApiKey(**_fields(row), key=text)


def show_slack_app(row: SlackAppRow) -> SlackApp:
    return SlackApp(
        team=row.team,
        secrets=split_list(row.secrets),
        registered_by=row.registered_by,
        registered_at=to_datetime(row.registered_at),
    )


def show_audit_entry(row: AdminEventRow) -> AuditEntry:
    return AuditEntry(
        seq=row.seq,
        kind=row.kind,
        at=to_datetime(row.at),
        actor=row.actor,
        about=msgspec.json.decode(row.body),
        hash=row.hash.hex(),
    )


def split_list(text: str) -> list[str]:
    """A stored list: a JSON array of texts."""
    return msgspec.json.decode(text, type=list[str])
