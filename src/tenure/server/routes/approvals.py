"""Approvals: what people are asked, and their answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.orchestrator.listing import FOREVER_US
from tenure.orchestrator.questions import ApprovalView, views_of
from tenure.server.call import Call
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page, cursor_of, place_of
from tenure.server.runs.deciding import (
    Decided,
    Decision,
    decide,
    decide_only_gate,
    question,
    shown,
    withdraw,
)
from tenure.server.runs.pieces import piece
from tenure.store.listing import Question

STATUSES = ("requested", "approved", "rejected", "expired", "canceled")
Status = Literal["requested", "approved", "rejected", "expired", "canceled"]


async def open_page(call: Call, kind: str, limit: int, cursor: str | None) -> Page[ApprovalView]:
    """Open questions of a kind, newest first."""
    tenant, listed = call.who.tenant, f"questions {kind}"
    place = [FOREVER_US, 0, 0] if cursor is None else _place(place_of(cursor, tenant, listed, None))
    store = call.engine.store
    found: list[Question] = await store.read("questions_page", tenant, kind, *place, limit + 1)
    rows = found[:limit]
    last = [rows[-1].requested_at, rows[-1].run_id, rows[-1].no] if len(found) > limit else []
    return Page(
        items=await views_of(store, rows),
        next_cursor=cursor_of(tenant, listed, None, last) if last else None,
    )


def _place(found: list[Any]) -> list[Any]:
    if (
        len(found) != 3
        or not all(isinstance(one, int) and 0 <= one < 1 << 63 for one in found)
        or found[2] >> 31
    ):
        raise TenureError("CURSOR_INVALID")
    return found


@get("/approvals", summary="What people are asked, newest first")
async def list_approvals(
    request: Call,
    run: Annotated[
        str | None, QueryParameter(description="All questions of this run, the first one first.")
    ] = None,
    status: FromQuery[Status | None] = None,
    kind: FromQuery[Literal["approval", "proposal", "any"]] = "approval",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[ApprovalView]:
    """The open approvals; with `run` all of that run's, decided ones too, unless `status` says which."""
    if run is None:
        if status not in (None, "requested"):
            raise TenureError(
                "INVALID_INPUT",
                "over all runs only open questions are listed",
                (Detail("run", "names the run whose questions of other statuses are meant"),),
            )
        return await open_page(request, kind, limit, cursor)
    found = await request.engine.views.approvals(ids.run_int(run))
    fits = [one for one in found if status in (None, one.status) and kind in ("any", one.kind)]
    at = (request.who.tenant, f"questions of {run}", [status, kind])
    return piece(fits, lambda one: one.no, at, cursor, limit)


@get("/approvals/{approval_id:str}", summary="A question to people")
async def get_approval(request: Call, approval_id: FromPath[str]) -> ApprovalView:
    """What is asked, by whom, until when, and how far it is; `digest` and `revision` are repeated by who decides."""
    return await shown(request, await question(request, approval_id))


@post("/approvals/{approval_id:str}/decision", status_code=200, summary="Decide an approval")
async def decide_approval(request: Call, approval_id: FromPath[str], data: JSONBody[Decision]) -> Decided:
    """By a person who did not ask for the run. The same decision again changes nothing."""
    return await decide(request, await question(request, approval_id), data)


@post("/approvals/{approval_id:str}/withdraw", status_code=200, summary="Take one's own yes back")
async def withdraw_approval(request: Call, approval_id: FromPath[str]) -> Decided:
    """While more people are asked, or until the action it is for is begun. Then people are asked again."""
    return await withdraw(request, await question(request, approval_id))


@post("/runs/{run_id:str}/approve", status_code=200, summary="Decide the one approval that a run waits for")
async def approve_run(request: Call, run_id: FromPath[str], data: JSONBody[Decision]) -> Decided:
    """With none open: `{"advanced": false}`; with several, decide each at /approvals/{id}/decision."""
    return await decide_only_gate(request, run_id, data)


HANDLERS = [list_approvals, get_approval, decide_approval, withdraw_approval, approve_run]
