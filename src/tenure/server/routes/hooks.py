"""Hooks, made and changed by admins, and what they were told. (`hooks_in` has what others send to them.)"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from litestar import Response, delete, get, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody

from tenure.limits import INTEGER_MAX
from tenure.server.idempotency import create_once, idempotent
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit
from tenure.server.request import ApiRequest
from tenure.server.routes.identity import ConfirmRequest
from tenure.services.hooks.intake import DeliveryStatus
from tenure.services.hooks.registry import HookFields, Hooks
from tenure.services.hooks.views import show_hook
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.shapes.hooks import Delivery, DeliveryListItem, Hook
from tenure.shapes.pages import Page

Revision = Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]


class NewHook(HookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hook to be made."""

    kind: Literal["github", "slack", "generic"]


class HookUpdate(HookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hook as it is to be from now on."""

    revision: Revision
    """Of the one that was looked at."""


def _hooks(request: ApiRequest) -> Hooks:
    service = request.service
    return Hooks(request.engine.scope, request.who, service.intake, service.secrets)


@get("/hooks", summary="The tenant's hooks")
async def list_hooks(request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> Page[Hook]:
    """Newest first."""
    return await _hooks(request).page(limit, cursor)


@post("/hooks", summary="Make a hook", status_code=201)
async def create_hook(request: ApiRequest, data: JSONBody[NewHook]) -> Response[Hook]:
    """Its address, with an id that nobody can guess, names the tenant; its secret is read where the server runs."""
    return await create_once(request, partial(_hooks(request).create, data.kind, data), "/hooks")


@get("/hooks/{hook_id:str}", summary="A hook")
async def get_hook(request: ApiRequest, hook_id: FromPath[str]) -> Hook:
    """With its rules, and the references of its secrets."""
    return await _hooks(request).get(hook_id)


@put("/hooks/{hook_id:str}", summary="Change a hook")
async def update_hook(request: ApiRequest, hook_id: FromPath[str], data: JSONBody[HookUpdate]) -> Hook:
    """Replace all that can be said of it."""
    return await _hooks(request).update(hook_id, data.revision, data)


class ConfirmedHook(Hook, frozen=True, kw_only=True):
    """A hook that somebody has confirmed."""

    confirmed: list[str]
    """The people whose changes were confirmed; empty if nothing was unconfirmed."""


@post("/hooks/{hook_id:str}/confirm", summary="Confirm a hook as a second person", status_code=200)
async def confirm_hook(
    request: ApiRequest, hook_id: FromPath[str], data: JSONBody[ConfirmRequest]
) -> ConfirmedHook:
    """Whoever made or changed it does not stand behind its runs from now on, for that reason alone; its owner does."""
    made = await request.engine.confirmations.confirm_row("hook", hook_id, data.revision)
    return ConfirmedHook(**msgspec.structs.asdict(show_hook(made.row)), confirmed=made.people)


@delete("/hooks/{hook_id:str}", summary="Delete a hook", status_code=204)
async def delete_hook(request: ApiRequest, hook_id: FromPath[str]) -> None:
    """With what it was told; its runs stay."""
    await _hooks(request).delete(hook_id)


@get("/hooks/{hook_id:str}/deliveries", summary="What a hook was told")
async def list_deliveries(
    request: ApiRequest,
    hook_id: FromPath[str],
    status: FromQuery[Literal["set_aside"] | None] = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[DeliveryListItem]:
    """Newest first; kept for 30 days. With `status=set_aside` those that were tried too often: their `note` says why."""
    return await _hooks(request).page_of_deliveries(hook_id, status, limit, cursor)


@get("/hooks/{hook_id:str}/deliveries/{delivery_id:str}", summary="One delivery")
async def get_delivery(request: ApiRequest, hook_id: FromPath[str], delivery_id: FromPath[str]) -> Delivery:
    """With what became of it, and what it said."""
    return await _hooks(request).get_delivery(hook_id, delivery_id)


@post(
    "/hooks/{hook_id:str}/deliveries/{delivery_id:str}/replay",
    summary="Do a delivery again",
    status_code=201,
    responses={
        200: ResponseSpec(DeliveryStatus, description="No rule fits, or it failed"),
        202: ResponseSpec(DeliveryStatus, description="It is under way"),
    },
)
async def replay_delivery(
    request: ApiRequest, hook_id: FromPath[str], delivery_id: FromPath[str]
) -> Response[DeliveryStatus]:
    """By the hook's rules of now, under `{key}:replay:{n}`; told in the admin chain. Whoever replays it stands behind its run."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        return delivery_response(await _hooks(request).replay(hook_id, delivery_id))

    return await idempotent(request, operation)


def delivery_response(received: DeliveryStatus) -> StoredResponse:
    """A delivery's answer: 201 with its run, 202 while it is under way, 200 where it made none (or did before)."""
    fresh = received.run_id is not None and not received.duplicate
    under_way = received.status == "received" or (received.status == "duplicate" and received.run_id is None)
    status = 202 if under_way else 201 if fresh else 200
    location = None if received.run_id is None else f"/runs/{received.run_id}"
    return StoredResponse.of(received, status, location=location)


HANDLERS = [
    list_hooks,
    create_hook,
    get_hook,
    update_hook,
    confirm_hook,
    delete_hook,
    list_deliveries,
    get_delivery,
    replay_delivery,
]
