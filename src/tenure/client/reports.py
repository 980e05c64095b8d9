"""The reports of a server's runs to the VCS."""

from __future__ import annotations

from typing import Literal

from tenure.client.transport import RemoteGroup, join_path
from tenure.shapes.reports import VcsReport

_List = list  # the method `list` hides the builtin in annotations of a class


class RemoteReports(RemoteGroup):
    """`engine.reports`, over HTTP."""

    async def list(
        self, *, state: Literal["open", "reported", "refused"] | None = None, limit: int = 50
    ) -> _List[VcsReport]:
        """The newest reports, of one state or of all."""
        return await self._transport.pages("/reports", VcsReport, limit=limit, state=state)

    async def get(self, run_id: str) -> VcsReport:
        """The report of a run; REPORT_NOT_FOUND if it has none."""
        return await self._transport.get(join_path("reports", run_id), VcsReport)

    async def retry(self, run_id: str) -> VcsReport:
        """Try a refused report again, or an open one now."""
        return await self._transport.send("POST", join_path("reports", run_id, "retry"), VcsReport)
