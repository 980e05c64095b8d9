"""What people are asked: approvals, which a run waits for, and proposals, which it does not.

Law: a question's id is a text (`apr_...`, `prop_...`) made from its run and its number, so it needs no table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.kernel.decide.validation import ACT_LABEL_PREFIX
from tenure.reads.payloads import decode_payload
from tenure.reads.steps import question_title, wait_label
from tenure.shapes.approvals import Approval
from tenure.store.approvals import ApprovalDetail
from tenure.store.port import Store


async def read_approvals(store: Store, rows: Iterable[ApprovalDetail]) -> list[Approval]:
    """Questions with what was asked and said."""
    rows = list(rows)
    refs = {
        (row.run_id, ref) for row in rows for ref in (row.question_ref, row.reason_ref) if ref is not None
    }
    found = await store.read("load_payloads", rows=sorted(refs)) if refs else []
    bodies = {(one.run_id, one.ref): decode_payload(one.body) for one in found}
    return [_view(row, bodies) for row in rows]


def _view(row: ApprovalDetail, bodies: dict[tuple[int, int], Any]) -> Approval:
    question = bodies.get((row.run_id, row.question_ref or 0))
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
        reason=bodies.get((row.run_id, row.reason_ref or 0)),
        question=question,
        governed=row.label.startswith(ACT_LABEL_PREFIX),  # only a governor asks under such a label
    )
