"""Approvals and proposals for people. A decision on one is a command to its run."""

from __future__ import annotations

import msgspec

from tenure.kernel.run_rows import ApprovalRow
from tenure.store.port import RowType


class ApprovalDetail(ApprovalRow, gc=False):
    """An approval or a proposal, with the wait that it belongs to."""

    kind: str = ""
    """approval or proposal."""
    label: str = ""
    action: str = ""
    workflow: str = ""


class OpenApprovalCount(msgspec.Struct, gc=False):
    """How many approvals of a kind are open, and the time of the oldest."""

    kind: str
    open: int
    oldest_at: int


READS: dict[str, RowType] = {
    "approvals_page": ApprovalDetail,  # () ; tenant, kind or `any`, before_requested_at, before_run_id, before_no, limit -> open
    # ones, newest first
    "approval_details_of": ApprovalDetail,  # () ; run_id -> all of a run, in the order they were asked
    "approval_detail": ApprovalDetail,  # () ; run_id, no
    "open_approval_counts": OpenApprovalCount,  # () ; tenant -> a row for each kind with open approvals
}
