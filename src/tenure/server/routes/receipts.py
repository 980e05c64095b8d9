"""What runs did to other systems: receipts, undos and costs.

Laws:
1. Only a person with the role `approver` settles a receipt of unknown outcome, and nobody who is involved in its run, neither directly
   nor through a client that they answer for.
2. The same answer by the same person again changes nothing; another answer is RECEIPT_SETTLED.
3. Another tenant's receipt looks exactly like a missing one.
4. Money is whole micro-units of a currency. Amounts of different currencies are never added.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter

from tenure import ids
from tenure.errors import Detail, TenureError, field_error
from tenure.limits import NAME_CHARS_MAX
from tenure.reads.run_list import FOREVER_US
from tenure.server.idempotency import idempotent
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, QuestionPlace, make_page, page_of_list
from tenure.server.request import ApiRequest
from tenure.server.routes.run_creation import IN_PROCESS
from tenure.services.approvals import check_person
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.paging import decode_place
from tenure.services.run_creation import start_from_run
from tenure.shapes.costs import CostGrouping, CostReport, RunCosts
from tenure.shapes.pages import Page
from tenure.shapes.receipts import Receipt, UndoResult, UndoRun
from tenure.shapes.runs import RunCreated

AddedUp = Annotated[CostGrouping, QueryParameter(description="The groups of the sums; `tenant`: one sum.")]
Since = Annotated[
    str | None,
    QueryParameter(
        max_length=40,
        description="From this UTC day on (a date, or a time on it); by default the last thirty days.",
    ),
]
Until = Annotated[
    str | None,
    QueryParameter(max_length=40, description="Up to and including this UTC day; by default today."),
]


class SettleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of an action."""

    outcome: Literal["done", "not_done", "retry"]
    """It was done, it was not done, or it is to be called again because doing it twice is harmless."""
    result: Any = None
    """If it was done: what the service would have answered, for the workflow."""
    reason: str | None = None
    """How the outcome is known."""


class SettleResult(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt's state after the request."""

    id: str
    run_id: str
    state: str
    again: bool
    """Whether this person had given the same answer before."""


@get("/receipts", summary="Actions of unknown outcome, newest first")
async def list_receipts(
    request: ApiRequest,
    state_: Annotated[
        Literal["unknown"],
        QueryParameter(name="state", description="Only unknown ones are listed over all runs."),
    ] = "unknown",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[Receipt]:
    """Actions that a person has to settle, also of runs that have ended. `GET /runs/{run_id}/receipts` lists the other states."""
    of = (request.who.tenant, f"receipts {state_}", None)
    items, last = await request.engine.receipts.unknown_page(
        decode_place(cursor, of, QuestionPlace, (FOREVER_US, 0, 0)), limit
    )
    return make_page(items, of, last)


@get("/receipts/{receipt_id:str}", summary="A receipt")
async def get_receipt(request: ApiRequest, receipt_id: FromPath[str]) -> Receipt:
    """The service, the request, its key and times, and its outcome if it is known."""
    return await request.engine.receipts.get(receipt_id)


@post("/receipts/{receipt_id:str}/settle", status_code=200, summary="Settle an action of unknown outcome")
async def settle_receipt(
    request: ApiRequest, receipt_id: FromPath[str], data: JSONBody[SettleRequest]
) -> SettleResult:
    """By an approver who is not involved in the run. `done` and `not_done` are accepted after the run's end, too."""
    check_person(request.who)
    row = await request.engine.receipts.find(receipt_id)
    if data.result is not None and data.outcome != "done":
        raise field_error("result", "only what was done has a result")
    await request.engine.approvals.check_not_involved(request.who, row.run_id)
    result = await request.engine.receipts.settle_row(
        row, data.outcome, person=request.who.actor, result=data.result, reason=data.reason
    )
    return SettleResult(
        id=receipt_id, run_id=ids.run_text(row.run_id), state=result["state"], again=result["again"]
    )


@get("/runs/{run_id:str}/receipts", summary="The receipts of a run")
async def run_receipts(
    request: ApiRequest, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Receipt]:
    """All receipts of the run, the oldest first."""
    return page_of_list(
        await request.engine.receipts.list(run_id),
        lambda one: one.no,
        (request.who.tenant, f"receipts of {run_id}", None),
        cursor,
        limit,
    )


class UndoRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to undo."""

    step: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)] | None = None
    """The name of a step or the label of an action; by default everything that the run did."""
    dry_run: bool = False
    """Whether to return what would be done, and do nothing."""


class UndoLog(msgspec.Struct, frozen=True, kw_only=True):
    """The compensation log of a run."""

    items: list[UndoRun]


@post(
    "/runs/{run_id:str}/undo",
    summary="Undo what a run did",
    status_code=201,
    responses={**IN_PROCESS, 200: ResponseSpec(UndoResult, description="A dry run: what would be done")},
)
async def undo_run(
    request: ApiRequest, run_id: FromPath[str], data: JSONBody[UndoRequest | None] = None
) -> Response[RunCreated | UndoResult]:
    """Undo what a finished run did, as far as its receipts say how. A new run does this, newest action first, with policies and receipts
    like any other."""
    engine, asked = request.engine, data or UndoRequest()
    number = ids.run_int(run_id)

    async def operation(held: HeldRecord | None) -> StoredResponse:
        if asked.dry_run:
            return StoredResponse.of(await engine.undos.preview(run_id, step=asked.step), run_id=number)
        command = await engine.undos.build(run_id, step=asked.step)
        return await start_from_run(engine.scope, command, request.who, request.request_id, held)

    return await idempotent(request, operation, run_id=number)


@get("/runs/{run_id:str}/undo", summary="A run's compensation log")
async def list_undos(request: ApiRequest, run_id: FromPath[str]) -> UndoLog:
    """The runs that undo what the run did, with the outcome of each action."""
    return UndoLog(items=await request.engine.undos.list(run_id))


@get("/runs/{run_id:str}/costs", summary="What a run has spent")
async def get_costs(request: ApiRequest, run_id: FromPath[str]) -> RunCosts:
    """By provider, model and currency, and compared with its budget. The costs of its children are not included."""
    return await request.engine.costs.get(run_id)


@get("/costs", summary="What all runs have spent")
async def list_costs(
    request: ApiRequest, by: AddedUp = "workflow", since: Since = None, until: Until = None
) -> CostReport:
    """Sums by workflow, provider, model or day, or one sum (`by=tenant`), for each currency. The most expensive come first; days are newest
    first. Runs that retention has deleted are not included: their evidence has their costs."""
    return await request.engine.costs.report(by=by, since=_when("since", since), until=_when("until", until))


def _when(name: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        problem = f"{name} is a day like 2026-02-14, or a moment of it"
        raise TenureError("INVALID_INPUT", problem, (Detail(name, problem),)) from None


HANDLERS = [
    list_receipts,
    get_receipt,
    settle_receipt,
    run_receipts,
    undo_run,
    list_undos,
    get_costs,
    list_costs,
]
