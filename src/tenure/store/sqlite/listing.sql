-- Pages of lists, and quick looks; see tenure.store.listing.

-- Each index ends with the row id, which is the run's: rows of one moment come in its order. The bound on the moment
-- alone is what the index is searched by.

-- name: runs_page
select * from run
where tenant = ?1 and created_at <= ?2 and (created_at < ?2 or id < ?3)
order by created_at desc, id desc limit ?4

-- name: runs_page_by_status
select * from run
where tenant = ?1 and status = ?2 and created_at <= ?3 and (created_at < ?3 or id < ?4)
order by created_at desc, id desc limit ?5

-- name: runs_page_by_repo
select * from run
where tenant = ?1 and repo = ?2 and created_at <= ?3 and (created_at < ?3 or id < ?4)
order by created_at desc, id desc limit ?5

-- name: glances
select
    id, tenant, workflow, profile, created_at, status, version, event_at, started_at, finished_at, reason, paused, parked,
    cancel_at, reported_at, steps_total, steps_done, waits_open, output_ref, error_ref, steps_skipped
from run where id = ?1

-- name: questions_page
select a.*, w.kind, w.label, w.name, r.workflow
from approval as a
cross join wait as w on w.run_id = a.run_id and w.no = a.no
cross join run as r on r.id = a.run_id
where
    a.tenant = ?1 and a.status = 'requested' and (?2 = 'any' or w.kind = ?2) and a.requested_at <= ?3
    and (a.requested_at, a.run_id, a.no) < (?3, ?4, ?5)
order by a.requested_at desc, a.run_id desc, a.no desc limit ?6

-- name: questions_of
select a.*, w.kind, w.label, w.name, r.workflow
from approval as a
cross join wait as w on w.run_id = a.run_id and w.no = a.no
cross join run as r on r.id = a.run_id
where a.run_id = ?1 order by a.no

-- name: question_at
select a.*, w.kind, w.label, w.name, r.workflow
from approval as a
cross join wait as w on w.run_id = a.run_id and w.no = a.no
cross join run as r on r.id = a.run_id
where a.run_id = ?1 and a.no = ?2

-- name: questions_counted
select w.kind, count(*), min(a.requested_at)
from approval as a
cross join wait as w on w.run_id = a.run_id and w.no = a.no
where a.tenant = ?1 and a.status = 'requested'
group by w.kind order by w.kind
