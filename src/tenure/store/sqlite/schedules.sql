-- Schedules; see tenure.store.schedules.

-- name: save_schedule
-- A new schedule has revision 1; a changed schedule has the revision after the one that was read. No answer: the name exists
-- already, or another process has changed or deleted the schedule meanwhile.
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
-- Advances to the next slot once: only from the slot (?4) and the revision (?3) that were read.
update schedule set next_at = ?5, last_slot = coalesce(?6, last_slot)
where tenant = ?1 and name = ?2 and revision = ?3 and next_at = ?4
returning *

-- name: delete_schedule
-- Its runs are kept.
delete from schedule where tenant = ?1 and name = ?2 returning *

-- name: schedules_due
-- Schedules whose slot has come, earliest first, without those of closed tenants.
select * from schedule where next_at <= ?1
    and not exists (select 1 from tenant t where t.id = schedule.tenant and t.closed_at is not null)
order by next_at limit ?2

-- name: schedules_of
-- A tenant's schedules by name, page by page.
select * from schedule where tenant = ?1 and name > ?2 order by name limit ?3

-- name: schedule_named
-- One schedule.
select * from schedule where tenant = ?1 and name = ?2
