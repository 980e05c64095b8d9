"""Costs: what runs have spent."""

from __future__ import annotations

from datetime import datetime

from tenure import ids
from tenure.clock import to_datetime
from tenure.reads.costs import read_cost_report, read_run_costs
from tenure.services.scope import Scope
from tenure.shapes.costs import CostGrouping, CostReport, RunCosts


class Costs:
    """The costs of a scope's tenant."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def get(self, run_id: str) -> RunCosts:
        """What a run has spent by provider and model, and what it may spend."""
        run = await self._scope.reader.row(ids.run_int(run_id))
        return await read_run_costs(self._scope.store, run.id)

    async def report(
        self, *, by: CostGrouping = "workflow", since: datetime | None = None, until: datetime | None = None
    ) -> CostReport:
        """What all runs have spent, in groups; without `since`, in the last thirty days."""
        scope = self._scope
        [now] = await scope.store.read("now")
        return await read_cost_report(
            scope.store, scope.tenant, by=by, since=since, until=until, now=to_datetime(now.now_us)
        )
