-- Workers and their processes; see tenure.store.workers.

-- name: save_worker
-- A worker is alive. A worker that was silent for ?5 microseconds has started again.
insert into worker values (
    ?1, ?2, ?3, ?4, ?6, ?6
)
on conflict (name) do update set
    queues = excluded.queues, slots = excluded.slots, version = excluded.version,
    started_at = iif(seen_at < ?6 - ?5, ?6, started_at), seen_at = max(seen_at, ?6)
returning *

-- name: delete_worker
-- A worker has stopped.
delete from worker where name = ?1 returning *

-- name: delete_silent_workers
-- Workers that were last seen before ?1.
delete from worker where seen_at < ?1 returning *

-- name: save_worker_process
-- The process of a session. A session cannot move to another tenant.
insert into worker_process values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
)
on conflict (session) do update set
    boot_id = excluded.boot_id, namespaces = excluded.namespaces, pid = excluded.pid,
    start_ticks = excluded.start_ticks, seen_at = max(worker_process.seen_at, excluded.seen_at)
where worker_process.tenant = excluded.tenant
returning *

-- name: delete_worker_process
-- A process has stopped by itself, or has no lease left.
delete from worker_process where session = ?1 returning *

-- name: delete_silent_worker_processes
-- Processes that were last seen before ?1.
delete from worker_process where seen_at < ?1 returning *

-- name: worker_processes_at
-- The processes of a boot and a pid namespace.
select * from worker_process where boot_id = ?1 and namespaces = ?2 order by session

-- name: leases_of_session
-- The live leases of a session, of one tenant or ('') of all, by the index of live leases. This is rarely needed.
select run_id, idx, n from attempt indexed by attempt_live
where lease in ('granted', 'active') and session = ?1 and (?2 = '' or tenant = ?2)
order by run_id, idx

-- name: workers_seen_since
-- Workers that were seen since a time.
select * from worker where seen_at >= ?1 order by name

-- name: worker_named
-- One worker.
select * from worker where name = ?1
