"""Questions to people: approvals, which runs wait for, and proposals, which they do not; and the counts of both."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.reads.run_list import FOREVER_US
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, QuestionPlace, make_page, page_of_list
from tenure.server.request import ApiRequest
from tenure.services.approvals import PROPOSAL, DecisionRequest, DecisionResult
from tenure.services.paging import decode_place
from tenure.shapes.approvals import Approval, InboxStats
from tenure.shapes.pages import Page

Status = Literal["requested", "approved", "rejected", "expired", "canceled"]


async def _page_of_open(request: ApiRequest, kind: str, limit: int, cursor: str | None) -> Page[Approval]:
    """Open questions of a kind, newest first."""
    of = (request.who.tenant, f"questions {kind}", None)
    items, last = await request.engine.approvals.open_page(
        kind, decode_place(cursor, of, QuestionPlace, (FOREVER_US, 0, 0)), limit
    )
    return make_page(items, of, last)


@get("/approvals", summary="Open questions to people, newest first")
async def list_approvals(
    request: ApiRequest,
    run: Annotated[
        str | None, QueryParameter(description="All questions of this run, the oldest first.")
    ] = None,
    status: FromQuery[Status | None] = None,
    kind: FromQuery[Literal["approval", "proposal", "any"]] = "approval",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[Approval]:
    """The open approvals. With `run`, all approvals of that run, including decided ones, unless `status` selects some."""
    if run is None:
        if status not in (None, "requested"):
            raise TenureError(
                "INVALID_INPUT",
                "without `run`, only status=requested is listed",
                (Detail("run", "required to list questions of another status"),),
            )
        return await _page_of_open(request, kind, limit, cursor)
    found = await request.engine.scope.reader.approvals(ids.run_int(run))
    fits = [one for one in found if status in (None, one.status) and kind in ("any", one.kind)]
    return page_of_list(
        fits, lambda one: one.no, (request.who.tenant, f"questions of {run}", [status, kind]), cursor, limit
    )


@get("/approvals/{approval_id:str}", summary="A question to people")
async def get_approval(request: ApiRequest, approval_id: FromPath[str]) -> Approval:
    """With its action, requester, deadline and decisions so far. A decision repeats its `digest` and `revision`."""
    return await request.engine.approvals.show(await request.engine.approvals.find(approval_id))


@post("/approvals/{approval_id:str}/decision", status_code=200, summary="Decide an approval")
async def decide_approval(
    request: ApiRequest, approval_id: FromPath[str], data: JSONBody[DecisionRequest]
) -> DecisionResult:
    """By a person who did not request the run. Repeating the same decision changes nothing."""
    return await request.engine.approvals.decide(
        request.who, await request.engine.approvals.find(approval_id), data
    )


@post("/approvals/{approval_id:str}/withdraw", status_code=200, summary="Withdraw an approval")
async def withdraw_approval(request: ApiRequest, approval_id: FromPath[str]) -> DecisionResult:
    """While other approvals are missing, or until the action begins. The question is then open again."""
    return await request.engine.approvals.withdraw(
        request.who, await request.engine.approvals.find(approval_id)
    )


@post("/runs/{run_id:str}/approve", status_code=200, summary="Decide the one approval that a run waits for")
async def approve_run(
    request: ApiRequest, run_id: FromPath[str], data: JSONBody[DecisionRequest | None] = None
) -> DecisionResult:
    """Without a body: approve, unless the approval binds an action, whose digest must be repeated. Without an open approval:
    `{"advanced": false}`. If there are several, decide each at /approvals/{id}/decision."""
    return await request.engine.approvals.decide_only(
        request.who, run_id, data or DecisionRequest(decision="approve")
    )


@get("/inbox/stats", summary="How many questions are open")
async def inbox_stats(request: ApiRequest) -> InboxStats:
    """The counts of open approvals, open proposals and unknown receipts."""
    return await request.engine.approvals.inbox()


@get("/proposals/pending", summary="Open proposals, newest first")
async def pending_proposals(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Approval]:
    """Proposals that nobody has decided, including those of runs that have ended."""
    return await _page_of_open(request, PROPOSAL, limit, cursor)


@post("/proposals/{proposal_id:str}/decision", status_code=200, summary="Decide a proposal")
async def decide_proposal(
    request: ApiRequest, proposal_id: FromPath[str], data: JSONBody[DecisionRequest]
) -> DecisionResult:
    """Accept or reject it, also after its run has ended."""
    return await request.engine.approvals.decide(
        request.who, await request.engine.approvals.find(proposal_id, PROPOSAL), data
    )


HANDLERS = [
    list_approvals,
    get_approval,
    decide_approval,
    withdraw_approval,
    approve_run,
    inbox_stats,
    pending_proposals,
    decide_proposal,
]
