"""The inbox: how much waits for people, and proposals, which nobody waits for."""

from __future__ import annotations

from datetime import datetime

import msgspec
from litestar import get, post
from litestar.params import FromPath, JSONBody

from tenure.orchestrator.questions import ApprovalView
from tenure.orchestrator.step_views import maybe
from tenure.server.call import Call
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page
from tenure.server.routes.approvals import open_page
from tenure.server.runs.deciding import APPROVAL, PROPOSAL, Decided, Decision, decide, question
from tenure.store.listing import Count


class InboxStats(msgspec.Struct, frozen=True, kw_only=True):
    """How much waits for people."""

    pending_approvals: int
    pending_proposals: int
    oldest_approval_at: datetime | None
    oldest_proposal_at: datetime | None
    unknown_receipts: int
    """Actions of which nobody knows how they ended."""
    oldest_receipt_at: datetime | None


@get("/inbox/stats", summary="How much waits for people")
async def inbox_stats(request: Call) -> InboxStats:
    """Open approvals and proposals, and receipts to be settled, counted."""
    rows: list[Count] = await request.engine.store.read("questions_counted", request.who.tenant)
    [unknown] = await request.engine.store.read("receipts_counted", request.who.tenant)
    by_kind = {row.kind: row for row in rows}
    approvals, proposals = by_kind.get(APPROVAL), by_kind.get(PROPOSAL)
    return InboxStats(
        pending_approvals=0 if approvals is None else approvals.open,
        pending_proposals=0 if proposals is None else proposals.open,
        oldest_approval_at=maybe(None if approvals is None else approvals.oldest_at),
        oldest_proposal_at=maybe(None if proposals is None else proposals.oldest_at),
        unknown_receipts=unknown.open,
        oldest_receipt_at=maybe(unknown.oldest_at),
    )


@get("/proposals/pending", summary="Open proposals, newest first")
async def pending_proposals(
    request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[ApprovalView]:
    """What runs have proposed and nobody has decided, also of runs that have ended."""
    return await open_page(request, PROPOSAL, limit, cursor)


@post("/proposals/{proposal_id:str}/decision", status_code=200, summary="Decide a proposal")
async def decide_proposal(request: Call, proposal_id: FromPath[str], data: JSONBody[Decision]) -> Decided:
    """Accept or reject it, also after its run's end."""
    return await decide(request, await question(request, proposal_id, PROPOSAL), data)


HANDLERS = [inbox_stats, pending_proposals, decide_proposal]
