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
    """What people are asked, in a line: the title of a question that has one, else the action."""
    status: str
    """requested, approved, rejected, expired or canceled."""
    tier: str
    people: int
    group: str
    """The group that those who decide belong to; empty: anybody who may approve."""
    votes: tuple[str, ...]
    """Who has said yes to this revision."""
    requester: str
    revision: int
    digest: str
    """Of the action it binds, to be repeated by who decides; empty where it binds none."""
    requested_at: datetime
    expires_at: datetime | None
    reminded_at: datetime | None
    """When people were reminded, half of the time before it expires."""
    decided_at: datetime | None
    decided_by: str | None
    reason: Any = None
    """What was said with the decision."""
    question: Any = None
    governed: bool = False
    """Whether it is about an act: what it shows was made by the connector. Anything else is a workflow's own words."""


def pick_question(run_id: str, questions: Sequence[Approval], no: int | None = None) -> Approval:
    """The run's open question if there is one only; else its last, so that a repeated decision is recognised."""
    asked = [one for one in questions if no in (None, one.no)]
    is_open = [one for one in asked if one.status == "requested"]
    if not asked:
        raise TenureError("APPROVAL_NOT_FOUND", f"run {run_id} has no pending approval")
    if len(is_open) > 1:
        listed = ", ".join(f"{one.no} ({one.step})" for one in is_open)
        raise TenureError("INVALID_INPUT", f"run {run_id} has several open questions; name one of {listed}")
    return is_open[0] if is_open else asked[-1]


class InboxStats(msgspec.Struct, frozen=True, kw_only=True):
    """How much waits for people."""

    pending_approvals: int
    pending_proposals: int
    oldest_approval_at: datetime | None
    oldest_proposal_at: datetime | None
    unknown_receipts: int
    """Actions of which nobody knows how they ended."""
    oldest_receipt_at: datetime | None
