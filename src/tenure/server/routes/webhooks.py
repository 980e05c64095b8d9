"""Outgoing webhooks: who is told, of what, and what could not be told. (`tenure.publish` tells it.)"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import FromPath, JSONBody

from tenure.clock import to_datetime
from tenure.errors import Detail, TenureError
from tenure.ids import run_text
from tenure.kernel.server_rows import NoticeRow, SubscriptionRow
from tenure.limits import INTEGER_MAX, MOMENT_US_MAX, NAME_CHARS_MAX
from tenure.outbound.urls import URL_CHARS_MAX
from tenure.publish import check_url
from tenure.publish.webhook_messages import message_id
from tenure.server.auth.authentication import new_id
from tenure.server.idempotency import idempotent
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, encode_cursor
from tenure.server.request import ApiRequest
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.shapes.pages import Page
from tenure.store.feed import CURSOR_PATTERN, FeedCursors
from tenure.store.identity import AdminChange

SUBSCRIPTIONS_MAX = 100
"""Of one tenant."""
POS_MAX = 2**62
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
NewsType = Literal[
    "run.status.changed", "run.step.completed", "proposal.created", "approval.requested", "approval.reminder"
]


class WebhookFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be said of a webhook."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=URL_CHARS_MAX)]
    """Where events are sent: https."""
    secret: str
    """By what they are signed: a reference, `env:NAME` or `file:/PATH`."""
    types: list[NewsType] = []
    """Only these; none: all of them."""
    workflow: Name | None = None
    """Only of this workflow's runs."""


class NewWebhook(WebhookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook to be made."""


class WebhookUpdate(WebhookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook as it is to be from now on."""

    disabled: bool = False
    revision: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]
    """Of the one that was looked at."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as it is shown."""

    id: str
    url: str
    secret: str
    """A reference."""
    types: list[str]
    workflow: str | None
    owner: str
    disabled: bool
    """Nothing is sent: somebody switched it off, or its receiver answered 410."""
    revision: int
    created_at: datetime
    updated_at: datetime


class DeadNotice(msgspec.Struct, frozen=True, kw_only=True):
    """An event that could not be delivered within a day."""

    id: str
    webhook_id: str
    """What the receiver would have got as `webhook-id`."""
    run_id: str
    type: str
    tries: int
    error: str | None
    """What was wrong with the last try."""
    created_at: datetime
    event: dict[str, Any]
    """As it would have been sent."""


class RetryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of the dead are tried again."""

    id: Annotated[str, msgspec.Meta(pattern=f"^{CURSOR_PATTERN}$")] | None = None
    """One of them; null: all."""


class RetryResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many are tried again."""

    retried: int


def _view(row: SubscriptionRow) -> Webhook:
    return Webhook(
        id=row.id,
        url=row.url,
        secret=row.secret,
        types=msgspec.json.decode(row.types),
        workflow=row.workflow,
        owner=row.owner,
        disabled=row.disabled,
        revision=row.revision,
        created_at=to_datetime(row.created_at),
        updated_at=to_datetime(row.updated_at),
    )


def _dead(row: NoticeRow, cursors: FeedCursors) -> DeadNotice:
    return DeadNotice(
        id=cursors.encode(row.tenant, row.pos, row.part),
        webhook_id=message_id(row),
        run_id=run_text(row.run_id),
        type=row.type,
        tries=row.tries,
        error=row.error,
        created_at=to_datetime(row.created_at),
        event=msgspec.json.decode(row.body),
    )


def _columns(request: ApiRequest, text: WebhookFields) -> dict[str, Any]:
    """A webhook's columns, or what is wrong with it. (A text that is no reference may be the secret itself: it is not
    repeated.)"""
    check_url(text.url, request.service.publisher.reach)
    problem = request.service.secrets.problem(text.secret, request.who.tenant)
    found = [] if problem is None else [Detail("secret", problem)]
    if text.workflow is not None and not text.workflow.isprintable():
        found.append(Detail("workflow", "is printable"))
    if found:
        raise TenureError("INVALID_INPUT", f"{found[0].path}: {found[0].problem}", tuple(found))
    return {
        "url": text.url,
        "secret": text.secret,
        "types": msgspec.json.encode(sorted(set(text.types))).decode(),
        "workflow": text.workflow,
    }


async def _webhook(request: ApiRequest, webhook_id: str) -> SubscriptionRow:
    row = (
        None
        if "\0" in webhook_id
        else await request.service.subscriptions.find(request.who.tenant, webhook_id)
    )
    if row is None:
        raise TenureError("WEBHOOK_NOT_FOUND")
    return row


def _change(request: ApiRequest, what: str, webhook_id: str, **about: Any) -> AdminChange:
    who = request.who
    return AdminChange(
        tenant=who.tenant, kind=f"webhook.{what}", actor=who.actor, about={"webhook": webhook_id, **about}
    )


@get("/webhooks", summary="The tenant's webhooks")
async def list_webhooks(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Webhook]:
    """Newest first."""
    tenant, before = request.who.tenant, (MOMENT_US_MAX, "")
    if cursor is not None:
        try:
            before = msgspec.convert(decode_cursor(cursor, tenant, "webhooks", None), tuple[int, str])
        except msgspec.ValidationError:
            raise TenureError("CURSOR_INVALID") from None
        if not 0 <= before[0] <= MOMENT_US_MAX or "\0" in before[1]:
            raise TenureError("CURSOR_INVALID")
    rows = await request.service.subscriptions.list_page(tenant, before, limit + 1)
    shown = rows[:limit]
    more = None if len(rows) <= limit else [shown[-1].created_at, shown[-1].id]
    return Page(
        items=[_view(row) for row in shown],
        next_cursor=None if more is None else encode_cursor(tenant, "webhooks", None, more),
    )


