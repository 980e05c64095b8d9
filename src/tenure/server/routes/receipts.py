"""Receipts: what runs did to the world, and what nobody knows the end of until a person says so.

Laws:
1. Only a person who is an approver settles one, and none of those behind its run, by themselves or by a client they answer for.
2. The same answer by the same person again is no error, and changes nothing; another one is RECEIPT_SETTLED.
3. Another tenant's receipt looks exactly like none.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.kernel.act_commands import SettleReceipt
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
from tenure.services.approvals import check_person
from tenure.services.plans import encode_payload
from tenure.shapes.receipts import Receipt


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
    tenant, listed = request.who.tenant, f"receipts {state_}"
    place = [FOREVER_US, 0, 0] if cursor is None else decode_cursor(cursor, tenant, listed, None)
    if (
        len(place) != 3
        or not all(isinstance(one, int) and 0 <= one < 1 << 63 for one in place)
        or place[2] >> 31
    ):
        raise TenureError("CURSOR_INVALID")
    items, last = await request.engine.receipts.unknown_page(place, limit)
    return Page(items=items, next_cursor=encode_cursor(tenant, listed, None, last) if last else None)


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
        problem = "only what was done has a result"
        raise TenureError("INVALID_INPUT", f"result: {problem}", (Detail("result", problem),))
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


HANDLERS = [list_receipts, get_receipt, settle_receipt, run_receipts]
