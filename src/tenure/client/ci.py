"""CI runs of a server."""

from __future__ import annotations

from tenure.client.transport import RemoteGroup, join_path
from tenure.shapes.ci import CiTrigger, PlanExplanation
from tenure.shapes.runs import RunCreated


class RemoteCiRuns(RemoteGroup):
    """`engine.ci`, over HTTP."""

    async def trigger(self, trigger: CiTrigger) -> str:
        """Start a run for a ref of a repository. Returns its id."""
        return (await self._transport.send("POST", "/ci/runs", RunCreated, body=trigger)).id

    async def plan(self, run_id: str) -> PlanExplanation:
        """Why each job of the pipeline is in the run's plan or not. PLAN_NOT_FOUND before the plan is made."""
        return await self._transport.get(join_path("ci", "runs", run_id, "plan"), PlanExplanation)
