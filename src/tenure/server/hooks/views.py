"""Hooks and deliveries as they are shown."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tenure.ids import run_text
from tenure.kernel.service import Delivery, Hook
from tenure.orchestrator.views import moment
from tenure.server.hooks.intake import HookSettings
from tenure.server.hooks.mapping import Rule
from tenure.server.hooks.told import scope_of
from tenure.store.deliveries import DeliveryLine

_ADDRESS = {
    "github": "/hooks/github/{}",
    "slack": "/hooks/slack/{}/commands",
    "generic": "/hooks/generic/{}",
}


class HookView(msgspec.Struct, frozen=True, kw_only=True):
    """A hook as it is shown."""

    id: str
    kind: str
    name: str
    address: str
    """Where its deliveries are sent; Slack's clicks go to `.../actions` instead of `.../commands`."""
    workspace: str
    secrets: list[str]
    """References."""
    rules: list[Rule]
    owner: str
    settings: HookSettings
    disabled: bool
    revision: int
    unconfirmed: list[str]
    """Who has made or changed it since a second person confirmed it: they stand behind its runs and signals."""
    created_at: datetime
    updated_at: datetime


class DeliveryItem(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery in a list."""

    id: str
    key: str
    """The idempotency key of its run."""
    event: str
    received_at: datetime
    status: str
    """received, done, ignored, duplicate, failed or set_aside (tried too often: replay it)."""
    run_id: str | None
    note: str
    """Why it is so, or was put off."""
    replays: int
    tries: int
    """How often it was begun to be carried out."""


class DeliveryView(DeliveryItem, frozen=True, kw_only=True):
    """A delivery with what it said."""

    headers: dict[str, str]
    body: Any


def hook_view(hook: Hook) -> HookView:
    """A hook as it is shown."""
    return HookView(
        id=hook.id,
        kind=hook.kind,
        name=hook.name,
        address=_ADDRESS[hook.kind].format(hook.id),
        workspace=hook.workspace,
        secrets=msgspec.json.decode(hook.secrets),
        rules=msgspec.json.decode(hook.rules, type=list[Rule]),
        owner=hook.owner,
        settings=msgspec.json.decode(hook.settings, type=HookSettings),
        disabled=hook.disabled,
        revision=hook.revision,
        unconfirmed=hook.unconfirmed.split(),
        created_at=moment(hook.created_at),
        updated_at=moment(hook.updated_at),
    )


def _item(row: DeliveryLine | Delivery) -> dict[str, Any]:
    return {
        "id": row.id,
        "key": row.name,
        "event": row.event,
        "received_at": moment(row.received_at),
        "status": row.status,
        "run_id": None if row.run_id is None else run_text(row.run_id),
        "note": row.note,
        "replays": row.replays,
        "tries": row.tries,
    }


def delivery_item(row: DeliveryLine) -> DeliveryItem:
    """A delivery in a list."""
    return DeliveryItem(**_item(row))


def delivery_view(hook: Hook, row: Delivery) -> DeliveryView:
    """A delivery with what it said."""
    said = scope_of(hook.kind, row)
    return DeliveryView(**_item(row), headers=said["headers"], body=said["body"])
