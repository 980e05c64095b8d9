"""Test reports of attempts, and the history of single tests.

Laws:
1. An attempt has one report. The same report again changes nothing.
2. A test gets a history when it fails. From then on passes count, too. A late report is stored and counts for nothing.
3. Two reports that are recorded at the same time may count a test once instead of twice: the history is a statistic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tenure.errors import TenureError
from tenure.kernel.ci_rows import TestHistoryRow, TestReportRow
from tenure.limits import FAILED_CASES_PER_REPORT_MAX, TESTS_REMEMBERED_MAX
from tenure.store.port import LEAVE_EVENT_LOOP, Query, RowType, Store, Transaction
from tenure.store.remote_leases import lock_lease
from tenure.store.transactions import run_transaction


class HistoryCount(msgspec.Struct, gc=False):
    count: int


READS: dict[str, RowType] = {
    "test_report_of": TestReportRow,  # () ; run_id, idx, n
    "test_reports_of": TestReportRow,  # () ; run_id, limit -> by step and attempt
    "test_histories_of": TestHistoryRow,  # () ; tenant, scope, tests as a JSON list
    "test_histories_failing": TestHistoryRow,  # () ; tenant, scope, job, commit, limit
    "test_history_count": HistoryCount,  # () ; tenant, scope
}
WRITES: dict[str, RowType] = {
    "save_test_report": TestReportRow,
    "save_test_history": TestHistoryRow,
    "forget_test_histories": TestHistoryRow,
}


class SeenTests(NamedTuple):
    """The tests of a report, by their names, and where their history is."""

    tenant: str
    scope: str
    commit: str
    job: str
    failed: tuple[str, ...]
    passed: tuple[str, ...]
    complete: bool
    """Whether every other test of this job passed or was skipped."""


async def save_test_report(
    store: Store, row: TestReportRow, seen: SeenTests | None, *, late_seconds: float
) -> TestReportRow:
    """Store the report of an attempt, and count its tests. INVALID_INPUT if the attempt has sent another one."""
    attempt = (row.run_id, row.idx, row.n)

    def work() -> Transaction[TestReportRow]:
        yield LEAVE_EVENT_LOOP
        lease = yield from lock_lease(*attempt, late_seconds=late_seconds)
        before: list[TestReportRow] = yield Query("test_report_of", scalars=attempt)
        if before and before[0].digest == row.digest:
            return before[0]
        if before:
            raise TenureError("INVALID_INPUT", f"attempt {row.n} has sent another test report before")
        filled = msgspec.structs.replace(row, late=lease.late, at=lease.now_us)
        written: list[TestReportRow] = yield Query(
            "save_test_report", scalars=msgspec.structs.astuple(filled)
        )
        if seen is not None and not lease.late:
            yield from _count_tests(seen, lease.now_us)
        return written[0]

    return await run_transaction(store, work)


def _count_tests(seen: SeenTests, now_us: int) -> Transaction[None]:
    asked = msgspec.json.encode([*seen.failed, *seen.passed]).decode()
    rows: list[TestHistoryRow] = yield Query("test_histories_of", scalars=(seen.tenant, seen.scope, asked))
    known = {row.test: row for row in rows}
    failed = dict.fromkeys(seen.failed)
    passed = dict.fromkeys(seen.passed)
    if seen.complete:  # the tests of this job and commit that failed before, and now did not
        scalars = (seen.tenant, seen.scope, seen.job, seen.commit, FAILED_CASES_PER_REPORT_MAX)
        before: list[TestHistoryRow] = yield Query("test_histories_failing", scalars=scalars)
        known |= {row.test: row for row in before}
        passed |= dict.fromkeys(row.test for row in before)
    changed = [count_failure(known.get(test), seen, test, now_us) for test in failed]
    changed += [
        count_pass(known[test], seen, now_us) for test in passed if test in known and test not in failed
    ]
    if not changed:
        return
    yield Query("save_test_history", [msgspec.structs.astuple(row) for row in changed])
    total = (yield Query("test_history_count", scalars=(seen.tenant, seen.scope)))[0].count
    if total > TESTS_REMEMBERED_MAX:
        yield Query("forget_test_histories", scalars=(seen.tenant, seen.scope, total - TESTS_REMEMBERED_MAX))


def count_failure(known: TestHistoryRow | None, seen: SeenTests, test: str, now_us: int) -> TestHistoryRow:
    """The history of a test after another failure."""
    if known is None:
        return TestHistoryRow(
            seen.tenant, seen.scope, test, 1, 0, 0, 0, True, seen.commit, seen.job, now_us, None
        )
    return msgspec.structs.replace(
        known,
        failed=known.failed + 1,
        changes=known.changes + (not known.last_failed),
        same_commit=known.same_commit + (not known.last_failed and known.last_commit == seen.commit),
        last_failed=True,
        last_commit=seen.commit,
        last_job=seen.job,
        last_failed_at=now_us,
    )


def count_pass(known: TestHistoryRow, seen: SeenTests, now_us: int) -> TestHistoryRow:
    """The history of a test after a pass."""
    return msgspec.structs.replace(
        known,
        passed=known.passed + 1,
        changes=known.changes + known.last_failed,
        same_commit=known.same_commit + (known.last_failed and known.last_commit == seen.commit),
        last_failed=False,
        last_commit=seen.commit,
        last_job=seen.job,
        last_passed_at=now_us,
    )


async def read_test_histories(
    store: Store, tenant: str, scopes: Iterable[str], tests: Iterable[str]
) -> dict[str, list[TestHistoryRow]]:
    """The histories of tests in several scopes."""
    asked = msgspec.json.encode(list(tests)).decode()
    found: dict[str, list[TestHistoryRow]] = {}
    for scope in scopes:
        for row in await store.read("test_histories_of", tenant, scope, asked):
            found.setdefault(row.test, []).append(row)
    return found
