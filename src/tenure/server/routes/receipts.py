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
from tenure.embedded.plan import payload
from tenure.errors import Detail, TenureError
from tenure.kernel.actions import SettleReceipt
from tenure.orchestrator.listing import FOREVER_US
from tenure.orchestrator.receipts import ReceiptView, receipt_views
from tenure.server.call import Call
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page, cursor_of, place_of
from tenure.server.runs.deciding import check_apart, check_person
from tenure.server.runs.pieces import piece
from tenure.store.filing import Filed


class Settlement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an unknown action ended."""

    outcome: Literal["done", "not_done", "retry"]
    """It was done; it was not; or call again, because doing it twice would be no harm."""
    result: Any = None
    """Of one that was done: what the service would have answered, for the workflow."""
    reason: str | None = None
    """How that is known."""


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt after it."""

    id: str
    run_id: str
    state: str
    again: bool
    """Whether this person had said the same before."""


@get("/receipts", summary="Actions nobody knows the end of, newest first")
async def list_receipts(
    request: Call,
    state_: Annotated[
        Literal["unknown"],
        QueryParameter(name="state", description="Over all runs only unknown ones are listed."),
    ] = "unknown",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[ReceiptView]:
    """What a person has to settle, also of runs that have ended. `GET /runs/{run_id}/receipts` has those of other states."""
    tenant, listed = request.who.tenant, f"receipts {state_}"
    place = [FOREVER_US, 0, 0] if cursor is None else place_of(cursor, tenant, listed, None)
    if (
        len(place) != 3
        or not all(isinstance(one, int) and 0 <= one < 1 << 63 for one in place)
        or place[2] >> 31
    ):
        raise TenureError("CURSOR_INVALID")
    store = request.engine.store
    found: list[Filed] = await store.read("receipts_unknown", tenant, *place, limit + 1)
    rows = found[:limit]
    last = [rows[-1].intent_at, rows[-1].run_id, rows[-1].no] if len(found) > limit else []
    return Page(
        items=await receipt_views(store, rows),
        next_cursor=cursor_of(tenant, listed, None, last) if last else None,
    )


@get("/receipts/{receipt_id:str}", summary="A receipt")
async def get_receipt(request: Call, receipt_id: FromPath[str]) -> ReceiptView:
    """What was asked of which service, under which key, when, and what became of it as far as anybody knows."""
    [view] = await receipt_views(request.engine.store, [await request.engine.filed(receipt_id)])
    return view


@post("/receipts/{receipt_id:str}/settle", status_code=200, summary="Say how an unknown action ended")
async def settle_receipt(request: Call, receipt_id: FromPath[str], data: JSONBody[Settlement]) -> Settled:
    """By an approver who does not stand behind the run. `done` and `not_done` can be said after the run's end, too."""
    check_person(request)
    row = await request.engine.filed(receipt_id)
    if data.result is not None and data.outcome != "done":
        problem = "only what was done has a result"
        raise TenureError("INVALID_INPUT", f"result: {problem}", (Detail("result", problem),))
    await check_apart(request, row.run_id)
    engine, who = request.engine, request.who
    command = SettleReceipt(
        run_id=row.run_id,
        tenant=who.tenant,
        context=engine.context(who.actor, "approval"),
        no=row.no,
        how=data.outcome,
        person=who.actor,
        result=payload(data.result),
        reason=payload(data.reason),
    )
    told: dict[str, Any] = await engine.orchestrator.send(command)
    return Settled(id=receipt_id, run_id=ids.run_text(row.run_id), state=told["state"], again=told["again"])


@get("/runs/{run_id:str}/receipts", summary="What a run did to the world")
async def run_receipts(
    request: Call, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[ReceiptView]:
    """All its receipts, the first one first."""
    found = await request.engine.receipts(run_id)
    return piece(
        found, lambda one: one.no, (request.who.tenant, f"receipts of {run_id}", None), cursor, limit
    )


HANDLERS = [list_receipts, get_receipt, settle_receipt, run_receipts]
