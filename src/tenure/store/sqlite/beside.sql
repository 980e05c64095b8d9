-- What lies beside the runs: the queries of schedules, workers, workflows and log lines. The PostgreSQL store has
-- the same names with the same meaning; arguments are as in queries.sql.
--
-- Each of the writes is a transaction of its own (tenure.store.beside). The last argument of those that need it is
-- the store's time.

-- name: save_schedule
-- A new schedule has revision 1; a changed one has the next after the revision that was read. No answer: there
-- is one of that name already, or somebody else has changed or deleted it meanwhile.
insert into schedule
select
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?22, ?22, ?17, ?18, ?19, ?20, ?21
where ?17 = 1 or exists (select 1 from schedule where tenant = ?1 and name = ?2)
on conflict (tenant, name) do update set
    workspace = excluded.workspace, workflow = excluded.workflow, code_version = excluded.code_version,
    profile = excluded.profile, queue = excluded.queue, plan = excluded.plan, input = excluded.input,
    cron = excluded.cron, zone = excluded.zone, catch_up = excluded.catch_up,
    catch_up_max = excluded.catch_up_max, pass_slot = excluded.pass_slot, owner = excluded.owner,
    labels = excluded.labels, updated_at = max(updated_at, excluded.updated_at), revision = excluded.revision,
    paused = excluded.paused, next_at = excluded.next_at, unconfirmed = excluded.unconfirmed
where schedule.revision = excluded.revision - 1
returning *

-- name: advance_schedule
-- On to the next slot, once, by whoever comes first: only from the slot (?4) and the revision (?3) that was read.
update schedule set next_at = ?5, last_slot = coalesce(?6, last_slot)
where tenant = ?1 and name = ?2 and revision = ?3 and next_at = ?4
returning *

-- name: delete_schedule
-- Its runs stay.
delete from schedule where tenant = ?1 and name = ?2 returning *

-- name: schedules_due
-- Slots that have come, earliest first; not those of a tenant that is closed.
select * from schedule where next_at <= ?1
    and not exists (select 1 from tenant t where t.id = schedule.tenant and t.closed_at is not null)
order by next_at limit ?2

-- name: schedules_of
-- A tenant's schedules by name, page by page.
select * from schedule where tenant = ?1 and name > ?2 order by name limit ?3

-- name: schedule_named
-- One schedule.
select * from schedule where tenant = ?1 and name = ?2

-- name: save_worker
-- A worker is there. One that has been silent for ?5 microseconds has started anew.
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
-- Workers that nobody has heard of since before ?1.
delete from worker where seen_at < ?1 returning *

-- name: save_worker_process
-- Which process a session is. Nobody takes over the session of another tenant.
insert into worker_process values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
)
on conflict (session) do update set
    boot_id = excluded.boot_id, namespaces = excluded.namespaces, pid = excluded.pid,
    start_ticks = excluded.start_ticks, seen_at = max(worker_process.seen_at, excluded.seen_at)
where worker_process.tenant = excluded.tenant
returning *

-- name: delete_worker_process
-- A process has ended in peace, or nothing is left to be proven about it.
delete from worker_process where session = ?1 returning *

-- name: delete_silent_worker_processes
-- Processes that nobody has heard of since before ?1.
delete from worker_process where seen_at < ?1 returning *

-- name: worker_processes_at
-- The processes of a boot and a pid namespace.
select * from worker_process where boot_id = ?1 and namespaces = ?2 order by session

-- name: leases_of_session
-- The live leases of a session, of one tenant or ('') of all, by the index of live leases: nearly never asked for.
select run_id, idx, n from attempt indexed by attempt_live
where lease in ('granted', 'active') and session = ?1 and (?2 = '' or tenant = ?2)
order by run_id, idx

-- name: workers_seen_since
-- Workers that have said something since a moment.
select * from worker where seen_at >= ?1 order by name

-- name: worker_named
-- One of them.
select * from worker where name = ?1

-- name: save_workflow
-- A version never changes, but for what is known of one that is code.
insert into workflow values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?9, ?7, ?8
)
on conflict (tenant, name, version) do update set
    definition = excluded.definition, digest = excluded.digest, registered_at = excluded.registered_at,
    registered_by = excluded.registered_by, unconfirmed = trim(workflow.unconfirmed || ' ' || excluded.unconfirmed)
where workflow.kind = 'code' and excluded.kind = 'code' and workflow.digest <> excluded.digest
returning *

-- name: workflows_of
-- A tenant's workflows, page by page: by name and version.
select * from workflow where tenant = ?1 and name > ?2 order by name, version limit ?3

-- name: workflows_page
-- A tenant's workflows and those for everybody that it has none of its own of, behind a name and a version.
select * from workflow as w
where w.tenant in (?1, ?2) and (w.name, w.version) > (?3, ?4) and (w.tenant = ?1 or not exists (
    select 1 from workflow as o where o.tenant = ?1 and o.name = w.name and o.version = w.version
))
order by w.name, w.version limit ?5

-- name: workflow_named
-- All versions of one workflow, newest first.
select * from workflow where tenant = ?1 and name = ?2 order by registered_at desc, version desc

-- name: save_log_line
-- A line gets the next number of its run; lines of a run that is not there (any more) are dropped.
insert into log_line
select
    ?1, coalesce((select max(no) from log_line where run_id = ?1), 0) + 1, iif(?2 > 0, ?2, ?7), ?3, ?4, ?5, ?6
where exists (select 1 from run where id = ?1)
returning *

-- name: delete_old_log_lines
-- The oldest lines of a run that has too many: those up to number ?2.
delete from log_line where run_id = ?1 and no <= ?2

-- name: delete_log_line
-- Beneath a deleted run.
delete from log_line where run_id = ?1

-- name: log_lines_of
-- A run's lines from a number on.
select * from log_line where run_id = ?1 and no > ?2 order by no limit ?3
