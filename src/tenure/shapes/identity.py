"""What tenants, clients, people, keys and confirmations look like from outside.

Law: no shape contains a secret or its hash, except `IssuedApiKey` and `Enrolment`, which show a new secret once.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from tenure.errors import Detail, TenureError
from tenure.limits import INTEGER_MAX

ENROLMENT_SECONDS = 72 * 3600.0
"""The default lifetime of an enrolment code."""
OVERLAP_SECONDS = 24 * 3600.0
"""How long a rotated key continues to work, by default."""
Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A customer of an installation."""

    id: str
    name: str
    created_at: datetime
    closed_at: datetime | None
    """Since then none of its keys works."""


class ApiClient(msgspec.Struct, frozen=True, kw_only=True):
    """A program with an account."""

    id: str
    name: str
    roles: list[str]
    owner: str | None
    """The person who answers for it."""
    created_at: datetime
    closed_at: datetime | None
    revision: int
    unconfirmed: list[str]
    """Who has created or changed it since a second person confirmed it. They are involved in what it requests."""


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """A human with an account."""

    id: str
    name: str
    roles: list[str]
    groups: list[str]
    """The groups whose approvals this person can decide."""
    slack: str | None
    """The linked Slack account, as `team/user`."""
    github: str | None
    """The GitHub login. The person is involved in runs that its pull requests and pushes cause."""
    enrolment_until: datetime | None
    """When the unused enrolment code expires."""
    created_at: datetime
    closed_at: datetime | None
    revision: int
    unconfirmed: list[str]
    """Who has created, enrolled or promoted this person since a second administrator confirmed it. They count as the same person."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A credential without its secret."""

    id: str
    owner_kind: str
    owner_id: str
    name: str
    roles: list[str] | None
    """A subset of its owner's roles. Null: all of them."""
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    """The hour of its last use."""
    replaced_until: datetime | None
    """Until when a rotated key continues to work."""
    unconfirmed: list[str]
    """Who has created it, until a second person confirms it. They are involved in what is requested with it."""


class IssuedApiKey(ApiKey, frozen=True, kw_only=True):
    """A new credential with its secret."""

    key: str
    """What its owner sends after `Authorization: Bearer`. It is shown only once."""


class Enrolment(msgspec.Struct, frozen=True, kw_only=True):
    """A one-time code for a person's key."""

    person: str
    code: str
    """`POST /enrolments` exchanges it for a key, once. It is shown only once."""
    expires_at: datetime


class SlackApp(msgspec.Struct, frozen=True, kw_only=True):
    """A Slack app through which a tenant's people link accounts and decide."""

    team: str
    secrets: list[str]
    """References to its signing secret."""
    registered_by: str
    registered_at: datetime


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change of people, keys or settings."""

    seq: int
    kind: str
    at: datetime
    actor: str
    about: dict[str, Any]
    hash: str
    """The hash of this entry and the previous hash."""


class TenantAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The newest entries of an audit chain."""

    entries: list[AuditEntry]
    problems: list[str]
    """The places where the chain does not recompute. A server does not report them."""


class EnrolledPerson(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a person who has enrolled."""

    tenant: str
    person: str
    key: IssuedApiKey
    unconfirmed: list[str]
    """Who counts as the same person, until a second administrator confirms the enrolment."""


class CapLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a tenant, workspace or workflow. Null: no limit."""

    weight: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)] = 1
    """Its share of the workers, relative to other weights."""
    max_concurrency: Count | None = None
    """Concurrent leases."""
    max_runs_per_min: Count | None = None
    max_writes_per_run: Count | None = None
    """Actions of one run. Applies to tenants and workflows."""


class TenantCaps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a tenant, and those of its workspaces and workflows by name."""

    tenant: CapLimits = CapLimits()
    workspaces: dict[str, CapLimits] = {}
    workflows: dict[str, CapLimits] = {}


Confirmable = Literal["hook", "schedule", "workflow", "client", "key", "person"]


class ConfirmationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a confirmation by a second person."""

    kind: str
    name: str
    confirmed: list[str]
    """Whose changes this confirmed. Empty if nothing was unconfirmed."""
    unconfirmed: list[str]
    """Whose changes still need confirmation by somebody else."""


def check_version_named(kind: str, revision: int | None, version: str | None, digest: str | None) -> None:
    """Refuse a confirmation that does not name the version that was looked at."""
    wanted = {"workflow": {"version": version, "digest": digest}, "key": {}}.get(kind, {"revision": revision})
    missing = [word for word, value in wanted.items() if value is None]
    if missing:
        group = {"person": "people", "schedule": "schedule"}.get(kind, f"{kind}s")
        marks, options = " and ".join(missing), " ".join(f"--{word}" for word in missing)
        problem = (
            f"name the {marks} of the {kind} that you looked at ({options}); `tenure {group} show` prints it"
        )
        raise TenureError("INVALID_INPUT", problem, tuple(Detail(word, "is required") for word in missing))
