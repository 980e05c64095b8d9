"""Receipts for people: those nobody knows the end of, and one by its id.

Law: what is read here is shown, never decided on: settling a receipt is a command to its run.
"""

from __future__ import annotations

import msgspec

from tenure.store.port import RowType


class ReceiptDetail(msgspec.Struct, gc=False):
    """A receipt with its step, and the wait for whoever says how it ended."""

    run_id: int
    no: int
    tenant: str
    workflow: str
    step: str
    label: str
    try_no: int
    connector: str
    operation: str
    tier: str
    name: str
    digest: bytes
    repeats: str
    reversible: bool
    approval_no: int | None
    n: int
    intent_at: int
    request_ref: int | None
    reverses_run: int | None
    reverses_no: int | None
    state: str
    settled_at: int | None
    settled_by: str | None
    result_ref: int | None
    error: str | None
    eligible_at: int | None
    reversed_run: int | None
    reversed_no: int | None
    source_run: int | None
    source_no: int | None
    expires_at: int | None
    """Until when somebody may say how it ended and its step goes on by that; None: nobody waits."""
    known_ref: int | None
    """What is known of it, in words."""


class UnknownReceipts(msgspec.Struct, gc=False):
    """How many receipts wait for a person, and since when."""

    open: int
    oldest_at: int | None


READS: dict[str, RowType] = {
    "unknown_receipts": ReceiptDetail,  # () ; tenant, before_intent_at, before_run_id, before_no, limit -> newest first
    "receipt_details_of": ReceiptDetail,  # () ; run_id -> all of a run, in order
    "unknown_receipts_count": UnknownReceipts,  # () ; tenant -> exactly one
}
WRITES: dict[str, RowType] = {}
