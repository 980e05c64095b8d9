"""Hooks, made and changed by admins, and what they were told. (`hooks_in` has what others send to them.)"""

from __future__ import annotations

import re
import secrets as chance
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, delete, get, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody

from tenure.errors import Detail, TenureError
from tenure.kernel.separation_of_duties import join_people
from tenure.kernel.server_rows import HookRow
from tenure.limits import INTEGER_MAX, MOMENT_US_MAX, NAME_CHARS_MAX
from tenure.server.idempotency import idempotent
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, encode_cursor
from tenure.server.request import ApiRequest
from tenure.server.routes.identity import ConfirmRequest
from tenure.services.hooks.events import show_delivery, show_hook, summarize_delivery
from tenure.services.hooks.intake import DeliveryStatus
from tenure.services.hooks.rules import find_problems
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.identity.ownership import resolve_owner
from tenure.shapes.hooks import Delivery, DeliveryListItem, Hook, HookRule, HookSettings
from tenure.shapes.pages import Page
from tenure.store.hook_deliveries import DeliveryHeader
from tenure.store.identity import AdminChange
from tenure.work_pool import run_in_thread

SECRETS_MAX = 2
_CHANNEL = re.compile(r"[CGD][A-Z0-9]{2,30}")
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Revision = Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]


class HookFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be said of a hook."""

    name: Name
    secrets: list[str]
    """References to one secret, or during a rotation to two, the newest first: `env:NAME` or `file:/PATH`."""
    rules: list[HookRule] = []
    """What becomes of a delivery: the first rule that fits."""
    workspace: Name = "default"
    owner: Name | None = None
    """The id of the person its runs are asked for by; else whoever makes the hook."""
    settings: HookSettings = HookSettings()
    disabled: bool = False


class NewHook(HookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hook to be made."""

    kind: Literal["github", "slack", "generic"]


class HookUpdate(HookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hook as it is to be from now on."""

    revision: Revision
    """Of the one that was looked at."""


async def _checked(request: ApiRequest, text: HookFields) -> dict[str, Any]:
    """A hook's columns, or all that is wrong with it. (A text that is no reference may be the secret itself: it is not
    repeated.)"""
    found = await run_in_thread(find_problems, text.rules)
    if not 1 <= len(text.secrets) <= SECRETS_MAX:
        found.append(Detail("secrets", f"there is one, or during a rotation {SECRETS_MAX}"))
    tenant, problem = request.who.tenant, request.service.secrets.problem
    found += [Detail(f"secrets[{i}]", p) for i, one in enumerate(text.secrets) if (p := problem(one, tenant))]
    found += _card_problems(request, text.settings)
    found += [
        Detail(word, "is printable")
        for word in ("name", "workspace")
        if not getattr(text, word).isprintable()
    ]
    if found:
        raise TenureError("INVALID_INPUT", f"{found[0].path}: {found[0].problem}", tuple(found[:50]))
    return {
        "name": text.name,
        "secrets": msgspec.json.encode(text.secrets).decode(),
        "rules": msgspec.json.encode(text.rules).decode(),
        "workspace": text.workspace,
        "owner": await resolve_owner(request.engine.scope, request.who, text.owner),
        "settings": msgspec.json.encode(text.settings).decode(),
        "disabled": text.disabled,
    }


def _card_problems(request: ApiRequest, settings: HookSettings) -> list[Detail]:
    """What is wrong with where cards go."""
    found = []
    if (settings.channel is None) != (settings.token is None):
        found.append(Detail("settings.channel", "channel and token belong together"))
    if settings.channel is not None and _CHANNEL.fullmatch(settings.channel) is None:
        found.append(Detail("settings.channel", "is a channel's id, like C0123456789"))
    if settings.token is not None:
        problem = request.service.secrets.problem(settings.token, request.who.tenant)
        found += [Detail("settings.token", problem)] if problem else []
    return found


async def _hook(request: ApiRequest, hook_id: str) -> HookRow:
    hook = await request.service.intake.deliveries.hook(hook_id)
    if hook is None or hook.tenant != request.who.tenant:
        raise TenureError("HOOK_NOT_FOUND")
    return hook


def _change(request: ApiRequest, what: str, hook_id: str, **about: Any) -> AdminChange:
    who = request.who
    return AdminChange(
        tenant=who.tenant, kind=f"hook.{what}", actor=who.actor, about={"hook": hook_id, **about}
    )


def _place(cursor: str | None, tenant: str, listed: str) -> tuple[int, str]:
    """Where a page begins: a moment and an id."""
    if cursor is None:
        return MOMENT_US_MAX, ""
    try:
        at, name = msgspec.convert(decode_cursor(cursor, tenant, listed, None), tuple[int, str])
    except msgspec.ValidationError:
        raise TenureError("CURSOR_INVALID") from None
    if not 0 <= at <= MOMENT_US_MAX or "\0" in name:
        raise TenureError("CURSOR_INVALID")
    return at, name


@get("/hooks", summary="The tenant's hooks")
async def list_hooks(request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> Page[Hook]:
    """Newest first."""
    tenant = request.who.tenant
    place = _place(cursor, tenant, "hooks")
    rows: list[HookRow] = await request.service.engine.store.read("hooks_of", tenant, *place, limit + 1)
    shown = rows[:limit]
    more = None if len(rows) <= limit else [shown[-1].created_at, shown[-1].id]
    return Page(
        items=[show_hook(row) for row in shown],
        next_cursor=None if more is None else encode_cursor(tenant, "hooks", None, more),
    )


@post("/hooks", summary="Make a hook", status_code=201)
async def create_hook(request: ApiRequest, data: JSONBody[NewHook]) -> Response[Hook]:
    """Its address, with an id that nobody can guess, names the tenant; its secret is read where the server runs."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        hook = HookRow(
            id=f"hk_{chance.token_hex(20)}",
            tenant=request.who.tenant,
            kind=data.kind,
            created_at=0,
            updated_at=0,
            unconfirmed=request.who.people,
            **await _checked(request, data),
        )
        made = await request.service.intake.deliveries.put_hook(
            hook, _change(request, "created", hook.id, kind=hook.kind, owner=hook.owner)
        )
        return StoredResponse.of(show_hook(made), 201, location=f"/hooks/{made.id}")

    return await idempotent(request, operation)


