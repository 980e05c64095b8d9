"""What a finished run did to the world, undone: foreseen, started, and the log of it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody

from tenure import ids
from tenure.limits import NAME_CHARS_MAX
from tenure.server.idempotency import idempotent
from tenure.server.request import ApiRequest
from tenure.server.routes.run_control import start_from_run
from tenure.server.routes.run_creation import IN_PROCESS
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.shapes.receipts import UndoResult, UndoRun
from tenure.shapes.runs import RunCreated


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


HANDLERS = [undo_run, list_undos]
