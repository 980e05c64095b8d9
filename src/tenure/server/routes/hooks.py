"""Incoming hooks, which admins create and change, and their deliveries. (`hook_deliveries` receives the deliveries.)"""

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
from tenure.services.hooks.events import show_hook
from tenure.services.hooks.registry import HookFields
from tenure.services.hooks.responses import delivery_response
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.shapes.hooks import Delivery, DeliveryListItem, DeliveryStatus, Hook, HookKind
from tenure.shapes.pages import Page

Revision = Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]


class NewHook(HookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hook to create."""

    kind: HookKind


class HookUpdate(HookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new values of a hook."""

    revision: Revision
    """The revision that was read."""


@get("/hooks", summary="The tenant's hooks")
async def list_hooks(request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> Page[Hook]:
    """Newest first."""
    return await request.engine.hooks.page(limit, cursor)


@post("/hooks", summary="Create a hook", status_code=201)
async def create_hook(request: ApiRequest, data: JSONBody[NewHook]) -> Response[Hook]:
    """The hook's address has an unguessable id. Its secret is read on the server's machine."""
    create = partial(request.engine.hooks.create, data.kind, data, request.server.secrets)
    return await create_once(request, create, "/hooks")


@get("/hooks/{hook_id:str}", summary="A hook")
async def get_hook(request: ApiRequest, hook_id: FromPath[str]) -> Hook:
    """With its rules and the references to its secrets."""
    return await request.engine.hooks.get(hook_id)


@put("/hooks/{hook_id:str}", summary="Change a hook")
async def update_hook(request: ApiRequest, hook_id: FromPath[str], data: JSONBody[HookUpdate]) -> Hook:
    """Replace all of its fields."""
    return await request.engine.hooks.update(hook_id, data.revision, data, request.server.secrets)


class ConfirmedHook(Hook, frozen=True, kw_only=True):
    """A hook that somebody has confirmed."""

    confirmed: list[str]
    """The people whose changes were confirmed; empty if nothing was unconfirmed."""


@post("/hooks/{hook_id:str}/confirm", summary="Confirm a hook as a second person", status_code=200)
async def confirm_hook(
    request: ApiRequest, hook_id: FromPath[str], data: JSONBody[ConfirmRequest]
) -> ConfirmedHook:
    """From now on, people who created or changed the hook are not involved in its runs for that reason alone. Its owner is."""
    made = await request.engine.confirmations.confirm_row("hook", hook_id, data.revision)
    return ConfirmedHook(**msgspec.structs.asdict(show_hook(made.row)), confirmed=made.people)


@delete("/hooks/{hook_id:str}", summary="Delete a hook", status_code=204)
async def delete_hook(request: ApiRequest, hook_id: FromPath[str]) -> None:
    """Its deliveries are deleted, too. Its runs stay."""
    await request.engine.hooks.delete(hook_id)


@get("/hooks/{hook_id:str}/deliveries", summary="The deliveries of a hook")
async def list_deliveries(
    request: ApiRequest,
    hook_id: FromPath[str],
    status: FromQuery[Literal["set_aside"] | None] = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[DeliveryListItem]:
    """Newest first; kept for 30 days. `status=set_aside` lists those that failed too often; their `note` says why."""
    return await request.engine.hooks.page_of_deliveries(hook_id, status, limit, cursor)


@get("/hooks/{hook_id:str}/deliveries/{delivery_id:str}", summary="One delivery")
async def get_delivery(request: ApiRequest, hook_id: FromPath[str], delivery_id: FromPath[str]) -> Delivery:
    """With its outcome, headers and body."""
    return await request.engine.hooks.delivery(hook_id, delivery_id)


@post(
    "/hooks/{hook_id:str}/deliveries/{delivery_id:str}/replay",
    summary="Replay a delivery",
    status_code=201,
    responses={
        200: ResponseSpec(DeliveryStatus, description="No rule matched, or the delivery failed"),
        202: ResponseSpec(DeliveryStatus, description="The delivery is being processed"),
    },
)
async def replay_delivery(
    request: ApiRequest, hook_id: FromPath[str], delivery_id: FromPath[str]
) -> Response[DeliveryStatus]:
    """By the current rules of the hook, under the key `{key}:replay:{n}`. The audit chain records it, and the caller is involved in its run."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        return delivery_response(await request.engine.hooks.replay(hook_id, delivery_id))

    return await idempotent(request, operation)


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
