"""What runs have spent; another part of an engine."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, cast

from tenure import ids
from tenure.orchestrator.spending import By, RunCosts, SpendingView, run_costs, spending
from tenure.orchestrator.step_views import moment

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine


class Costs:
    """See above."""

    async def costs(self, run_id: str) -> RunCosts:
        """What a run has spent, per provider and model, and what it may spend."""
        engine = cast("Engine", self)
        run = await engine.views.row(ids.run_int(run_id))
        return await run_costs(engine.store, run.id)

    async def spending(
        self, *, by: By = "workflow", since: datetime | None = None, until: datetime | None = None
    ) -> SpendingView:
        """What the runs of this engine's tenant have spent, added up; without `since` of the last thirty days."""
        engine = cast("Engine", self)
        [now] = await engine.store.read("now")
        return await spending(
            engine.store, engine.tenant, by=by, since=since, until=until, now=moment(now.now_us)
        )
