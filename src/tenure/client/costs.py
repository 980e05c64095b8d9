"""What a server's runs have spent; another part of a client."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from tenure.client.transport import Transport
from tenure.shapes.costs import CostGrouping, CostReport, RunCosts


class RemoteCosts:
    """`engine.costs`, over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, run_id: str) -> RunCosts:
        """What a run has spent, per provider and model, and what it may spend."""
        return await self._transport.get(f"/runs/{quote(run_id, safe='')}/costs", RunCosts)

    async def report(
        self, *, by: CostGrouping = "workflow", since: datetime | None = None, until: datetime | None = None
    ) -> CostReport:
        """What the runs of the tenant have spent, added up; without `since` of the last thirty days."""
        said = {"by": by, "since": since and since.isoformat(), "until": until and until.isoformat()}
        params = {name: value for name, value in said.items() if value}
        return await self._transport.get("/costs", CostReport, **params)
