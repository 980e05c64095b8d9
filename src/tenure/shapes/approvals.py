"""What an approval looks like from outside."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from tenure.errors import TenureError


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A question to people."""

    id: str
    kind: str
    """approval or proposal."""
    run_id: str
    workflow: str
    no: int
    step: str
    action: str
    title: str
    """The question in one line: its title, or else the action."""
    status: str
    """requested, approved, rejected, expired or canceled."""
    tier: str
    people: int
    group: str
    """The group that approvers must belong to. Empty: anybody with the role may approve."""
    votes: tuple[str, ...]
    """Who has approved this revision."""
    requester: str
    revision: int
    digest: str
    """The digest of the action that the approval binds. A decision repeats it. Empty: it binds no action."""
    requested_at: datetime
    expires_at: datetime | None
    reminded_at: datetime | None
    decided_at: datetime | None
    decided_by: str | None
    reason: Any = None
    """The reason given with the decision."""
    question: Any = None
    governed: bool = False
    """Whether the question is about an act. If so, the connector made its text; otherwise the workflow did."""


def pick_question(run_id: str, questions: Sequence[Approval], no: int | None = None) -> Approval:
    """The run's only open question. If none is open: its last one, so that a repeated decision is recognised."""
    asked = [one for one in questions if no in (None, one.no)]
    is_open = [one for one in asked if one.status == "requested"]
    if not asked:
        raise TenureError("APPROVAL_NOT_FOUND", f"run {run_id} has no pending approval")
    if len(is_open) > 1:
        listed = ", ".join(f"{one.no} ({one.step})" for one in is_open)
        raise TenureError("INVALID_INPUT", f"run {run_id} has several open questions; name one of {listed}")
    return is_open[0] if is_open else asked[-1]


class InboxStats(msgspec.Struct, frozen=True, kw_only=True):
    """How many questions and receipts wait for people."""

    pending_approvals: int
    pending_proposals: int
    oldest_approval_at: datetime | None
    oldest_proposal_at: datetime | None
    unknown_receipts: int
    """Receipts of actions whose outcome is unknown."""
    oldest_receipt_at: datetime | None
