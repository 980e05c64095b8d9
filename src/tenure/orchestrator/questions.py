"""What people are asked: approvals, which a run waits for, and proposals, which it does not.

Law: a question's id is a text (`apr_...`, `prop_...`) made from its run and its number, so it needs no table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from tenure import ids
from tenure.kernel.decide.checks import ACT_LABEL
from tenure.orchestrator.step_views import decoded, label_of, maybe, moment, title_of
from tenure.store.listing import Question
from tenure.store.port import Store


class ApprovalView(msgspec.Struct, frozen=True, kw_only=True):
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


async def views_of(store: Store, rows: Iterable[Question]) -> list[ApprovalView]:
    """Questions with what was asked and said."""
    rows = list(rows)
    refs = {
        (row.run_id, ref) for row in rows for ref in (row.question_ref, row.reason_ref) if ref is not None
    }
    found = await store.read("load_payloads", rows=sorted(refs)) if refs else []
    bodies = {(one.run_id, one.ref): decoded(one.body) for one in found}
    return [_view(row, bodies) for row in rows]


def _view(row: Question, bodies: dict[tuple[int, int], Any]) -> ApprovalView:
    question = bodies.get((row.run_id, row.question_ref or 0))
    return ApprovalView(
        id=ids.question_text(row.kind, row.run_id, row.no),
        kind=row.kind,
        run_id=ids.run_text(row.run_id),
        workflow=row.workflow,
        no=row.no,
        step=label_of(row.label),
        action=row.action,
        title=title_of(question) or row.action,
        status=row.status,
        tier=row.tier,
        people=row.people,
        group=row.people_in,
        votes=tuple(row.votes.split()),
        requester=row.requester,
        revision=row.revision,
        digest=row.digest.hex(),
        requested_at=moment(row.requested_at),
        expires_at=maybe(row.expires_at),
        reminded_at=maybe(row.reminded_at),
        decided_at=maybe(row.decided_at),
        decided_by=row.decided_by,
        reason=bodies.get((row.run_id, row.reason_ref or 0)),
        question=question,
        governed=row.label.startswith(ACT_LABEL),  # only a governor asks under such a label
    )
