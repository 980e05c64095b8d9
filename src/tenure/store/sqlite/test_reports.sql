-- Test reports, and the history of single tests; see tenure.store.test_reports.

-- name: test_report_of
select * from test_report where run_id = ?1 and idx = ?2 and n = ?3

-- name: test_reports_of
select * from test_report where run_id = ?1 order by idx, n limit ?2

-- name: test_histories_of
-- Of the tests in the JSON list ?3.
select * from test_history where tenant = ?1 and scope = ?2 and test in (select value from json_each(?3)) order by test

-- name: test_histories_failing
-- Tests that failed the last time that a job reported them, for this commit.
select * from test_history
where tenant = ?1 and scope = ?2 and last_failed and last_job = ?3 and last_commit = ?4 limit ?5

-- name: test_history_count
select count(*) from test_history where tenant = ?1 and scope = ?2

-- name: save_test_report
insert into test_report values (?1, ?2, ?3, ?4, ?5, ?6, ?7) returning *

-- name: save_test_history
insert into test_history values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
on conflict (tenant, scope, test) do update set
    failed = excluded.failed, passed = excluded.passed, changes = excluded.changes, same_commit = excluded.same_commit,
    last_failed = excluded.last_failed, last_commit = excluded.last_commit, last_job = excluded.last_job,
    last_failed_at = excluded.last_failed_at, last_passed_at = excluded.last_passed_at
returning *

-- name: forget_test_histories
-- The tests that failed longest ago.
delete from test_history where tenant = ?1 and scope = ?2 and test in (
    select h.test from test_history as h where h.tenant = ?1 and h.scope = ?2 order by h.last_failed_at limit ?3)
returning *

-- name: delete_test_report
-- A part of a save: deleted with its run.
delete from test_report where run_id = ?1
