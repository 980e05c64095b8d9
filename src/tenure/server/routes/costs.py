"""What runs have spent: of one, and added up.

Law: money is whole micro-units of a currency; currencies are never added to each other.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter

from tenure.errors import Detail, TenureError
from tenure.server.request import ApiRequest
from tenure.shapes.costs import CostGrouping, CostReport, RunCosts

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


HANDLERS = [get_costs, list_costs]
