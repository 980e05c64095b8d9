-- Approvals and proposals for people; see tenure.store.approvals.

-- name: approvals_page
select {a.approval}, w.kind, w.label, w.name, r.workflow
from tenure.approval as a
join tenure.wait as w on w.run_id = a.run_id and w.no = a.no
join tenure.run as r on r.id = a.run_id
where
    a.tenant = $1 and a.status = 'requested' and ($2::text = 'any' or w.kind::text = $2::text) and a.requested_at <= $3
    and (a.requested_at, a.run_id, a.no) < ($3, $4, $5)
order by a.requested_at desc, a.run_id desc, a.no desc limit $6

-- name: approval_details_of
select {a.approval}, w.kind, w.label, w.name, r.workflow
from tenure.approval as a
join tenure.wait as w on w.run_id = a.run_id and w.no = a.no
join tenure.run as r on r.id = a.run_id
where a.run_id = $1 order by a.no

-- name: approval_detail
select {a.approval}, w.kind, w.label, w.name, r.workflow
from tenure.approval as a
join tenure.wait as w on w.run_id = a.run_id and w.no = a.no
join tenure.run as r on r.id = a.run_id
where a.run_id = $1 and a.no = $2

-- name: open_approval_counts
select w.kind, count(*), min(a.requested_at)
from tenure.approval as a
join tenure.wait as w on w.run_id = a.run_id and w.no = a.no
where a.tenant = $1 and a.status = 'requested'
group by w.kind order by w.kind
