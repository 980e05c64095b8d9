"""Hooks and deliveries as shapes."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.clock import to_datetime
from tenure.ids import run_text
from tenure.kernel.server_rows import DeliveryRow, HookRow
from tenure.services.hooks.events import rule_scope
from tenure.shapes.hooks import Delivery, DeliveryListItem, Hook, HookRule, HookSettings
from tenure.store.hook_deliveries import DeliveryHeader

_ADDRESS = {
    "github": "/hooks/github/{}",
    "slack": "/hooks/slack/{}/commands",
    "generic": "/hooks/generic/{}",
}


def show_hook(hook: HookRow) -> Hook:
    return Hook(
        id=hook.id,
        kind=hook.kind,
        name=hook.name,
        address=_ADDRESS[hook.kind].format(hook.id),
        workspace=hook.workspace,
        secrets=msgspec.json.decode(hook.secrets),
        rules=msgspec.json.decode(hook.rules, type=list[HookRule]),
        owner=hook.owner,
        settings=msgspec.json.decode(hook.settings, type=HookSettings),
        disabled=hook.disabled,
        revision=hook.revision,
        unconfirmed=hook.unconfirmed.split(),
        created_at=to_datetime(hook.created_at),
        updated_at=to_datetime(hook.updated_at),
    )


def _item(row: DeliveryHeader | DeliveryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "key": row.name,
        "event": row.event,
        "received_at": to_datetime(row.received_at),
        "status": row.status,
        "run_id": None if row.run_id is None else run_text(row.run_id),
        "note": row.note,
        "replays": row.replays,
        "tries": row.tries,
    }


def summarize_delivery(row: DeliveryHeader) -> DeliveryListItem:
    return DeliveryListItem(**_item(row))


def show_delivery(hook: HookRow, row: DeliveryRow) -> Delivery:
    scope = rule_scope(hook.kind, row)
    return Delivery(**_item(row), headers=scope["headers"], body=scope["body"])
