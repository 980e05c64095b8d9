"""Receipts for people: those whose outcome is unknown, and all of a run.

Law: these rows are only shown. Settling a receipt is a command to its run.
"""

from __future__ import annotations

import msgspec

from tenure.kernel.act_rows import ReceiptRow
from tenure.store.port import RowType


class ReceiptDetail(ReceiptRow, gc=False):
    """A receipt with its step, and the wait for the person who settles it."""

    workflow: str = ""
    step: str = ""
    expires_at: int | None = None
    """Until when a person may settle it and its step continues with that outcome; None: no step waits."""
    known_ref: int | None = None
    """What is known about the call, in words."""


class UnknownReceipts(msgspec.Struct, gc=False):
    """How many receipts wait for a person, and the time of the oldest."""

    open: int
    oldest_at: int | None


READS: dict[str, RowType] = {
    "unknown_receipts": ReceiptDetail,  # () ; tenant, before_intent_at, before_run_id, before_no, limit -> newest first
    "receipt_details_of": ReceiptDetail,  # () ; run_id -> all of a run, in order
    "unknown_receipts_count": UnknownReceipts,  # () ; tenant -> exactly one
}
