"""Costs: what runs have spent."""

from __future__ import annotations

from datetime import datetime

from tenure import ids
from tenure.clock import to_datetime
from tenure.reads.costs import read_cost_report, read_run_costs
from tenure.services.scope import Service
from tenure.shapes.costs import CostGrouping, CostReport, RunCosts


class Costs(Service):
    """The costs of a scope's tenant."""

    async def get(self, run_id: str) -> RunCosts:
        """What a run has spent by provider and model, and its budget."""
        run = await self._scope.reader.row(ids.run_int(run_id))
        return await read_run_costs(self._scope.store, run.id)

    async def report(
        self, *, by: CostGrouping = "workflow", since: datetime | None = None, until: datetime | None = None
    ) -> CostReport:
        """What all runs have spent, in groups. Without `since`: in the last thirty days."""
        scope, now = self._scope, to_datetime(await self._scope.now_us())
        return await read_cost_report(scope.store, scope.tenant, by=by, since=since, until=until, now=now)
