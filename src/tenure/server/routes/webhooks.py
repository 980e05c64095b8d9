"""Outgoing webhooks: their subscriptions, and the events that could not be delivered. (`tenure.publish` delivers them.)"""

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
from tenure.limits import INTEGER_MAX, NAME_CHARS_MAX
from tenure.outbound.urls import URL_CHARS_MAX
from tenure.publish import check_url
from tenure.publish.webhook_messages import message_id
from tenure.server.idempotency import create_once, idempotent
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit
from tenure.server.request import ApiRequest
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.webhooks import CURSOR_PATTERN, Webhooks
from tenure.shapes.pages import Page

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
NewsType = Literal[
    "run.status.changed", "run.step.completed", "proposal.created", "approval.requested", "approval.reminder"
]


class WebhookFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a webhook."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=URL_CHARS_MAX)]
    """An https URL that events are sent to."""
    secret: str
    """A reference to the secret that signs events: `env:NAME` or `file:/PATH`."""
    types: list[NewsType] = []
    """The types of events to send; empty: all."""
    workflow: Name | None = None
    """Only events of this workflow's runs."""


class NewWebhook(WebhookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook to create."""


class WebhookUpdate(WebhookFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new values of a webhook."""

    disabled: bool = False
    revision: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]
    """The revision that was read."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook."""

    id: str
    url: str
    secret: str
    types: list[str]
    workflow: str | None
    owner: str
    disabled: bool
    """Nothing is sent: it was disabled, or its receiver answered 410."""
    revision: int
    created_at: datetime
    updated_at: datetime


class DeadNotice(msgspec.Struct, frozen=True, kw_only=True):
    """An event that could not be delivered within a day."""

    id: str
    webhook_id: str
    """The `webhook-id` header of the event."""
    run_id: str
    type: str
    tries: int
    error: str | None
    """Why the last attempt failed."""
    created_at: datetime
    event: dict[str, Any]
    """The event as it would have been sent."""


class RetryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events to deliver again."""

    id: Annotated[str, msgspec.Meta(pattern=f"^{CURSOR_PATTERN}$")] | None = None
    """The id of one event; null: all."""


class RetryResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many events are delivered again."""

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


def _dead(notice_id: str, row: NoticeRow) -> DeadNotice:
    return DeadNotice(
        id=notice_id,
        webhook_id=message_id(row),
        run_id=run_text(row.run_id),
        type=row.type,
        tries=row.tries,
        error=row.error,
        created_at=to_datetime(row.created_at),
        event=msgspec.json.decode(row.body),
    )


def _webhooks(request: ApiRequest) -> Webhooks:
    return Webhooks(request.engine.scope, request.server.feed, request.server.subscriptions)


def _columns(request: ApiRequest, text: WebhookFields) -> dict[str, Any]:
    """The checked columns of a webhook. A text that is not a reference may be the secret itself, so messages do not repeat it."""
    check_url(text.url, request.server.publisher.reach)
    problem = request.server.secrets.problem(text.secret, request.who.tenant)
    found = [] if problem is None else [Detail("secret", problem)]
    if text.workflow is not None and not text.workflow.isprintable():
        found.append(Detail("workflow", "must consist of printable characters"))
    if found:
        raise TenureError("INVALID_INPUT", f"{found[0].path}: {found[0].problem}", tuple(found))
    return {
        "url": text.url,
        "secret": text.secret,
        "types": msgspec.json.encode(sorted(set(text.types))).decode(),
        "workflow": text.workflow,
    }


@get("/webhooks", summary="The tenant's webhooks")
async def list_webhooks(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Webhook]:
    """Newest first."""
    return await _webhooks(request).page(_view, limit, cursor)


@post("/webhooks", summary="Create a webhook", status_code=201)
async def create_webhook(request: ApiRequest, data: JSONBody[NewWebhook]) -> Response[Webhook]:
    """From now on, events are sent to this URL as CloudEvents in JSON, signed like Standard Webhooks."""

    async def create() -> Webhook:
        row = await _webhooks(request).create(**_columns(request, data))
        request.server.publisher.refresh()
        return _view(row)

    return await create_once(request, create, "/webhooks")


@get("/webhooks/{webhook_id:str}", summary="A webhook")
async def get_webhook(request: ApiRequest, webhook_id: FromPath[str]) -> Webhook:
    """With the reference to its secret."""
    return _view(await _webhooks(request).find(webhook_id))


@put("/webhooks/{webhook_id:str}", summary="Change a webhook")
async def update_webhook(
    request: ApiRequest, webhook_id: FromPath[str], data: JSONBody[WebhookUpdate]
) -> Webhook:
    """Replace all of its fields. When it is enabled again, it gets the events since it was disabled, as far as they are kept."""
    webhooks = _webhooks(request)
    old = await webhooks.find(webhook_id)
    row = await webhooks.update(old, data.revision, **_columns(request, data), disabled=data.disabled)
    request.server.publisher.refresh()
    return _view(row)


@delete("/webhooks/{webhook_id:str}", summary="Delete a webhook", status_code=204)
async def delete_webhook(request: ApiRequest, webhook_id: FromPath[str]) -> None:
    """Its undelivered events are deleted, too."""
    await _webhooks(request).delete(webhook_id)
    request.server.publisher.refresh()


@get("/webhooks/{webhook_id:str}/dead", summary="Events that could not be delivered")
async def list_dead(
    request: ApiRequest, webhook_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[DeadNotice]:
    """Newest first; kept for 30 days."""
    return await _webhooks(request).page_of_dead(webhook_id, _dead, limit, cursor)


@post("/webhooks/{webhook_id:str}/dead/retry", summary="Deliver such events again", status_code=200)
async def retry_dead(
    request: ApiRequest, webhook_id: FromPath[str], data: JSONBody[RetryRequest | None] = None
) -> Response[RetryResult]:
    """They are due immediately, and are retried for a day."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        count = await _webhooks(request).retry_dead(webhook_id, None if data is None else data.id)
        request.server.publisher.refresh()
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