@get("/hooks/{hook_id:str}", summary="A hook")
async def get_hook(request: ApiRequest, hook_id: FromPath[str]) -> Hook:
    """With its rules, and the references of its secrets."""
    return show_hook(await _hook(request, hook_id))


@put("/hooks/{hook_id:str}", summary="Change a hook")
async def update_hook(request: ApiRequest, hook_id: FromPath[str], data: JSONBody[HookUpdate]) -> Hook:
    """Replace all that can be said of it."""
    old = await _hook(request, hook_id)
    if data.revision != old.revision:
        raise TenureError("CHANGED_MEANWHILE", f"the hook has revision {old.revision} by now")
    columns = await _checked(request, data)
    if data.owner is None:  # whoever changes it does not become its owner
        columns["owner"] = old.owner
    edited = join_people(old.unconfirmed, request.who.people)
    hook = msgspec.structs.replace(old, revision=old.revision + 1, unconfirmed=edited, **columns)
    changed = sorted(word for word in columns if getattr(old, word) != getattr(hook, word))
    put = request.service.intake.deliveries.put_hook
    return show_hook(await put(hook, _change(request, "changed", hook_id, changed=changed, owner=hook.owner)))


class ConfirmedHook(Hook, frozen=True, kw_only=True):
    """A hook that somebody has confirmed."""

    confirmed: list[str]
    """Whose work this has confirmed; nobody's where nothing was unconfirmed."""


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
    hook = await _hook(request, hook_id)
    await request.service.intake.deliveries.drop_hook(
        hook.tenant, hook.id, _change(request, "deleted", hook.id)
    )


@get("/hooks/{hook_id:str}/deliveries", summary="What a hook was told")
async def list_deliveries(
    request: ApiRequest,
    hook_id: FromPath[str],
    status: FromQuery[Literal["set_aside"] | None] = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[DeliveryListItem]:
    """Newest first; kept for 30 days. With `status=set_aside` those that were tried too often: their `note` says why."""
    hook, listed = await _hook(request, hook_id), f"deliveries/{hook_id}/{status or ''}"
    place = _place(cursor, hook.tenant, listed)
    query = "deliveries_of" if status is None else "deliveries_set_aside"
    rows: list[DeliveryHeader] = await request.service.engine.store.read(query, hook.id, *place, limit + 1)
    shown = rows[:limit]
    more = None if len(rows) <= limit else [shown[-1].received_at, shown[-1].id]
    return Page(
        items=[summarize_delivery(row) for row in shown],
        next_cursor=None if more is None else encode_cursor(hook.tenant, listed, None, more),
    )


@get("/hooks/{hook_id:str}/deliveries/{delivery_id:str}", summary="One delivery")
async def get_delivery(request: ApiRequest, hook_id: FromPath[str], delivery_id: FromPath[str]) -> Delivery:
    """With what became of it, and what it said."""
    hook = await _hook(request, hook_id)
    row = await request.service.intake.deliveries.get(hook.id, delivery_id)
    if row is None:
        raise TenureError("DELIVERY_NOT_FOUND")
    return show_delivery(hook, row)


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
        hook = await _hook(request, hook_id)
        received = await request.service.intake.replay(
            hook, delivery_id, _change(request, "replayed", hook.id), by=request.who.people
        )
        return delivery_response(received)

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
