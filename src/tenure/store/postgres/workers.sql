-- Workers and their processes; see tenure.store.workers.

-- name: save_worker
-- A worker is alive. A worker that was silent for $5 microseconds has started again.
insert into tenure.worker as w ({worker})
values ($1::text, $2::text, $3::integer, $4::text, $6::bigint, $6::bigint)
on conflict (name) do update set
    queues = excluded.queues, slots = excluded.slots, version = excluded.version,
    started_at = case when w.seen_at < $6::bigint - $5::bigint then $6::bigint else w.started_at end,
    seen_at = greatest(w.seen_at, $6::bigint)
returning {w.worker}

-- name: delete_worker
delete from tenure.worker where name = $1 returning {worker}

-- name: delete_silent_workers
delete from tenure.worker where seen_at < $1 returning {worker}

-- name: save_worker_process
-- The process of a session. A session cannot move to another tenant.
insert into tenure.worker_process as w ({worker_process})
values ($1::bigint, $2::text, $3::text, $4::text, $5::text, $6::integer, $7::bigint, $8::bigint)
on conflict (session) do update set
    boot_id = excluded.boot_id, namespaces = excluded.namespaces, pid = excluded.pid,
    start_ticks = excluded.start_ticks, seen_at = greatest(w.seen_at, excluded.seen_at)
where w.tenant = excluded.tenant
returning {w.worker_process}

-- name: delete_worker_process
delete from tenure.worker_process where session = $1 returning {worker_process}

-- name: delete_silent_worker_processes
delete from tenure.worker_process where seen_at < $1 returning {worker_process}

-- name: worker_processes_at
select {worker_process} from tenure.worker_process where boot_id = $1 and namespaces = $2 order by session

-- name: leases_of_session
-- By the index of live leases. This is rarely needed.
select run_id, idx, n from tenure.attempt
where lease in ('granted', 'active') and session = $1::bigint and ($2::text = '' or tenant = $2::text)
order by run_id, idx

-- name: workers_seen_since
select {worker} from tenure.worker where seen_at >= $1 order by name

-- name: worker_named
-- One worker.
select {worker} from tenure.worker where name = $1
