-- Lists of runs; see tenure.store.run_lists.
--
-- The index ends with the time, so rows with the same time are sorted by their id (incremental sort). The index is searched by
-- the bound on the time alone.

-- name: runs_page
select {run} from tenure.run
where tenant = $1 and created_at <= $2 and (created_at < $2 or id < $3)
order by created_at desc, id desc limit $4

-- name: runs_page_by_status
select {run} from tenure.run
where tenant = $1 and status = $2 and created_at <= $3 and (created_at < $3 or id < $4)
order by created_at desc, id desc limit $5

-- name: runs_page_by_repo
select {run} from tenure.run
where tenant = $1 and repo = $2 and created_at <= $3 and (created_at < $3 or id < $4)
order by created_at desc, id desc limit $5

-- name: run_glances
select
    id, tenant, workflow, profile, created_at, status, version, event_at, started_at, finished_at, reason, paused, parked,
    cancel_at, reported_at, steps_total, steps_done, waits_open, output_ref, error_ref, steps_skipped
from tenure.run where id = any($1::bigint[])