@post("/webhooks", summary="Be told of what happens", status_code=201)
async def create_webhook(request: ApiRequest, data: JSONBody[NewWebhook]) -> Response[Webhook]:
    """From now on events are sent to this URL: CloudEvents in JSON, signed as Standard Webhooks has it."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        service, who = request.service, request.who
        columns = _columns(request, data)
        there = await service.subscriptions.list_page(who.tenant, (MOMENT_US_MAX, ""), SUBSCRIPTIONS_MAX)
        if len(there) >= SUBSCRIPTIONS_MAX:
            raise TenureError("LIMIT_EXCEEDED", f"a tenant has at most {SUBSCRIPTIONS_MAX} webhooks")
        now, head = await service.subscriptions.now_us(), (await service.feed.bounds()).head
        row = SubscriptionRow(
            tenant=who.tenant,
            id=new_id("wh_", 20),
            owner=who.actor,
            pos=head,
            created_at=now,
            updated_at=now,
            **columns,
        )
        await service.subscriptions.save(row, _change(request, "created", row.id, types=columns["types"]))
        request.service.publisher.refresh()
        return StoredResponse.of(_view(row), 201, location=f"/webhooks/{row.id}")

    return await idempotent(request, operation)


@get("/webhooks/{webhook_id:str}", summary="A webhook")
async def get_webhook(request: ApiRequest, webhook_id: FromPath[str]) -> Webhook:
    """With the reference of its secret."""
    return _view(await _webhook(request, webhook_id))


@put("/webhooks/{webhook_id:str}", summary="Change a webhook")
async def update_webhook(
    request: ApiRequest, webhook_id: FromPath[str], data: JSONBody[WebhookUpdate]
) -> Webhook:
    """Replace all that can be said of it. One that is switched on again is sent what happened meanwhile, as far as it is
    kept."""
    old = await _webhook(request, webhook_id)
    subscriptions = request.service.subscriptions
    row = msgspec.structs.replace(
        old,
        disabled=data.disabled,
        revision=data.revision + 1,
        updated_at=await subscriptions.now_us(),
        **_columns(request, data),
    )
    changed = [
        name
        for name in ("url", "secret", "types", "workflow", "disabled")
        if getattr(row, name) != getattr(old, name)
    ]
    written = None
    if data.revision == old.revision:
        written = await subscriptions.save(row, _change(request, "changed", row.id, changed=changed))
    if written is None:
        raise TenureError("CHANGED_MEANWHILE", f"the webhook does not have revision {data.revision} any more")
    request.service.publisher.refresh()
    return _view(written)


@delete("/webhooks/{webhook_id:str}", summary="Delete a webhook", status_code=204)
async def delete_webhook(request: ApiRequest, webhook_id: FromPath[str]) -> None:
    """With what it was still to be sent."""
    row = await _webhook(request, webhook_id)
    await request.service.subscriptions.delete(row.tenant, row.id, _change(request, "deleted", row.id))
    request.service.publisher.refresh()


@get("/webhooks/{webhook_id:str}/dead", summary="What could not be delivered")
async def list_dead(
    request: ApiRequest, webhook_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[DeadNotice]:
    """Newest first; kept for 30 days."""
    row, listed, before = await _webhook(request, webhook_id), f"dead/{webhook_id}", (POS_MAX, 0)
    cursors = await request.service.feed.cursors()
    if cursor is not None:
        try:
            [text] = msgspec.convert(decode_cursor(cursor, row.tenant, listed, None), tuple[str])
        except msgspec.ValidationError:
            raise TenureError("CURSOR_INVALID") from None
        before = cursors.decode(row.tenant, text) or (-1, -1)
        if not (0 <= before[0] <= POS_MAX and 0 <= before[1] <= INTEGER_MAX):
            raise TenureError("CURSOR_INVALID")
    rows = await request.service.subscriptions.list_dead_notices(row.tenant, row.id, before, limit + 1)
    shown = rows[:limit]
    more = None if len(rows) <= limit else [cursors.encode(row.tenant, shown[-1].pos, shown[-1].part)]
    return Page(
        items=[_dead(one, cursors) for one in shown],
        next_cursor=None if more is None else encode_cursor(row.tenant, listed, None, more),
    )


@post("/webhooks/{webhook_id:str}/dead/retry", summary="Deliver the dead after all", status_code=200)
async def retry_dead(
    request: ApiRequest, webhook_id: FromPath[str], data: JSONBody[RetryRequest | None] = None
) -> Response[RetryResult]:
    """They are due at once, and have a day again."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        row = await _webhook(request, webhook_id)
        service = request.service
        one = (
            None
            if data is None or data.id is None
            else (await service.feed.cursors()).decode(row.tenant, data.id)
        )
        if one is not None and (one[0] > POS_MAX or one[1] > INTEGER_MAX):
            one = (0, 0)  # none of this tenant's
        count = await service.subscriptions.revive_notices(
            row.tenant, row.id, None if one is None else f"{one[0]}-{one[1]}"
        )
        request.service.publisher.refresh()
        return StoredResponse.of(RetryResult(retried=count), 200)

    return await idempotent(request, operation)


HANDLERS = [
    list_webhooks,
    create_webhook,
    get_webhook,
    update_webhook,
    delete_webhook,
    list_dead,
    retry_dead,
]
