"""Policies: published once, active when two people have said so; and what they have decided."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath, JSONBody

from tenure import ids
from tenure.clock import us
from tenure.errors import TenureError
from tenure.govern.policy import Compiled, load
from tenure.govern.policy.checking import check
from tenure.govern.policy.explaining import decisions_of
from tenure.govern.policy.shadow import Shadow, Shadowing
from tenure.govern.policy.views import (
    DecisionView,
    PolicyView,
    VersionView,
    policy_view,
    version_view,
)
from tenure.limits import INTEGER_MAX, SHADOWED_MAX, WORKFLOW_BYTES_MAX
from tenure.server.call import Call
from tenure.server.identity.owners import person_asking
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page, cursor_of, place_of
from tenure.server.runs.idempotency import Answer, Held, idempotent
from tenure.server.runs.pieces import piece
from tenure.server.work import run_aside
from tenure.store.policies import Governing

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=WORKFLOW_BYTES_MAX)]
_DIGITS_MAX = 9


class NewPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy to be published."""

    text: Text
    """The YAML file; docs/policy.md says what it may have."""


class Activation(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a version that somebody wants to be active."""

    state: Literal["proposed", "active"]
    """`proposed`: another person has to say the same."""
    policy: VersionView


class Shadowed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy to be tried on what was decided already."""

    text: Text
    since_seconds: Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)] = 7 * 86_400
    """How far to look back."""


def _office(request: Call) -> Governing:
    return Governing(request.service.engine.store, request.who.tenant)


def _version(text: str) -> int:
    """The number in `/policies/NUMBER`."""
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise TenureError("POLICY_NOT_FOUND", f"there is no version {text[:20]!r} of the policy")
    return int(text)


@get("/policies", summary="The versions of the tenant's policy")
async def list_policies(
    request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[VersionView]:
    """Newest first, without their texts."""
    tenant, office = request.who.tenant, _office(request)
    before: Any = INTEGER_MAX
    if cursor is not None:
        place = place_of(cursor, tenant, "policies", None)
        before = place[0] if place else None
        if not isinstance(before, int) or not 0 < before <= INTEGER_MAX:
            raise TenureError("CURSOR_INVALID")
    now, rows = await office.governance(), await office.versions(before, limit + 1)
    more = cursor_of(tenant, "policies", None, [rows[limit - 1].version]) if len(rows) > limit else None
    return Page(items=[version_view(row, now) for row in rows[:limit]], next_cursor=more)


@post("/policies", summary="Publish a policy", status_code=201)
async def publish_policy(request: Call, data: JSONBody[NewPolicy]) -> Response[VersionView]:
    """It is checked against the connectors of this server (where it has any), kept as the next version, and changes nothing until
    it is active. The same text again is the same version."""

    async def operation(_held: Held | None) -> Answer:
        connectors = request.service.engine.connectors
        if connectors:
            await run_aside(check, data.text, "policy", connectors)
        else:
            await run_aside(load, data.text, "policy")
        office = _office(request)
        row, is_new = await office.publish(data.text, request.who.actor)
        made = version_view(row, await office.governance())
        return Answer.of(made, 201 if is_new else 200, location=f"/policies/{row.version}")

    return await idempotent(request, operation)


@post("/policies/shadow", summary="What another policy would have decided", status_code=200)
async def shadow_policy(request: Call, data: JSONBody[Shadowed]) -> Shadow:
    """It is asked about the tenant's newest decisions, and changes nothing; it need not be published."""
    engine = request.service.engine
    asked = await run_aside(lambda: Compiled(load(data.text, "policy")))
    now = await request.service.identity.now_us()
    shadowing = Shadowing(engine.store, engine.artifacts.get)
    return await shadowing.judged(request.who.tenant, asked, now - us(data.since_seconds), SHADOWED_MAX)


@get("/policies/{version:str}", summary="A version of the policy")
async def get_policy(request: Call, version: FromPath[str]) -> PolicyView:
    """With its text."""
    office = _office(request)
    row = await office.policy(_version(version))
    return policy_view(row, await office.governance())


@post("/policies/{version:str}/activate", summary="Make a version active", status_code=200)
async def activate_policy(request: Call, version: FromPath[str]) -> Response[Activation]:
    """The first person (an admin) proposes it, a second one (an admin or an approver) makes it active by the same request. It
    counts from the next INTENT on."""
    person = person_asking(request.who)

    async def operation(_held: Held | None) -> Answer:
        office, number = _office(request), _version(version)
        stands = await office.activate(number, person, may_propose="admin" in request.who.roles)
        shown = version_view(await office.policy(number), stands.governance)
        return Answer.of(
            Activation(state="active" if stands.step == "done" else "proposed", policy=shown), 200
        )

    return await idempotent(request, operation)


@post("/policies/{version:str}/withdraw", summary="Take back a proposal", status_code=200)
async def withdraw_policy(request: Call, version: FromPath[str]) -> VersionView:
    """Of a version that somebody wants to be active."""
    person_asking(request.who)
    office, number = _office(request), _version(version)
    now = await office.withdraw(number, request.who.actor)
    return version_view(await office.policy(number), now)


@get("/runs/{run_id:str}/decisions", summary="What policies said of a run's actions")
async def list_decisions(
    request: Call, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[DecisionView]:
    """In the order in which they were said, with the version, the rules and the reasons of each."""
    run = await request.engine.get(run_id)
    views = await decisions_of(request.engine.store, ids.run_int(run.id))
    at = (request.who.tenant, f"decisions {run_id}", None)
    return piece(views, lambda one: one.no, at, cursor, limit)


HANDLERS = [
    list_policies,
    publish_policy,
    shadow_policy,
    get_policy,
    activate_policy,
    withdraw_policy,
    list_decisions,
]
