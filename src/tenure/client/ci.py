"""CI runs of a server."""

from __future__ import annotations

from tenure.client.transport import RemoteGroup
from tenure.shapes.ci import CiTrigger
from tenure.shapes.runs import RunCreated


class RemoteCiRuns(RemoteGroup):
    """`engine.ci`, over HTTP."""

    async def trigger(self, trigger: CiTrigger) -> str:
        """Start a run for a ref of a repository. Returns its id."""
        return (await self._transport.send("POST", "/ci/runs", RunCreated, body=trigger)).id
