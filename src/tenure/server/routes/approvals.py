"""Approvals: what people are asked, and their answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.reads.run_list import FOREVER_US
from tenure.server.paging import (
    LIMIT_DEFAULT,
    Cursor,
    Limit,
    Page,
    decode_cursor,
    encode_cursor,
    page_of_list,
)
from tenure.server.request import ApiRequest
from tenure.services.approvals import (
    DecisionRequest,
    DecisionResult,
)
from tenure.shapes.approvals import Approval

STATUSES = ("requested", "approved", "rejected", "expired", "canceled")
Status = Literal["requested", "approved", "rejected", "expired", "canceled"]


async def page_of_open_questions(
    call: ApiRequest, kind: str, limit: int, cursor: str | None
) -> Page[Approval]:
    """Open questions of a kind, newest first."""
    tenant, listed = call.who.tenant, f"questions {kind}"
    place = [FOREVER_US, 0, 0] if cursor is None else _place(decode_cursor(cursor, tenant, listed, None))
    items, last = await call.engine.approvals.open_page(kind, place, limit)
    return Page(items=items, next_cursor=encode_cursor(tenant, listed, None, last) if last else None)


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
    request: ApiRequest,
    run: Annotated[
        str | None, QueryParameter(description="All questions of this run, the first one first.")
    ] = None,
    status: FromQuery[Status | None] = None,
    kind: FromQuery[Literal["approval", "proposal", "any"]] = "approval",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[Approval]:
    """The open approvals; with `run` all of that run's, decided ones too, unless `status` says which."""
    if run is None:
        if status not in (None, "requested"):
            raise TenureError(
                "INVALID_INPUT",
                "over all runs only open questions are listed",
                (Detail("run", "names the run whose questions of other statuses are meant"),),
            )
        return await page_of_open_questions(request, kind, limit, cursor)
    found = await request.engine.scope.reader.approvals(ids.run_int(run))
    fits = [one for one in found if status in (None, one.status) and kind in ("any", one.kind)]
    at = (request.who.tenant, f"questions of {run}", [status, kind])
    return page_of_list(fits, lambda one: one.no, at, cursor, limit)


@get("/approvals/{approval_id:str}", summary="A question to people")
async def get_approval(request: ApiRequest, approval_id: FromPath[str]) -> Approval:
    """What is asked, by whom, until when, and how far it is; `digest` and `revision` are repeated by who decides."""
    return await request.engine.approvals.show(await request.engine.approvals.find(approval_id))


@post("/approvals/{approval_id:str}/decision", status_code=200, summary="Decide an approval")
async def decide_approval(
    request: ApiRequest, approval_id: FromPath[str], data: JSONBody[DecisionRequest]
) -> DecisionResult:
    """By a person who did not ask for the run. The same decision again changes nothing."""
    return await request.engine.approvals.decide(
        request.who, await request.engine.approvals.find(approval_id), data
    )


@post("/approvals/{approval_id:str}/withdraw", status_code=200, summary="Take one's own yes back")
async def withdraw_approval(request: ApiRequest, approval_id: FromPath[str]) -> DecisionResult:
    """While more people are asked, or until the action it is for is begun. Then people are asked again."""
    return await request.engine.approvals.withdraw(
        request.who, await request.engine.approvals.find(approval_id)
    )


@post("/runs/{run_id:str}/approve", status_code=200, summary="Decide the one approval that a run waits for")
async def approve_run(
    request: ApiRequest, run_id: FromPath[str], data: JSONBody[DecisionRequest]
) -> DecisionResult:
    """With none open: `{"advanced": false}`; with several, decide each at /approvals/{id}/decision."""
    return await request.engine.approvals.decide_only(request.who, run_id, data)


HANDLERS = [list_approvals, get_approval, decide_approval, withdraw_approval, approve_run]
