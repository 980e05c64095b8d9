"""Receipts as people see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.reads.payloads import read_payloads
from tenure.shapes.receipts import Receipt
from tenure.store.port import Store
from tenure.store.receipts import ReceiptDetail


async def read_receipts(store: Store, rows: Iterable[ReceiptDetail]) -> list[Receipt]:
    """Receipts, with their requests and results."""
    rows = list(rows)
    values = await read_payloads(
        store,
        ((row.run_id, ref) for row in rows for ref in (row.request_ref, row.result_ref, row.known_ref)),
    )
    return [_to_receipt(row, values) for row in rows]


def _to_receipt(row: ReceiptDetail, values: dict[tuple[int, int | None], Any]) -> Receipt:
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
        reverses=_receipt_id(row.reverses_run, row.reverses_no),
        reversed_by=_receipt_id(row.reversed_run, row.reversed_no),
        source=_receipt_id(row.source_run, row.source_no),
        request=values.get((row.run_id, row.request_ref)),
        result=values.get((row.run_id, row.result_ref)),
        known=values.get((row.run_id, row.known_ref)),
    )


def _receipt_id(run_id: int | None, no: int | None) -> str | None:
    return None if run_id is None or no is None else ids.receipt_text(run_id, no)
