"""What tenants, clients, people and keys look like from outside.

Law: no shape holds a secret or its hash, except the two that hand one over once (`IssuedApiKey`, `Enrolment`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from tenure.limits import INTEGER_MAX

ENROLMENT_SECONDS = 72 * 3600.0
"""How long an enrolment code works."""
OVERLAP_SECONDS = 24 * 3600.0
"""How long a key works after it was rotated."""
Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """Whose runs they are."""

    id: str
    name: str
    created_at: datetime
    closed_at: datetime | None
    """Since when none of its keys works."""


class ApiClient(msgspec.Struct, frozen=True, kw_only=True):
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


class Person(msgspec.Struct, frozen=True, kw_only=True):
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


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
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


class IssuedApiKey(ApiKey, frozen=True, kw_only=True):
    """A credential that was just made."""

    key: str
    """What its owner sends after `Authorization: Bearer`. It is shown here and never again."""


class Enrolment(msgspec.Struct, frozen=True, kw_only=True):
    """A one-time code by which a person gets a key."""

    person: str
    code: str
    """For that person: `POST /enrolments` takes it once. It is shown here and never again."""
    expires_at: datetime


class SlackApp(msgspec.Struct, frozen=True, kw_only=True):
    """A Slack app through which a tenant's people link accounts and decide."""

    team: str
    secrets: list[str]
    """References of its signing secret."""
    registered_by: str
    registered_at: datetime


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change of who may do what."""

    seq: int
    kind: str
    at: datetime
    actor: str
    about: dict[str, Any]
    hash: str
    """Covers this line and the one before."""


class TenantAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The newest entries of an audit chain."""

    entries: list[AuditEntry]
    problems: list[str]
    """Where the chain does not recompute. A server does not say."""


class EnrolledPerson(msgspec.Struct, frozen=True, kw_only=True):
    """A person's own key."""

    tenant: str
    person: str
    key: IssuedApiKey
    unconfirmed: list[str]
    """Who counts as one with this person, until a second administrator confirms that it was them who have enrolled."""


class CapLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody may have at once; null: as much as there is."""

    weight: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)] = 1
    """Its share of the workers, beside others' weights."""
    max_concurrency: Count | None = None
    """Leases at the same time."""
    max_runs_per_min: Count | None = None
    """Runs that start within a minute."""
    max_writes_per_run: Count | None = None
    """Actions that one run does to the world; of a tenant and of a workflow."""


class TenantCaps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a tenant, and of its workspaces and workflows by name."""

    tenant: CapLimits = CapLimits()
    workspaces: dict[str, CapLimits] = {}
    workflows: dict[str, CapLimits] = {}
