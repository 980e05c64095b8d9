"""CI runs that people and programs start."""

from __future__ import annotations

from litestar import Response, post
from litestar.params import JSONBody

from tenure.server.idempotency import idempotent
from tenure.server.request import ApiRequest
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.run_creation import start_from_run
from tenure.shapes.ci import CiTrigger
from tenure.shapes.runs import RunCreated


@post("/ci/runs", summary="Start a CI run", status_code=201)
async def trigger_ci_run(request: ApiRequest, data: JSONBody[CiTrigger]) -> Response[RunCreated]:
    """Fetch a ref of a repository, plan what its change needs, and run that. The server's settings have the repositories."""
    engine = request.engine

    async def operation(held: HeldRecord | None) -> StoredResponse:
        command = engine.ci.build(data)
        return await start_from_run(engine.scope, command, request.who, request.request_id, held)

    return await idempotent(request, operation)


HANDLERS = [trigger_ci_run]
