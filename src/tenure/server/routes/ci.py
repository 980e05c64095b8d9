"""CI runs: started by people and programs, and explained."""

from __future__ import annotations

from litestar import Response, get, post
from litestar.params import FromPath, JSONBody

from tenure.server.idempotency import idempotent
from tenure.server.request import ApiRequest
from tenure.services.ci_runs import build_triggered_run
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.run_creation import start_from_run
from tenure.shapes.ci import CiTrigger, PlanExplanation
from tenure.shapes.runs import RunCreated


@post("/ci/runs", summary="Start a CI run", status_code=201)
async def trigger_ci_run(request: ApiRequest, data: JSONBody[CiTrigger]) -> Response[RunCreated]:
    """Fetch a ref of a repository, plan what its change needs, and run that. The server's settings have the repositories."""
    engine = request.engine

    async def operation(held: HeldRecord | None) -> StoredResponse:
        command = await build_triggered_run(engine.scope, data)
        return await start_from_run(engine.scope, command, request.who, request.request_id, held)

    return await idempotent(request, operation)


@get("/ci/runs/{run_id:str}/plan", summary="Explain the plan of a CI run")
async def explain_ci_plan(request: ApiRequest, run_id: FromPath[str]) -> PlanExplanation:
    """Why each job of the pipeline is in the plan or not."""
    return await request.engine.ci.plan(run_id)


HANDLERS = [trigger_ci_run, explain_ci_plan]
