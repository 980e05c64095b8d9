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
from tenure.errors import Detail, TenureError
from tenure.kernel.act_commands import SettleReceipt
from tenure.limits import NAME_CHARS_MAX
from tenure.reads.run_list import FOREVER_US
from tenure.server.idempotency import idempotent
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, QuestionPlace, make_page, page_of_list
from tenure.server.request import ApiRequest
from tenure.server.routes.run_control import start_from_run
from tenure.server.routes.run_creation import IN_PROCESS
from tenure.services.approvals import check_person
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.paging import decode_place
from tenure.services.plans import encode_payload
from tenure.services.run_creation import invalid_field
from tenure.shapes.costs import CostGrouping, CostReport, RunCosts
from tenure.shapes.pages import Page
from tenure.shapes.receipts import Receipt
from tenure.shapes.runs import RunCreated
from tenure.shapes.undo import UndoResult, UndoRun

AddedUp = Annotated[CostGrouping, QueryParameter(description="What is added up; `tenant`: just in all.")]
Since = Annotated[
    str | None,
    QueryParameter(
        max_length=40,
        description="From this UTC day on (a date, or a moment of it); else of the last thirty days.",
    ),
]
Until = Annotated[
    str | None, QueryParameter(max_length=40, description="Up to this UTC day, which counts too; else today.")
]


class SettleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an unknown action ended."""

    outcome: Literal["done", "not_done", "retry"]
    """It was done; it was not; or call again, because doing it twice would be no harm."""
    result: Any = None
    """Of one that was done: what the service would have answered, for the workflow."""
    reason: str | None = None
    """How that is known."""


class SettleResult(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt after it."""

    id: str
    run_id: str
    state: str
    again: bool
    """Whether this person had said the same before."""


@get("/receipts", summary="Actions nobody knows the end of, newest first")
async def list_receipts(
    request: ApiRequest,
    state_: Annotated[
        Literal["unknown"],
        QueryParameter(name="state", description="Over all runs only unknown ones are listed."),
    ] = "unknown",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[Receipt]:
    """What a person has to settle, also of runs that have ended. `GET /runs/{run_id}/receipts` has those of other states."""
    of = (request.who.tenant, f"receipts {state_}", None)
    place = decode_place(cursor, of, QuestionPlace, (FOREVER_US, 0, 0))
    items, last = await request.engine.receipts.unknown_page(place, limit)
    return make_page(items, of, last)


@get("/receipts/{receipt_id:str}", summary="A receipt")
async def get_receipt(request: ApiRequest, receipt_id: FromPath[str]) -> Receipt:
    """What was asked of which service, under which key, when, and what became of it as far as anybody knows."""
    return await request.engine.receipts.get(receipt_id)


@post("/receipts/{receipt_id:str}/settle", status_code=200, summary="Say how an unknown action ended")
async def settle_receipt(
    request: ApiRequest, receipt_id: FromPath[str], data: JSONBody[SettleRequest]
) -> SettleResult:
    """By an approver who does not stand behind the run. `done` and `not_done` can be said after the run's end, too."""
    check_person(request.who)
    row = await request.engine.receipts.find(receipt_id)
    if data.result is not None and data.outcome != "done":
        raise invalid_field("result", "only what was done has a result")
    await request.engine.approvals.check_not_involved(request.who, row.run_id)
    engine, who = request.engine, request.who
    command = SettleReceipt(
        run_id=row.run_id,
        tenant=who.tenant,
        context=engine.scope.context(who.actor, "approval"),
        no=row.no,
        how=data.outcome,
        person=who.actor,
        result=encode_payload(data.result),
        reason=encode_payload(data.reason),
    )
    told: dict[str, Any] = await engine.orchestrator.send(command)
    return SettleResult(
        id=receipt_id, run_id=ids.run_text(row.run_id), state=told["state"], again=told["again"]
    )


@get("/runs/{run_id:str}/receipts", summary="What a run did to the world")
async def run_receipts(
    request: ApiRequest, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Receipt]:
    """All its receipts, the first one first."""
    found = await request.engine.receipts.list(run_id)
    return page_of_list(
        found, lambda one: one.no, (request.who.tenant, f"receipts of {run_id}", None), cursor, limit
    )


class UndoRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be undone."""

    step: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)] | None = None
    """A step's name or an act's label; without it everything the run did."""
    dry_run: bool = False
    """Only say what would be done."""


class UndoLog(msgspec.Struct, frozen=True, kw_only=True):
    """The compensation log of a run."""

    items: list[UndoRun]


@post(
    "/runs/{run_id:str}/undo",
    summary="Undo what a run did",
    status_code=201,
    responses={**IN_PROCESS, 200: ResponseSpec(UndoResult, description="What would be done: a dry run")},
)
async def undo_run(
    request: ApiRequest, run_id: FromPath[str], data: JSONBody[UndoRequest | None] = None
) -> Response[RunCreated | UndoResult]:
    """Take back what a finished run did, as far as its receipts say how: a run of its own, newest action first, governed
    and receipted like any other."""
    engine, asked = request.engine, data or UndoRequest()
    number = ids.run_int(run_id)

    async def operation(held: HeldRecord | None) -> StoredResponse:
        if asked.dry_run:
            return StoredResponse.of(await engine.undos.preview(run_id, step=asked.step), run_id=number)
        return await start_from_run(request, engine, await engine.undos.build(run_id, step=asked.step), held)

    return await idempotent(request, operation, run_id=number)


@get("/runs/{run_id:str}/undo", summary="A run's compensation log")
async def list_undos(request: ApiRequest, run_id: FromPath[str]) -> UndoLog:
    """The runs that undo what a run did, and what became of each action."""
    return UndoLog(items=await request.engine.undos.list(run_id))


@get("/runs/{run_id:str}/costs", summary="What a run has spent")
async def get_costs(request: ApiRequest, run_id: FromPath[str]) -> RunCosts:
    """Per provider, model and currency, and against its budget. What its children spend is theirs."""
    return await request.engine.costs.get(run_id)


@get("/costs", summary="What all runs have spent")
async def list_costs(
    request: ApiRequest, by: AddedUp = "workflow", since: Since = None, until: Until = None
) -> CostReport:
    """Added up by workflow, provider, model or day, or just in all (`by=tenant`); each currency by itself. The dearest come first,
    days the newest first. Runs that retention has deleted are not counted any more: their evidence has what they cost."""
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
