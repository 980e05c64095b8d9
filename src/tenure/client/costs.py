"""What a server's runs have spent; another part of a client."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from tenure.orchestrator.spending import By, RunCosts, SpendingView

if TYPE_CHECKING:
    from tenure.client.transport import Transport


class RemoteCosts:
    """With the words of an engine's."""

    _to: Transport

    async def costs(self, run_id: str) -> RunCosts:
        """What a run has spent, per provider and model, and what it may spend."""
        return await self._to.get(f"/runs/{quote(run_id, safe='')}/costs", RunCosts)

    async def spending(
        self, *, by: By = "workflow", since: datetime | None = None, until: datetime | None = None
    ) -> SpendingView:
        """What the runs of the tenant have spent, added up; without `since` of the last thirty days."""
        said = {"by": by, "since": since and since.isoformat(), "until": until and until.isoformat()}
        params = {name: value for name, value in said.items() if value}
        return await self._to.get("/costs", SpendingView, **params)
