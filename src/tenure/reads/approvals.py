"""Questions to people: approvals, which a run waits for, and proposals, which it does not wait for.

Law: a question's id is a text (`apr_...`, `prop_...`) made from its run and its number, so it needs no table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.kernel.decide.validation import ACT_LABEL_PREFIX
from tenure.reads.payloads import read_payloads
from tenure.reads.steps import question_title, wait_label
from tenure.shapes.approvals import Approval
from tenure.store.approvals import ApprovalDetail
from tenure.store.port import Store


async def read_approvals(store: Store, rows: Iterable[ApprovalDetail]) -> list[Approval]:
    """Questions, with their texts and the reasons of the decisions."""
    rows = list(rows)
    values = await read_payloads(
        store, ((row.run_id, ref) for row in rows for ref in (row.question_ref, row.reason_ref))
    )
    return [_to_approval(row, values) for row in rows]


def _to_approval(row: ApprovalDetail, values: dict[tuple[int, int | None], Any]) -> Approval:
    question = values.get((row.run_id, row.question_ref))
    return Approval(
        id=ids.question_text(row.kind, row.run_id, row.no),
        kind=row.kind,
        run_id=ids.run_text(row.run_id),
        workflow=row.workflow,
        no=row.no,
        step=wait_label(row.label),
        action=row.action,
        title=question_title(question) or row.action,
        status=row.status,
        tier=row.tier,
        people=row.people,
        group=row.people_in,
        votes=tuple(row.votes.split()),
        requester=row.requester,
        revision=row.revision,
        digest=row.digest.hex(),
        requested_at=to_datetime(row.requested_at),
        expires_at=to_optional_datetime(row.expires_at),
        reminded_at=to_optional_datetime(row.reminded_at),
        decided_at=to_optional_datetime(row.decided_at),
        decided_by=row.decided_by,
        reason=values.get((row.run_id, row.reason_ref)),
        question=question,
        governed=row.label.startswith(ACT_LABEL_PREFIX),  # only a governor asks under such a label
    )
