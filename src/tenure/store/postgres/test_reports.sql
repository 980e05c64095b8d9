-- Test reports, and the history of single tests; see tenure.store.test_reports.

-- name: test_report_of
select {test_report} from tenure.test_report where run_id = $1 and idx = $2 and n = $3

-- name: test_reports_of
select {test_report} from tenure.test_report where run_id = $1 order by idx, n limit $2

-- name: test_histories_of
-- Of the tests in the JSON list $3.
select {test_history} from tenure.test_history where tenant = $1 and scope = $2 and test in (select jsonb_array_elements_text($3::jsonb)) order by test

-- name: test_histories_failing
-- Tests that failed the last time that a job reported them, for this commit.
select {test_history} from tenure.test_history
where tenant = $1 and scope = $2 and last_failed and last_job = $3 and last_commit = $4 limit $5

-- name: test_history_count
select count(*) from tenure.test_history where tenant = $1 and scope = $2

-- name: save_test_report
insert into tenure.test_report ({test_report}) values ($1, $2, $3, $4, $5, $6, $7) returning {test_report}

-- name: save_test_history
insert into tenure.test_history ({test_history})
select * from unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::integer[],
    $8::boolean[], $9::text[], $10::text[], $11::bigint[], $12::bigint[])
on conflict (tenant, scope, test) do update set
    failed = excluded.failed, passed = excluded.passed, changes = excluded.changes, same_commit = excluded.same_commit,
    last_failed = excluded.last_failed, last_commit = excluded.last_commit, last_job = excluded.last_job,
    last_failed_at = excluded.last_failed_at, last_passed_at = excluded.last_passed_at
returning {test_history}

-- name: forget_test_histories
-- The tests that failed longest ago.
delete from tenure.test_history where tenant = $1 and scope = $2 and test in (
    select h.test from tenure.test_history as h where h.tenant = $1 and h.scope = $2 order by h.last_failed_at limit $3)
returning {test_history}

-- name: delete_test_report
-- A part of a save: deleted with its run.
delete from tenure.test_report where run_id = any (array(select id from gone))
