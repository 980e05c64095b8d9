-- VCS reports; see tenure.store.vcs_reports.

-- name: vcs_reports_wanted
-- From the index of runs with a target. The spec of a deleted run stays if it has an idempotency key.
select s.run_id, s.tenant, r.workflow, s.vcs_target from run_spec as s
cross join run as r on r.id = s.run_id
where s.vcs_target is not null and s.run_id > ?1 and r.reported_at is null
    and not exists (select 1 from vcs_report as v where v.run_id = s.run_id)
order by s.run_id limit ?2

-- name: vcs_report_of
select run_id, tenant, subject, state, seen, fence, due_at, created_at, updated_at, holder, tries, error from vcs_report where run_id = ?1

-- name: vcs_checks_of
select run_id, part, check_id, phase, digest from vcs_check where run_id = ?1

-- name: vcs_report_newer
select run_id, fence, holder from vcs_report where subject = ?1 and run_id > ?2 order by run_id limit 1

-- name: vcs_report_newest
-- Of a commit: its subjects are those from ?2 up to, but without, ?3.
select run_id, fence, holder from vcs_report where tenant = ?1 and subject >= ?2 and subject < ?3 order by run_id desc limit 1

-- name: next_vcs_report
select min(due_at) as at from vcs_report where due_at is not null

-- name: vcs_reports_taken
select run_id, fence, holder from vcs_report where due_at > ?1 and holder <> ''

-- name: vcs_reports_in
-- Of one state, or of all if the state is empty.
select v.run_id, v.tenant, r.workflow, s.vcs_target, v.state, v.due_at, v.tries, v.error, v.updated_at
from vcs_report as v
join run as r on r.id = v.run_id
join run_spec as s on s.run_id = v.run_id
where v.tenant = ?1 and (?2 = '' or v.state = ?2) and v.run_id < ?3
order by v.run_id desc limit ?4

-- name: new_vcs_report
insert into vcs_report (run_id, tenant, subject, state, seen, fence, due_at, created_at, updated_at, holder, tries, error)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
on conflict (run_id) do nothing
returning run_id, tenant, subject, state, seen, fence, due_at, created_at, updated_at, holder, tries, error

-- name: due_vcs_reports
-- At most ?2 open reports that are due at ?1 and whose run has changed, or that failed before
-- (the transaction has the only write lock).
select v.* from vcs_report as v
join run as r on r.id = v.run_id
where v.due_at <= ?1 and (r.version > v.seen or v.tries > 0)
    and not exists (
        select 1 from vcs_report as o
        join run as older on older.id = o.run_id
        where o.subject = v.subject and o.run_id < v.run_id and o.due_at is not null and older.finished_at is not null)
order by v.due_at limit ?2

-- name: lock_vcs_report
select run_id, tenant, subject, state, seen, fence, due_at, created_at, updated_at, holder, tries, error from vcs_report where run_id = ?1

-- name: save_vcs_report
-- Only if its fence is ?13.
update vcs_report set tenant = ?2, subject = ?3, state = ?4, seen = ?5,
    fence = ?6, due_at = ?7, created_at = ?8, updated_at = ?9, holder = ?10,
    tries = ?11, error = ?12
where run_id = ?1 and fence = ?13
returning run_id, tenant, subject, state, seen, fence, due_at, created_at, updated_at, holder, tries, error

-- name: keep_vcs_report
-- Only by the process that took it with fence ?2.
update vcs_report set due_at = ?3
where run_id = ?1 and fence = ?2 and holder <> ''
returning run_id, tenant, subject, state, seen, fence, due_at, created_at, updated_at, holder, tries, error

-- name: put_vcs_check
-- A phase never falls (I62).
insert into vcs_check (run_id, part, check_id, phase, digest)
values (?1, ?2, ?3, ?4, ?5)
on conflict (run_id, part) do update set check_id = excluded.check_id, phase = excluded.phase, digest = excluded.digest
where excluded.phase >= vcs_check.phase
returning run_id, part, check_id, phase, digest

-- name: delete_orphan_vcs_reports
delete from vcs_report where not exists (select 1 from run as r where r.id = vcs_report.run_id)
returning run_id, fence, holder

-- name: delete_orphan_vcs_checks
delete from vcs_check where not exists (select 1 from run as r where r.id = vcs_check.run_id)
returning run_id, 0, ''
