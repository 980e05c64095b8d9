"""The inbox: how much waits for people, and proposals, which nobody waits for."""

from __future__ import annotations

from litestar import get, post
from litestar.params import FromPath, JSONBody

from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page
from tenure.server.request import ApiRequest
from tenure.server.routes.approvals import page_of_open_questions
from tenure.services.approvals import (
    PROPOSAL,
    DecisionRequest,
    DecisionResult,
)
from tenure.shapes.approvals import Approval, InboxStats


@get("/inbox/stats", summary="How much waits for people")
async def inbox_stats(request: ApiRequest) -> InboxStats:
    """Open approvals and proposals, and receipts to be settled, counted."""
    return await request.engine.approvals.inbox()


@get("/proposals/pending", summary="Open proposals, newest first")
async def pending_proposals(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Approval]:
    """What runs have proposed and nobody has decided, also of runs that have ended."""
    return await page_of_open_questions(request, PROPOSAL, limit, cursor)


@post("/proposals/{proposal_id:str}/decision", status_code=200, summary="Decide a proposal")
async def decide_proposal(
    request: ApiRequest, proposal_id: FromPath[str], data: JSONBody[DecisionRequest]
) -> DecisionResult:
    """Accept or reject it, also after its run's end."""
    return await request.engine.approvals.decide(
        request.who, await request.engine.approvals.find(proposal_id, PROPOSAL), data
    )


HANDLERS = [inbox_stats, pending_proposals, decide_proposal]
