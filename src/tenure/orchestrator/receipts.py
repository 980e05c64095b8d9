"""Receipts as people see them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from tenure import ids
from tenure.orchestrator.step_views import decoded, maybe, moment
from tenure.store.filing import Filed
from tenure.store.port import Store


class ReceiptView(msgspec.Struct, frozen=True, kw_only=True):
    """An action on the world, and what became of it."""

    id: str
    run_id: str
    workflow: str
    step: str
    no: int
    label: str
    """Which act of its step it was."""
    try_no: int
    action: str
    state: str
    """intent, unknown, succeeded, failed, reversed or reused."""
    tier: str
    key: str
    """The idempotency key, as it was passed on."""
    digest: str
    """Of what was proposed, and approved."""
    repeats: str
    """native_key, sets_state, marker or none: how it may be done again."""
    reversible: bool
    approval_id: str | None
    """The approval that it used up."""
    attempt: int
    """The attempt of its step under whose lease the call was last intended."""
    intended_at: datetime
    settled_at: datetime | None
    settled_by: str | None
    """The person who said how it ended."""
    error: str | None
    retry_at: datetime | None
    """Of a failed one: when it may be tried again."""
    expires_at: datetime | None
    """Of an unknown one: until when its step waits for a person."""
    reverses: str | None
    """The receipt that it took back."""
    reversed_by: str | None
    source: str | None
    """Of one that was reused: the receipt whose effect it is."""
    request: Any = None
    """Target and fields."""
    result: Any = None
    known: Any = None
    """Of an unknown one: what is known, as it was told to people."""


async def receipt_views(store: Store, rows: Iterable[Filed]) -> list[ReceiptView]:
    """Receipts with what was asked and answered."""
    rows = list(rows)
    refs = {
        (row.run_id, ref)
        for row in rows
        for ref in (row.request_ref, row.result_ref, row.known_ref)
        if ref is not None
    }
    found = await store.read("load_payloads", rows=sorted(refs)) if refs else []
    bodies = {(one.run_id, one.ref): decoded(one.body) for one in found}
    return [_view(row, bodies) for row in rows]


def _view(row: Filed, bodies: dict[tuple[int, int], Any]) -> ReceiptView:
    def said(ref: int | None) -> Any:
        return None if ref is None else bodies.get((row.run_id, ref))

    return ReceiptView(
        id=ids.receipt_text(row.run_id, row.no),
        run_id=ids.run_text(row.run_id),
        workflow=row.workflow,
        step=row.step,
        no=row.no,
        label=row.label,
        try_no=row.try_no,
        action=f"{row.connector}.{row.operation}",
        state=row.state,
        tier=row.tier,
        key=row.name,
        digest=row.digest.hex(),
        repeats=row.repeats,
        reversible=row.reversible,
        approval_id=None
        if row.approval_no is None
        else ids.question_text("approval", row.run_id, row.approval_no),
        attempt=row.n,
        intended_at=moment(row.intent_at),
        settled_at=maybe(row.settled_at),
        settled_by=row.settled_by,
        error=row.error,
        retry_at=maybe(row.eligible_at),
        expires_at=maybe(row.expires_at),
        reverses=_other(row.reverses_run, row.reverses_no),
        reversed_by=_other(row.reversed_run, row.reversed_no),
        source=_other(row.source_run, row.source_no),
        request=said(row.request_ref),
        result=said(row.result_ref),
        known=said(row.known_ref),
    )


def _other(run_id: int | None, no: int | None) -> str | None:
    return None if run_id is None or no is None else ids.receipt_text(run_id, no)
