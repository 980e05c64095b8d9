"""The installation, for its operator: tenants, their first people, their caps.

Law: the operator of the installation is no tenant's admin. It makes tenants and lets somebody in; what they do there is
theirs.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import FromPath, JSONBody

from tenure.kernel.decide.checks import check_cap, is_name
from tenure.kernel.model import Cap
from tenure.limits import INTEGER_MAX, NAME_CHARS_MAX
from tenure.server.call import Call
from tenure.server.identity.checks import invalid
from tenure.server.identity.directory import Directory
from tenure.server.identity.installation import SLACK_SECRETS_MAX, Installation
from tenure.server.identity.pages import audit_page, page_of
from tenure.server.identity.principals import OPERATOR_TENANT, Role
from tenure.server.identity.views import (
    AuditLine,
    EnrolmentView,
    PersonView,
    SlackAppView,
    TenantView,
    person_view,
    tenant_view,
)
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page
from tenure.server.routes.tenancy import Confirm, ConfirmedPerson, Groups, Id, Name, Roles
from tenure.server.runs.idempotency import Answer, Held, idempotent
from tenure.store.confirmations import Confirmations, Confirming

CAPS_MAX = 1_000
"""Workspaces and workflows of a tenant that have caps of their own."""
Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]


class NewTenant(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Somebody whose runs are to be kept apart."""

    id: Id
    name: Name


class SetTenant(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tenant, as it is to be."""

    name: Name
    closed: bool | None = None
    """Whether its keys stop working; null: as it is."""


def _admin() -> list[Role]:
    return ["admin"]


class FirstPerson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Who is to look after a tenant."""

    id: Id | None = None
    name: Name
    roles: Roles = msgspec.field(default_factory=_admin)
    groups: Groups = []


class Invited(msgspec.Struct, frozen=True, kw_only=True):
    """A person, and the code by which that person gets a key."""

    person: PersonView
    enrolment: EnrolmentView


class SetSlackApp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The app of a Slack team."""

    secrets: Annotated[list[str], msgspec.Meta(min_length=1, max_length=SLACK_SECRETS_MAX)]
    """References of its signing secret, during a rotation two, the newest first: `env:NAME` or `file:/PATH`."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody may have at once; null: as much as there is."""

    weight: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)] = 1
    """Its share of the workers, beside others' weights."""
    max_concurrency: Count | None = None
    """Leases at the same time."""
    max_runs_per_min: Count | None = None
    """Runs that start within a minute."""
    max_writes_per_run: Count | None = None
    """Actions that one run does to the world; of a tenant and of a workflow."""


class Caps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a tenant, and of its workspaces and workflows by name."""

    tenant: Limits = Limits()
    workspaces: dict[str, Limits] = {}
    workflows: dict[str, Limits] = {}


def _installation(request: Call) -> Installation:
    return Installation(request.service.identity, request.who.actor)


def _directory(request: Call, tenant_id: str) -> Directory:
    """A tenant's people, as the operator changes them: that breaks the glass, and the tenant's chain says so."""
    return Directory(request.service.identity, tenant_id, request.who.actor, people="", breaks_glass=True)


@get("/admin/tenants", summary="The tenants")
async def tenants(request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> Page[TenantView]:
    """Newest first, closed ones too."""
    return await page_of(request, "tenants_before", tenant_view, limit, cursor)


@post("/admin/tenants", summary="Make a tenant", status_code=201)
async def add_tenant(request: Call, data: JSONBody[NewTenant]) -> Response[TenantView]:
    """It needs a person who looks after it: `POST /admin/tenants/{tenant_id}/people`."""

    async def operation(_held: Held | None) -> Answer:
        made = await _installation(request).add_tenant(data.id, name=data.name)
        return Answer.of(made, 201, location=f"/admin/tenants/{made.id}")

    return await idempotent(request, operation)


@get("/admin/tenants/{tenant_id:str}", summary="A tenant")
async def tenant(request: Call, tenant_id: FromPath[str]) -> TenantView:
    """Whether it is open, and its name."""
    return await _installation(request).tenant(tenant_id)


@put("/admin/tenants/{tenant_id:str}", summary="Rename, close or reopen a tenant")
async def set_tenant(request: Call, tenant_id: FromPath[str], data: JSONBody[SetTenant]) -> TenantView:
    """A closed tenant's keys do not work; what it has stays, and its runs go on."""
    changed = await _installation(request).set_tenant(tenant_id, name=data.name, closed=data.closed)
    request.service.gate.forget()
    return changed


@delete("/admin/tenants/{tenant_id:str}", summary="Close a tenant")
async def close_tenant(request: Call, tenant_id: FromPath[str]) -> None:
    """None of its keys works any more; nothing is deleted, and `PUT` with `closed: false` opens it again."""
    await _installation(request).set_tenant(tenant_id, closed=True)
    request.service.gate.forget()


@post("/admin/tenants/{tenant_id:str}/people", summary="Let somebody into a tenant")
async def add_person(request: Call, tenant_id: FromPath[str], data: JSONBody[FirstPerson]) -> Invited:
    """A person (an admin, unless said otherwise) with an enrolment code, which is shown here and never again."""
    await _installation(request).tenant(tenant_id)
    directory = _directory(request, tenant_id)
    made = await directory.add_person(person=data.id, name=data.name, roles=data.roles, groups=data.groups)
    enrolment = await directory.invite(made.id)
    return Invited(
        person=msgspec.structs.replace(made, enrolment_until=enrolment.expires_at), enrolment=enrolment
    )


