-- What lies beside the runs: the queries of schedules, workers, workflows and log lines. SQLite has the same names;
-- arguments and words in braces are as in queries.sql.
--
-- Each of the writes is a transaction of its own (tenure.store.beside). The last argument of those that need it is
-- the store's time. `delete_log_line` is a part of a save, like its neighbours in queries.sql.

-- name: save_schedule
-- A new schedule has revision 1; a changed one has the next after the revision that was read. No answer: there
-- is one of that name already, or somebody else has changed or deleted it meanwhile.
insert into schedule as s ({schedule})
select $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::bytea, $10::text, $11::text,
    $12::text, $13::integer, $14::boolean, $15::text, $16::text, $22::bigint, $22::bigint, $17::integer,
    $18::boolean, $19::bigint, $20::bigint, $21::text
where $17::integer = 1 or exists (select from schedule t where t.tenant = $1 and t.name = $2)
on conflict (tenant, name) do update set
    workspace = excluded.workspace, workflow = excluded.workflow, code_version = excluded.code_version,
    profile = excluded.profile, queue = excluded.queue, plan = excluded.plan, input = excluded.input,
    cron = excluded.cron, zone = excluded.zone, catch_up = excluded.catch_up,
    catch_up_max = excluded.catch_up_max, pass_slot = excluded.pass_slot, owner = excluded.owner,
    labels = excluded.labels, updated_at = greatest(s.updated_at, excluded.updated_at), revision = excluded.revision,
    paused = excluded.paused, next_at = excluded.next_at, unconfirmed = excluded.unconfirmed
where s.revision = excluded.revision - 1
returning {s.schedule}

-- name: advance_schedule
-- On to the next slot, once, by whoever comes first: only from the slot ($4) and the revision ($3) that was read.
update schedule set next_at = $5::bigint, last_slot = coalesce($6::bigint, last_slot)
where tenant = $1 and name = $2 and revision = $3 and next_at = $4
returning {schedule}

-- name: delete_schedule
-- Its runs stay.
delete from schedule where tenant = $1 and name = $2 returning {schedule}

-- name: schedules_due
-- Not those of a tenant that is closed.
select {schedule} from schedule where next_at <= $1
    and not exists (select from tenant t where t.id = schedule.tenant and t.closed_at is not null)
order by next_at limit $2

-- name: schedules_of
select {schedule} from schedule where tenant = $1 and name > $2 order by name limit $3

-- name: schedule_named
select {schedule} from schedule where tenant = $1 and name = $2

-- name: save_worker
-- A worker is there. One that has been silent for $5 microseconds has started anew.
insert into worker as w ({worker})
values ($1::text, $2::text, $3::integer, $4::text, $6::bigint, $6::bigint)
on conflict (name) do update set
    queues = excluded.queues, slots = excluded.slots, version = excluded.version,
    started_at = case when w.seen_at < $6::bigint - $5::bigint then $6::bigint else w.started_at end,
    seen_at = greatest(w.seen_at, $6::bigint)
returning {w.worker}

-- name: delete_worker
delete from worker where name = $1 returning {worker}

-- name: delete_silent_workers
delete from worker where seen_at < $1 returning {worker}

-- name: save_worker_process
-- Which process a session is. Nobody takes over the session of another tenant.
insert into worker_process as w ({worker_process})
values ($1::bigint, $2::text, $3::text, $4::text, $5::text, $6::integer, $7::bigint, $8::bigint)
on conflict (session) do update set
    boot_id = excluded.boot_id, namespaces = excluded.namespaces, pid = excluded.pid,
    start_ticks = excluded.start_ticks, seen_at = greatest(w.seen_at, excluded.seen_at)
where w.tenant = excluded.tenant
returning {w.worker_process}

-- name: delete_worker_process
delete from worker_process where session = $1 returning {worker_process}

-- name: delete_silent_worker_processes
delete from worker_process where seen_at < $1 returning {worker_process}

-- name: worker_processes_at
select {worker_process} from worker_process where boot_id = $1 and namespaces = $2 order by session

-- name: leases_of_session
-- By the index of live leases: nearly never asked for.
select run_id, idx, n from attempt
where lease in ('granted', 'active') and session = $1::bigint and ($2::text = '' or tenant = $2::text)
order by run_id, idx

-- name: workers_seen_since
select {worker} from worker where seen_at >= $1 order by name

-- name: worker_named
-- One of them.
select {worker} from worker where name = $1

-- name: save_workflow
-- A version never changes, but for what is known of one that is code.
insert into workflow as w ({workflow})
values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $9::bigint, $7::text, $8::text)
on conflict (tenant, name, version) do update set
    definition = excluded.definition, digest = excluded.digest, registered_at = excluded.registered_at,
    registered_by = excluded.registered_by, unconfirmed = trim(w.unconfirmed || ' ' || excluded.unconfirmed)
where w.kind = 'code' and excluded.kind = 'code' and w.digest <> excluded.digest
returning {w.workflow}

-- name: workflows_of
select {workflow} from workflow where tenant = $1 and name > $2 order by name, version limit $3

-- name: workflows_page
select {w.workflow} from workflow w
where w.tenant in ($1, $2) and (w.name, w.version) > ($3, $4) and (w.tenant = $1 or not exists (
    select from workflow o where o.tenant = $1 and o.name = w.name and o.version = w.version))
order by w.name, w.version limit $5

-- name: workflow_named
select {workflow} from workflow where tenant = $1 and name = $2 order by registered_at desc, version desc

-- name: save_log_line
-- Lines get the next numbers of their run; lines of a run that is not there (any more) are dropped. Two writers of
-- one run may want the same number: the second is refused by the key and asks again, so that whoever reads on
-- from a number misses no line. SQLite: one line at a time, its writer is alone.
insert into log_line ({log_line})
select n.run_id, l.no + row_number() over (partition by n.run_id order by n.place),
    case when n.at > 0 then n.at else $7::bigint end, n.step, n.level, n.text, n.fields
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[])
    with ordinality n (run_id, at, step, level, text, fields, place)
cross join lateral (select coalesce(max(t.no), 0) as no from log_line t where t.run_id = n.run_id offset 0) l
where exists (select from run r where r.id = n.run_id)
order by n.run_id, n.place
returning {log_line}

-- name: delete_old_log_lines
-- The oldest lines of runs that have too many: those up to a number each.
delete from log_line l using unnest($1::bigint[], $2::integer[]) n (run_id, no)
where l.run_id = any (array[n.run_id]) and l.no <= n.no

-- name: delete_log_line
delete from log_line where run_id = any (array(select id from gone))

-- name: log_lines_of
select {log_line} from log_line where run_id = $1 and no > $2 order by no limit $3
