-- Schedules; see tenure.store.schedules.

-- name: save_schedule
-- A new schedule has revision 1; a changed schedule has the revision after the one that was read. No answer: the name exists
-- already, or another process has changed or deleted the schedule meanwhile.
insert into tenure.schedule as s ({schedule})
select $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::bytea, $10::text, $11::text,
    $12::text, $13::integer, $14::boolean, $15::text, $16::text, $22::bigint, $22::bigint, $17::integer,
    $18::boolean, $19::bigint, $20::bigint, $21::text
where $17::integer = 1 or exists (select from tenure.schedule t where t.tenant = $1 and t.name = $2)
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
-- Advances to the next slot once: only from the slot ($4) and the revision ($3) that were read.
update tenure.schedule set next_at = $5::bigint, last_slot = coalesce($6::bigint, last_slot)
where tenant = $1 and name = $2 and revision = $3 and next_at = $4
returning {schedule}

-- name: delete_schedule
-- Its runs are kept.
delete from tenure.schedule where tenant = $1 and name = $2 returning {schedule}

-- name: schedules_due
-- Without those of closed tenants.
select {schedule} from tenure.schedule where next_at <= $1
    and not exists (select from tenure.tenant t where t.id = schedule.tenant and t.closed_at is not null)
order by next_at limit $2

-- name: schedules_of
select {schedule} from tenure.schedule where tenant = $1 and name > $2 order by name limit $3

-- name: schedule_named
select {schedule} from tenure.schedule where tenant = $1 and name = $2
