"""Policies and their decisions; and freezes, which deny all actions of a tenant, workflow or connector.

Law: activating a policy and thawing take two people. The first one proposes it, and the second one sends the same request.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath, JSONBody

from tenure.errors import TenureError
from tenure.limits import NAME_CHARS_MAX, WORKFLOW_BYTES_MAX
from tenure.server.idempotency import idempotent
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, page_of_list
from tenure.server.request import ApiRequest
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.identity.ownership import require_person
from tenure.shapes.pages import Page
from tenure.shapes.policies import (
    ActivationResult,
    Freeze,
    PolicyDecision,
    PolicyText,
    PolicyVersion,
    ShadowReport,
    ThawResult,
)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=WORKFLOW_BYTES_MAX)]
_DIGITS_MAX = 9


class NewPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy to publish."""

    text: Text
    """The YAML document; see docs/policy.md."""


class ShadowRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy to evaluate on past actions."""

    text: Text
    since_seconds: Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)] = 7 * 86_400
    """How far to look back, in seconds."""


class FreezeScope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to freeze or thaw: a workflow, a connector, or the whole tenant if neither is named."""

    workflow: Name | None = None
    connector: Name | None = None


def _version(text: str) -> int:
    """The number in `/policies/NUMBER`."""
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise TenureError("POLICY_NOT_FOUND", f"there is no version {text[:20]!r} of the policy")
    return int(text)


@get("/policies", summary="The versions of the tenant's policy")
async def list_policies(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[PolicyVersion]:
    """Newest first, without their texts."""
    return await request.engine.policies.page(limit, cursor)


@post("/policies", summary="Publish a policy", status_code=201)
async def publish_policy(request: ApiRequest, data: JSONBody[NewPolicy]) -> Response[PolicyVersion]:
    """The policy is checked, also against the connectors of this server if it has any, and stored as the next version. It has no effect
    until it is active. The same text again is the same version."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        made, is_new = await request.engine.policies.publish_once(data.text)
        return StoredResponse.of(made, 201 if is_new else 200, location=f"/policies/{made.version}")

    return await idempotent(request, operation)


@post("/policies/shadow", summary="What a policy would have decided", status_code=200)
async def shadow_policy(request: ApiRequest, data: JSONBody[ShadowRequest]) -> ShadowReport:
    """Evaluates a policy on the tenant's newest decisions. It changes nothing, and the policy need not be published."""
    return await request.engine.policies.shadow(data.text, data.since_seconds)


@get("/policies/{version:str}", summary="A version of the policy")
async def get_policy(request: ApiRequest, version: FromPath[str]) -> PolicyText:
    """With its text."""
    return await request.engine.policies.get(_version(version))


@post("/policies/{version:str}/activate", summary="Make a version active", status_code=200)
async def activate_policy(request: ApiRequest, version: FromPath[str]) -> Response[ActivationResult]:
    """The first person (an admin) proposes it; a second person (an admin or approver) makes it active with the same request. It applies from
    the next action on."""
    require_person(request.who)

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        return StoredResponse.of(await request.engine.policies.activate(_version(version)), 200)

    return await idempotent(request, operation)


@post("/policies/{version:str}/withdraw", summary="Withdraw a proposal", status_code=200)
async def withdraw_policy(request: ApiRequest, version: FromPath[str]) -> PolicyVersion:
    """Withdraws the proposal to activate a version."""
    require_person(request.who)
    return await request.engine.policies.withdraw(_version(version))


@get("/runs/{run_id:str}/decisions", summary="Policy decisions about a run's actions")
async def list_decisions(
    request: ApiRequest, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[PolicyDecision]:
    """In order, with the version, the rules and the reasons of each decision."""
    return page_of_list(
        await request.engine.policies.decisions(run_id),
        lambda one: one.no,
        (request.who.tenant, f"decisions {run_id}", None),
        cursor,
        limit,
    )


@get("/freezes", summary="What is frozen")
async def list_freezes(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Freeze]:
    """The whole tenant first, then connectors and workflows by name."""
    return page_of_list(
        await request.engine.freezes.list(),
        lambda one: f"{one.scope} {one.name}",
        (request.who.tenant, "freezes", None),
        cursor,
        limit,
    )


@post("/freezes", summary="Freeze actions", status_code=200)
async def freeze(request: ApiRequest, data: JSONBody[FreezeScope]) -> list[Freeze]:
    """From the next commit on, no such action is called; calls under way continue. Returns all freezes."""
    return await request.engine.freezes.freeze(workflow=data.workflow, connector=data.connector)


@post("/freezes/thaw", summary="Thaw actions", status_code=200)
async def thaw(request: ApiRequest, data: JSONBody[FreezeScope]) -> ThawResult:
    """The first person (an admin) proposes it; a second person (an admin or approver) thaws it with the same request."""
    return await request.engine.freezes.thaw(workflow=data.workflow, connector=data.connector)


HANDLERS = [
    list_policies,
    publish_policy,
    shadow_policy,
    get_policy,
    activate_policy,
    withdraw_policy,
    list_decisions,
    list_freezes,
    freeze,
    thaw,
]