@post(
    "/admin/tenants/{tenant_id:str}/people/{person_id:str}/confirm",
    summary="Confirm a person where no second administrator is",
    status_code=200,
)
async def confirm_person(
    request: Call, tenant_id: FromPath[str], person_id: FromPath[str], data: JSONBody[Confirm]
) -> ConfirmedPerson:
    """What a second administrator of the tenant does. It breaks the glass: the tenant's chain says who did."""
    await _installation(request).tenant(tenant_id)
    by = Confirming(actor=request.who.actor, people="", breaks_glass=True)
    made = await Confirmations(request.service.identity, tenant_id, by).person(person_id, data.revision)
    request.service.gate.forget()
    return ConfirmedPerson(**msgspec.structs.asdict(person_view(made.row)), confirmed=made.people)


@get(
    "/admin/tenants/{tenant_id:str}/slack-apps",
    summary="The Slack apps that a tenant's people decide through",
)
async def slack_apps(request: Call, tenant_id: FromPath[str]) -> list[SlackAppView]:
    """By team."""
    return await _installation(request).slack_apps(tenant_id)


@put("/admin/tenants/{tenant_id:str}/slack-apps/{team_id:str}", summary="Register a Slack app")
async def set_slack_app(
    request: Call, tenant_id: FromPath[str], team_id: FromPath[str], data: JSONBody[SetSlackApp]
) -> SlackAppView:
    """Slack's commands and clicks of this team, signed with its secret, are believed to be the people's who have linked accounts."""
    for at, reference in enumerate(data.secrets):
        problem = request.service.secrets.problem(reference, tenant_id)
        if problem is not None:
            raise invalid(f"secrets[{at}]", problem)
    return await _installation(request).set_slack_app(tenant_id, team_id, data.secrets)


@delete(
    "/admin/tenants/{tenant_id:str}/slack-apps/{team_id:str}", summary="Remove a Slack app", status_code=204
)
async def drop_slack_app(request: Call, tenant_id: FromPath[str], team_id: FromPath[str]) -> None:
    """Nobody links accounts or decides through it any more."""
    await _installation(request).drop_slack_app(tenant_id, team_id)


@get("/admin/tenants/{tenant_id:str}/caps", summary="A tenant's limits and weights")
async def caps(request: Call, tenant_id: FromPath[str]) -> Caps:
    """Those that say something: what is not here has weight 1 and no limit."""
    await _installation(request).tenant(tenant_id)
    return _shown(await _rows(request, tenant_id))


@put("/admin/tenants/{tenant_id:str}/caps", summary="Set a tenant's limits and weights")
async def set_caps(request: Call, tenant_id: FromPath[str], data: JSONBody[Caps]) -> Caps:
    """All of them: what is not said has weight 1 and no limit from now on. They count everywhere within two seconds."""
    installation = _installation(request)
    await installation.tenant(tenant_id)
    if len(data.workspaces) + len(data.workflows) > CAPS_MAX:
        raise invalid("workspaces", f"at most {CAPS_MAX} workspaces and workflows have caps of their own")
    named = {"": data.tenant}
    for kind, given in (("ws:", data.workspaces), ("wf:", data.workflows)):
        for name, limits in given.items():
            if not is_name(name, most=NAME_CHARS_MAX - len(kind)):
                raise invalid("workspaces" if kind == "ws:" else "workflows", f"{name[:64]!r} is no name")
            named[kind + name] = limits
    wanted = [
        Cap(
            tenant_id,
            scope,
            limits.weight,
            limits.max_concurrency,
            limits.max_runs_per_min,
            limits.max_writes_per_run,
        )
        for scope, limits in named.items()
    ]
    for cap in wanted:
        check_cap(cap)
    gone = [Cap(tenant_id, old.scope) for old in await _rows(request, tenant_id) if old.scope not in named]
    about = {
        cap.scope: [cap.weight, cap.max_concurrency, cap.max_runs_per_min, cap.max_writes_per_run]
        for cap in wanted
    }
    # Told before it is done: nothing changes that is not in the chain.
    await installation.note("tenant.caps_set", tenant=tenant_id, caps=about)
    await request.service.engine.put_caps([*wanted, *gone])
    return _shown(await _rows(request, tenant_id))


@get("/admin/audit", summary="Who changed what of the installation")
async def audit(request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> Page[AuditLine]:
    """The installation's own chain, newest first; each line's hash covers the one before."""
    return await audit_page(request, OPERATOR_TENANT, limit, cursor)


async def _rows(request: Call, tenant_id: str) -> list[Cap]:
    found: list[Cap] = await request.service.engine.store.read("all_caps")
    return [cap for cap in found if cap.tenant == tenant_id]


def _shown(rows: list[Cap]) -> Caps:
    said = {
        cap.scope: Limits(
            weight=cap.weight,
            max_concurrency=cap.max_concurrency,
            max_runs_per_min=cap.max_runs_per_min,
            max_writes_per_run=cap.max_writes_per_run,
        )
        for cap in rows
    }
    said = {scope: limits for scope, limits in said.items() if limits != Limits()}
    return Caps(
        tenant=said.get("", Limits()),
        workspaces={scope[3:]: limits for scope, limits in said.items() if scope.startswith("ws:")},
        workflows={scope[3:]: limits for scope, limits in said.items() if scope.startswith("wf:")},
    )


HANDLERS: list[Any] = [
    tenants, add_tenant, tenant, set_tenant, close_tenant, add_person, confirm_person, slack_apps, set_slack_app,
    drop_slack_app, caps, set_caps, audit,
]  # fmt: skip
