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

-- name: vcs_report_newest
-- Of a commit: its subjects are those from $2 up to, but without, $3.
select run_id, fence, holder from tenure.vcs_report
where tenant = $1::text and subject >= $2::text and subject < $3::text order by run_id desc limit 1

-- name: next_vcs_report
select min(due_at) as at from tenure.vcs_report where due_at is not null

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

-- name: due_vcs_reports
-- At most $2 open reports that are due at $1 and whose run has changed, or that failed before; those that another process is
-- taking are left out.
select {v.vcs_report} from tenure.vcs_report as v
join tenure.run as r on r.id = v.run_id
where v.due_at <= $1::bigint and (r.version > v.seen or v.tries > 0)
    and not exists (
        select from tenure.vcs_report as o
        join tenure.run as older on older.id = o.run_id
        where o.subject = v.subject and o.run_id < v.run_id and o.due_at is not null and older.finished_at is not null)
order by v.due_at limit $2::bigint for update of v skip locked

-- name: lock_vcs_report
select {vcs_report} from tenure.vcs_report where run_id = $1::bigint for update

-- name: save_vcs_report
-- Only if its fence is $13.
update tenure.vcs_report set tenant = $2::text, subject = $3::text, state = $4::text, seen = $5::integer,
    fence = $6::bigint, due_at = $7::bigint, created_at = $8::bigint, updated_at = $9::bigint, holder = $10::text,
    tries = $11::integer, error = $12::text
where run_id = $1::bigint and fence = $13::bigint
returning {vcs_report}

-- name: keep_vcs_report
-- Only by the process that took it with fence $2.
update tenure.vcs_report set due_at = $3::bigint
where run_id = $1::bigint and fence = $2::bigint and holder <> ''
returning {vcs_report}

-- name: put_vcs_check
-- A phase never falls (I62).
insert into tenure.vcs_check ({vcs_check})
values ($1::bigint, $2::text, $3::bigint, $4::integer, $5::bytea)
on conflict (run_id, part) do update set check_id = excluded.check_id, phase = excluded.phase, digest = excluded.digest
where excluded.phase >= vcs_check.phase
returning {vcs_check}

-- name: delete_orphan_vcs_reports
delete from tenure.vcs_report where not exists (select from tenure.run as r where r.id = vcs_report.run_id)
returning run_id, fence, holder

-- name: delete_orphan_vcs_checks
delete from tenure.vcs_check where not exists (select from tenure.run as r where r.id = vcs_check.run_id)
returning run_id, 0::bigint, ''::text
