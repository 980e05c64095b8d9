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
from msgspec.structs import astuple, replace

from tenure.clock import us
from tenure.kernel.server_rows import VcsCheckRow, VcsReportRow
from tenure.store.feed import FeedPosition
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
    "vcs_report_newest": TakenReport,  # () ; tenant, from, to (texts around the subjects of a commit) -> the newest
    "next_vcs_report": FeedPosition,  # () -> exactly one: when the next one is due
    "vcs_reports_taken": TakenReport,  # () ; now -> those that a process has taken
    "vcs_reports_in": ListedReport,  # () ; tenant, state or '', before_run_id, limit -> newest first
}

WRITES: dict[str, RowType] = {
    "new_vcs_report": VcsReportRow,
    "due_vcs_reports": VcsReportRow,  # now, limit
    "lock_vcs_report": VcsReportRow,  # run_id
    "save_vcs_report": VcsReportRow,  # the row, and the fence that it expects
    "keep_vcs_report": VcsReportRow,
    "put_vcs_check": VcsCheckRow,
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

    async def is_any_due(self) -> bool:
        """Whether taking may find something. It writes nothing, so that an idle reporter leaves the database alone."""
        due_at: int | None = (await self._store.read("next_vcs_report"))[0].at
        return due_at is not None and due_at <= (await self._store.read("now"))[0].now_us

    @timed_transaction
    def take(self, now: int, holder: str, seconds: float, limit: int) -> Transaction[list[VcsReportRow]]:
        """Take reports whose run has changed, or that failed before, for so many seconds (laws 2 and 3)."""
        due: list[VcsReportRow] = yield Query("due_vcs_reports", scalars=(now, limit))
        taken = []
        for row in due:
            mine = replace(row, fence=row.fence + 1, holder=holder, due_at=now + us(seconds))
            taken += yield from _save(mine, row.fence)
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
        row = replace(report, due_at=due_at, updated_at=now, holder="")
        return bool((yield from _save(row, report.fence)))

    async def checks(self, run_id: int) -> dict[str, VcsCheckRow]:
        rows = await read_rows(self._store, VcsCheckRow, "vcs_checks_of", run_id)
        return {row.part: row for row in rows}

    async def has_newer(self, report: VcsReportRow) -> bool:
        """Whether a newer run has the same subject."""
        found = await read_first(self._store, TakenReport, "vcs_report_newer", report.subject, report.run_id)
        return found is not None

    async def find_newest(self, tenant: str, commit_subject: str) -> int | None:
        """The newest run of a commit, by what the subjects of its runs begin with."""
        end = commit_subject[:-1] + chr(ord(commit_subject[-1]) + 1)
        found = await read_first(self._store, TakenReport, "vcs_report_newest", tenant, commit_subject, end)
        return None if found is None else found.run_id

    async def taken(self) -> list[TakenReport]:
        now: int = (await self._store.read("now"))[0].now_us
        return await read_rows(self._store, TakenReport, "vcs_reports_taken", now)

    @timed_transaction
    def free(self, now: int, taken: TakenReport, after_seconds: float) -> Transaction[None]:
        """Let another process take a report whose holder is proven dead, or has stopped."""
        found: list[VcsReportRow] = yield Query("lock_vcs_report", scalars=(taken.run_id,))
        if found and found[0].fence == taken.fence and found[0].holder:
            row = replace(found[0], fence=taken.fence + 1, due_at=now + us(after_seconds), holder="")
            yield from _save(row, taken.fence)

    async def find(self, run_id: int) -> VcsReportRow | None:
        return await read_first(self._store, VcsReportRow, "vcs_report_of", run_id)

    @timed_transaction
    def retry(self, now: int, tenant: str, run_id: int) -> Transaction[bool]:
        """Open a refused report again, or try an open one now (law 4); False: it is reported, taken or missing."""
        found: list[VcsReportRow] = yield Query("lock_vcs_report", scalars=(run_id,))
        if not found or found[0].tenant != tenant or found[0].state == "reported" or found[0].holder:
            return False
        row = replace(found[0], state="open", seen=0, due_at=now, updated_at=now, tries=0, error=None)
        return bool((yield from _save(row, row.fence)))

    async def delete_orphans(self) -> None:
        """Delete the reports of runs that no longer exist."""
        await write_rows(self._store, "delete_orphan_vcs_checks")
        await write_rows(self._store, "delete_orphan_vcs_reports")


def _save(row: VcsReportRow, fence: int) -> Transaction[list[VcsReportRow]]:
    """Write a report if it still has this fence; empty: it does not."""
    saved: list[VcsReportRow] = yield Query("save_vcs_report", scalars=(*astuple(row), fence))
    return saved
