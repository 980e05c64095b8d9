"""The installation, for its operator: tenants, their first people, their caps and their Slack apps.

Law: the operator of the installation is not an admin of any tenant. The operator creates tenants and their first people.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import FromPath, JSONBody

from tenure.engine import Engine
from tenure.errors import field_error
from tenure.reads.identity import show_person
from tenure.server.idempotency import create_once
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit
from tenure.server.request import ApiRequest
from tenure.server.routes.identity import ConfirmedPerson, ConfirmRequest, Groups, Id, Name, Roles
from tenure.services.identity.principals import OPERATOR_TENANT
from tenure.services.identity.tenants import SLACK_SECRETS_MAX
from tenure.shapes.identity import AuditEntry, Enrolment, Person, SlackApp, Tenant, TenantCaps
from tenure.shapes.pages import Page


class NewTenant(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tenant to create."""

    id: Id
    name: Name


class TenantUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The new values of a tenant."""

    name: Name
    closed: bool | None = None
    """Whether the tenant's keys stop working; null: no change."""


class FirstPerson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The first person of a tenant."""

    id: Id | None = None
    name: Name
    roles: Roles = msgspec.field(default_factory=lambda: ["admin"])
    groups: Groups = []


class InvitedPerson(msgspec.Struct, frozen=True, kw_only=True):
    """A person, and the code that the person exchanges for a key."""

    person: Person
    enrolment: Enrolment


class SlackAppUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The app of a Slack team."""

    secrets: Annotated[list[str], msgspec.Meta(min_length=1, max_length=SLACK_SECRETS_MAX)]
    """References to its signing secret, or during a rotation to two secrets, the newest first: `env:NAME` or `file:/PATH`."""


async def _engine_of(request: ApiRequest, tenant_id: str) -> Engine:
    """The engine of a tenant, acting as the operator."""
    await request.engine.tenants.get(tenant_id)
    return request.server.engine.scoped(tenant=tenant_id, caller=request.who)


@get("/admin/tenants", summary="The tenants")
async def list_tenants(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Tenant]:
    """Newest first, including closed ones."""
    return await request.engine.tenants.page(limit, cursor)


@post("/admin/tenants", summary="Create a tenant", status_code=201)
async def add_tenant(request: ApiRequest, data: JSONBody[NewTenant]) -> Response[Tenant]:
    """The tenant needs an admin: `POST /admin/tenants/{tenant_id}/people`."""
    return await create_once(
        request, partial(request.engine.tenants.create, data.id, name=data.name), "/admin/tenants"
    )


@get("/admin/tenants/{tenant_id:str}", summary="A tenant")
async def get_tenant(request: ApiRequest, tenant_id: FromPath[str]) -> Tenant:
    """Its name, and whether it is closed."""
    return await request.engine.tenants.get(tenant_id)


@put("/admin/tenants/{tenant_id:str}", summary="Rename, close or reopen a tenant")
async def set_tenant(request: ApiRequest, tenant_id: FromPath[str], data: JSONBody[TenantUpdate]) -> Tenant:
    """The keys of a closed tenant do not work. Its data stays, and its runs continue."""
    return await request.change_rights(
        request.engine.tenants.update(tenant_id, name=data.name, closed=data.closed)
    )


@delete("/admin/tenants/{tenant_id:str}", summary="Close a tenant")
async def close_tenant(request: ApiRequest, tenant_id: FromPath[str]) -> None:
    """All of its keys stop working. Nothing is deleted, and `PUT` with `closed: false` reopens the tenant."""
    await request.change_rights(request.engine.tenants.update(tenant_id, closed=True))


@post("/admin/tenants/{tenant_id:str}/people", summary="Create a person of a tenant")
async def add_person(
    request: ApiRequest, tenant_id: FromPath[str], data: JSONBody[FirstPerson]
) -> InvitedPerson:
    """A person, by default an admin, with an enrolment code. The code is in this answer and never shown again."""
    people = (await _engine_of(request, tenant_id)).people
    made = await people.create(person=data.id, name=data.name, roles=data.roles, groups=data.groups)
    enrolment = await people.invite(made.id)
    return InvitedPerson(
        person=msgspec.structs.replace(made, enrolment_until=enrolment.expires_at), enrolment=enrolment
    )


@post(
    "/admin/tenants/{tenant_id:str}/people/{person_id:str}/confirm",
    summary="Confirm a person of a tenant without a second administrator",
    status_code=200,
)
async def confirm_person(
    request: ApiRequest, tenant_id: FromPath[str], person_id: FromPath[str], data: JSONBody[ConfirmRequest]
) -> ConfirmedPerson:
    """Replaces the confirmation by a second administrator. The tenant's audit chain records this break-glass action."""
    engine = await _engine_of(request, tenant_id)
    made = await request.change_rights(engine.confirmations.confirm_row("person", person_id, data.revision))
    return ConfirmedPerson(**msgspec.structs.asdict(show_person(made.row)), confirmed=made.people)


@get(
    "/admin/tenants/{tenant_id:str}/slack-apps",
    summary="The Slack apps of a tenant",
)
async def list_slack_apps(request: ApiRequest, tenant_id: FromPath[str]) -> list[SlackApp]:
    """By team."""
    return await request.engine.tenants.slack_apps(tenant_id)


@put("/admin/tenants/{tenant_id:str}/slack-apps/{team_id:str}", summary="Register a Slack app")
async def set_slack_app(
    request: ApiRequest, tenant_id: FromPath[str], team_id: FromPath[str], data: JSONBody[SlackAppUpdate]
) -> SlackApp:
    """Commands and clicks of this team that are signed with this secret count as those of the people who have linked their accounts."""
    for at, reference in enumerate(data.secrets):
        problem = request.server.secrets.problem(reference, tenant_id)
        if problem is not None:
            raise field_error(f"secrets[{at}]", problem)
    return await request.engine.tenants.set_slack_app(tenant_id, team_id, data.secrets)


@delete(
    "/admin/tenants/{tenant_id:str}/slack-apps/{team_id:str}", summary="Remove a Slack app", status_code=204
)
async def drop_slack_app(request: ApiRequest, tenant_id: FromPath[str], team_id: FromPath[str]) -> None:
    """Nobody can link an account or decide through it any more."""
    await request.engine.tenants.remove_slack_app(tenant_id, team_id)


@get("/admin/tenants/{tenant_id:str}/caps", summary="A tenant's limits and weights")
async def get_caps(request: ApiRequest, tenant_id: FromPath[str]) -> TenantCaps:
    """Everything that is not listed has weight 1 and no limit."""
    return await request.engine.tenants.caps(tenant_id)


@put("/admin/tenants/{tenant_id:str}/caps", summary="Set a tenant's limits and weights")
async def set_caps(request: ApiRequest, tenant_id: FromPath[str], data: JSONBody[TenantCaps]) -> TenantCaps:
    """Replaces all of them: everything that is left out has weight 1 and no limit. They take effect everywhere within two seconds."""
    return await request.engine.tenants.set_caps(tenant_id, data)


@get("/admin/audit", summary="The audit chain of the installation")
async def list_installation_audit(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[AuditEntry]:
    """Newest first. The hash of each entry covers the entry before it."""
    return await request.engine.tenants.audit_page(OPERATOR_TENANT, limit, cursor)


HANDLERS: list[Any] = [
    list_tenants, add_tenant, get_tenant, set_tenant, close_tenant, add_person, confirm_person, list_slack_apps, set_slack_app,
    drop_slack_app, get_caps, set_caps, list_installation_audit,
]  # fmt: skip
