"""Reports of runs to the VCS: listed, and retried by people after a refusal."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.errors import TenureError
from tenure.services.paging import Place, read_page
from tenure.services.scope import Service
from tenure.shapes.pages import Page
from tenure.shapes.reports import VcsReport, VcsTarget
from tenure.store.vcs_reports import ListedReport, VcsReports

ReportState = Literal["open", "reported", "refused"]
_List = list  # `Reports.list` hides the builtin in annotations of the class
_RUN_ID_MAX = (1 << 63) - 1
_RunPlace = tuple[Annotated[int, msgspec.Meta(ge=0, le=_RUN_ID_MAX)]]


class Reports(Service):
    """The reports of a scope's tenant."""

    @property
    def _reports(self) -> VcsReports:
        return VcsReports(self._scope.store)

    async def list(self, *, state: ReportState | None = None, limit: int = 50) -> _List[VcsReport]:
        """The newest reports, of one state or of all."""
        return (await self.page(limit, None, state)).items

    async def page(
        self, limit: int, cursor: str | None = None, state: ReportState | None = None
    ) -> Page[VcsReport]:
        tenant = self._scope.tenant

        async def read(before: Place, count: int) -> _List[ListedReport]:
            return await self._scope.store.read("vcs_reports_in", tenant, state or "", *before, count)

        return await read_page(
            (tenant, "reports", state),
            _RunPlace,
            (_RUN_ID_MAX,),
            read,
            lambda row: [row.run_id],
            show_report,
            limit=limit,
            cursor=cursor,
        )

    async def get(self, run_id: str) -> VcsReport:
        """The report of a run; REPORT_NOT_FOUND if it has none."""
        run = await self._scope.reader.row(ids.run_int(run_id))
        rows = await self._scope.store.read("vcs_reports_in", run.tenant, "", run.id + 1, 1)
        if not rows or rows[0].run_id != run.id:
            raise TenureError("REPORT_NOT_FOUND", f"run {run_id} has no report to a VCS")
        return show_report(rows[0])

    async def retry(self, run_id: str) -> VcsReport:
        """Try a refused report again, or an open one now."""
        report = await self.get(run_id)
        if not await self._reports.retry(self._scope.tenant, ids.run_int(run_id)):
            raise TenureError(
                "REPORT_NOT_RETRYABLE", f"the report of run {run_id} is {report.state}, or is being written"
            )
        return await self.get(run_id)


def show_report(row: ListedReport) -> VcsReport:
    target = msgspec.json.decode(row.vcs_target, type=VcsTarget)
    return VcsReport(
        run_id=ids.run_text(row.run_id),
        workflow=row.workflow,
        repository=target.repository,
        head_sha=target.head_sha,
        pull_request=target.pull_request,
        state=row.state,
        tries=row.tries,
        error=row.error,
        next_try_at=to_optional_datetime(row.due_at),
        updated_at=to_datetime(row.updated_at),
    )
