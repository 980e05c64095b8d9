-- VCS reports; see tenure.store.vcs_reports.

-- name: vcs_reports_wanted
-- From the index of runs with a target. The spec of a deleted run stays if it has an idempotency key.
select s.run_id, s.tenant, r.workflow, s.vcs_target from tenure.run_spec as s
join tenure.run as r on r.id = s.run_id
where s.vcs_target is not null and s.run_id > $1::bigint and r.reported_at is null
    and not exists (select from tenure.vcs_report as v where v.run_id = s.run_id)
order by s.run_id limit $2::bigint

-- name: vcs_report_of
select {vcs_report} from tenure.vcs_report where run_id = $1::bigint

-- name: vcs_checks_of
select {vcs_check} from tenure.vcs_check where run_id = $1::bigint

-- name: vcs_report_newer
select run_id, fence, holder from tenure.vcs_report where subject = $1::text and run_id > $2::bigint order by run_id limit 1

-- name: vcs_reports_taken
select run_id, fence, holder from tenure.vcs_report where due_at > $1::bigint and holder <> ''

-- name: vcs_reports_in
-- Of one state, or of all if the state is empty.
select v.run_id, v.tenant, r.workflow, s.vcs_target, v.state, v.due_at, v.tries, v.error, v.updated_at
from tenure.vcs_report as v
join tenure.run as r on r.id = v.run_id
join tenure.run_spec as s on s.run_id = v.run_id
where v.tenant = $1::text and ($2::text = '' or v.state = $2::text) and v.run_id < $3::bigint
order by v.run_id desc limit $4::bigint

-- name: new_vcs_report
insert into tenure.vcs_report ({vcs_report})
values ($1::bigint, $2::text, $3::text, $4::text, $5::integer, $6::bigint, $7::bigint, $8::bigint, $9::bigint, $10::text, $11::integer, $12::text)
on conflict (run_id) do nothing
returning {vcs_report}

-- name: take_vcs_reports
-- At most $4 open reports that are due at $1 and whose run has changed. The caller has them until $2. Reports that another
-- process is taking are left out.
update tenure.vcs_report t set due_at = $2::bigint, fence = t.fence + 1, holder = $3::text
from (
    select v.run_id from tenure.vcs_report as v
    join tenure.run as r on r.id = v.run_id
    where v.due_at <= $1::bigint and (r.version > v.seen or v.tries > 0)
        and not exists (
            select from tenure.vcs_report as o
            join tenure.run as older on older.id = o.run_id
            where o.subject = v.subject and o.run_id < v.run_id and o.due_at is not null and older.finished_at is not null)
    order by v.due_at limit $4::bigint for update of v skip locked) d
where t.run_id = d.run_id and t.due_at <= $1::bigint
returning {t.vcs_report}

-- name: keep_vcs_report
-- Only by the process that took it with fence $2.
update tenure.vcs_report set due_at = $3::bigint
where run_id = $1::bigint and fence = $2::bigint and holder <> ''
returning {vcs_report}

-- name: put_vcs_report
-- Only by the process that took it with fence $2.
update tenure.vcs_report set state = $3::text, seen = $4::integer, due_at = $5::bigint, updated_at = $6::bigint,
    tries = $7::integer, error = $8::text, holder = ''
where run_id = $1::bigint and fence = $2::bigint and holder <> ''
returning {vcs_report}

-- name: put_vcs_check
-- A phase never falls (I62).
insert into tenure.vcs_check ({vcs_check})
values ($1::bigint, $2::text, $3::bigint, $4::integer, $5::bytea)
on conflict (run_id, part) do update set check_id = excluded.check_id, phase = excluded.phase, digest = excluded.digest
where excluded.phase >= vcs_check.phase
returning {vcs_check}

-- name: free_vcs_report
update tenure.vcs_report set due_at = $3::bigint, holder = ''
where run_id = $1::bigint and fence = $2::bigint and holder <> ''
returning {vcs_report}

-- name: retry_vcs_report
-- Of a report that no process has. Everything is compared with the VCS again.
update tenure.vcs_report set state = 'open', seen = 0, due_at = $3::bigint, updated_at = $3::bigint, tries = 0, error = null
where tenant = $1::text and run_id = $2::bigint and state <> 'reported' and holder = ''
returning {vcs_report}

-- name: delete_orphan_vcs_reports
delete from tenure.vcs_report where not exists (select from tenure.run as r where r.id = vcs_report.run_id)
returning run_id, fence, holder

-- name: delete_orphan_vcs_checks
delete from tenure.vcs_check where not exists (select from tenure.run as r where r.id = vcs_check.run_id)
returning run_id, 0::bigint, ''::text
