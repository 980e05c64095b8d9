"""VCS reports: what the status reporter has written for each run, as rows.

Laws:
1. A run with a VCS target has one report. Any process may insert it.
2. A process takes a report for a while. Taking it raises its fence, and everything that its holder writes names that fence: a holder
   that was too slow changes nothing any more. The report of a process that died is taken again.
3. A report is taken only while no finished run of the same subject that is older still waits for its own report.
4. A report that is `reported` or `refused` is finished. Only a person opens a refused one again.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import astuple

from tenure.clock import us
from tenure.kernel.server_rows import VcsCheckRow, VcsReportRow
from tenure.store.port import Query, RowType, Transaction
from tenure.store.transactions import Repository, read_first, read_rows, timed_transaction, write_rows


class WantedReport(msgspec.Struct, gc=False):
    """A run with a VCS target and without a report."""

    run_id: int
    tenant: str
    workflow: str
    vcs_target: str


class ListedReport(msgspec.Struct, gc=False):
    """A report with its run's target, for lists."""

    run_id: int
    tenant: str
    workflow: str
    vcs_target: str
    state: str
    due_at: int | None
    tries: int
    error: str | None
    updated_at: int


class TakenReport(msgspec.Struct, gc=False):
    """A report that a process has taken."""

    run_id: int
    fence: int
    holder: str


READS: dict[str, RowType] = {
    "vcs_reports_wanted": WantedReport,  # () ; after_run_id, limit -> by run
    "vcs_report_of": VcsReportRow,  # () ; run_id
    "vcs_checks_of": VcsCheckRow,  # () ; run_id
    "vcs_report_newer": TakenReport,  # () ; subject, run_id -> the oldest that is newer
    "vcs_reports_taken": TakenReport,  # () ; now -> those that a process has taken
    "vcs_reports_in": ListedReport,  # () ; tenant, state or '', before_run_id, limit -> newest first
}

WRITES: dict[str, RowType] = {
    "new_vcs_report": VcsReportRow,
    "take_vcs_reports": VcsReportRow,
    "keep_vcs_report": VcsReportRow,
    "put_vcs_report": VcsReportRow,
    "put_vcs_check": VcsCheckRow,
    "free_vcs_report": VcsReportRow,
    "retry_vcs_report": VcsReportRow,
    "delete_orphan_vcs_reports": TakenReport,
    "delete_orphan_vcs_checks": TakenReport,
}


class VcsReports(Repository):
    """The reports of a store; see the laws above."""

    async def wanted(self, after_run_id: int, limit: int) -> list[WantedReport]:
        """Runs with a target and without a report."""
        return await read_rows(self._store, WantedReport, "vcs_reports_wanted", after_run_id, limit)

    @timed_transaction
    def open(self, now: int, wanted: list[tuple[WantedReport, str]]) -> Transaction[None]:
        """Insert the reports of runs, each with its subject (law 1)."""
        for one, subject in wanted:
            row = VcsReportRow(one.run_id, one.tenant, subject, "open", 0, 0, now, now, now)
            yield Query("new_vcs_report", scalars=astuple(row))

    @timed_transaction
    def take(self, now: int, holder: str, seconds: float, limit: int) -> Transaction[list[VcsReportRow]]:
        """Take reports whose run has changed, or that failed before, for so many seconds (laws 2 and 3)."""
        taken: list[VcsReportRow] = yield Query(
            "take_vcs_reports", scalars=(now, now + us(seconds), holder, limit)
        )
        return taken

    @timed_transaction
    def keep(self, now: int, report: VcsReportRow, seconds: float) -> Transaction[bool]:
        """Keep a report for so many more seconds; False: another process has it."""
        return bool(
            (yield Query("keep_vcs_report", scalars=(report.run_id, report.fence, now + us(seconds))))
        )

    @timed_transaction
    def put_check(
        self, now: int, report: VcsReportRow, check: VcsCheckRow, seconds: float
    ) -> Transaction[bool]:
        """Record a check, and keep its report for so many more seconds; False: another process has the report."""
        kept = yield Query("keep_vcs_report", scalars=(report.run_id, report.fence, now + us(seconds)))
        if kept:
            yield Query("put_vcs_check", scalars=astuple(check))
        return bool(kept)

    @timed_transaction
    def put(self, now: int, report: VcsReportRow, after_seconds: float | None) -> Transaction[bool]:
        """Write the outcome of a try and give the report back. `after_seconds`: when to look again; None: never."""
        due_at = None if after_seconds is None else now + us(after_seconds)
        row = msgspec.structs.replace(report, due_at=due_at, updated_at=now, holder="")
        written = yield Query(
            "put_vcs_report",
            scalars=(
                row.run_id,
                row.fence,
                row.state,
                row.seen,
                row.due_at,
                row.updated_at,
                row.tries,
                row.error,
            ),
        )
        return bool(written)

    async def checks(self, run_id: int) -> dict[str, VcsCheckRow]:
        rows = await read_rows(self._store, VcsCheckRow, "vcs_checks_of", run_id)
        return {row.part: row for row in rows}

    async def has_newer(self, report: VcsReportRow) -> bool:
        """Whether a newer run has the same subject."""
        found = await read_first(self._store, TakenReport, "vcs_report_newer", report.subject, report.run_id)
        return found is not None

    async def taken(self) -> list[TakenReport]:
        now: int = (await self._store.read("now"))[0].now_us
        return await read_rows(self._store, TakenReport, "vcs_reports_taken", now)

    @timed_transaction
    def free(self, now: int, taken: TakenReport, after_seconds: float) -> Transaction[None]:
        """Let another process take the report of a process that is proven dead."""
        yield Query("free_vcs_report", scalars=(taken.run_id, taken.fence, now + us(after_seconds)))

    async def find(self, run_id: int) -> VcsReportRow | None:
        return await read_first(self._store, VcsReportRow, "vcs_report_of", run_id)

    @timed_transaction
    def retry(self, now: int, tenant: str, run_id: int) -> Transaction[bool]:
        """Open a refused report again, or try an open one now (law 4); False: it is reported, taken or missing."""
        return bool((yield Query("retry_vcs_report", scalars=(tenant, run_id, now))))

    async def delete_orphans(self) -> None:
        """Delete the reports of runs that no longer exist."""
        await write_rows(self._store, "delete_orphan_vcs_checks")
        await write_rows(self._store, "delete_orphan_vcs_reports")
