"""Receipts as people see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.reads.payloads import decode_payload
from tenure.shapes.receipts import Receipt
from tenure.store.port import Store
from tenure.store.receipts import ReceiptDetail


async def read_receipts(store: Store, rows: Iterable[ReceiptDetail]) -> list[Receipt]:
    """Receipts with what was asked and answered."""
    rows = list(rows)
    refs = {
        (row.run_id, ref)
        for row in rows
        for ref in (row.request_ref, row.result_ref, row.known_ref)
        if ref is not None
    }
    found = await store.read("load_payloads", rows=sorted(refs)) if refs else []
    bodies = {(one.run_id, one.ref): decode_payload(one.body) for one in found}
    return [_view(row, bodies) for row in rows]


def _view(row: ReceiptDetail, bodies: dict[tuple[int, int], Any]) -> Receipt:
    def said(ref: int | None) -> Any:
        return None if ref is None else bodies.get((row.run_id, ref))

    return Receipt(
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
        intended_at=to_datetime(row.intent_at),
        settled_at=to_optional_datetime(row.settled_at),
        settled_by=row.settled_by,
        error=row.error,
        retry_at=to_optional_datetime(row.eligible_at),
        expires_at=to_optional_datetime(row.expires_at),
        reverses=_other(row.reverses_run, row.reverses_no),
        reversed_by=_other(row.reversed_run, row.reversed_no),
        source=_other(row.source_run, row.source_no),
        request=said(row.request_ref),
        result=said(row.result_ref),
        known=said(row.known_ref),
    )


def _other(run_id: int | None, no: int | None) -> str | None:
    return None if run_id is None or no is None else ids.receipt_text(run_id, no)
