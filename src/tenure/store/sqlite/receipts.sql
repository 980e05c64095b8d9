-- Receipts for people; see tenure.store.receipts.

-- name: unknown_receipts
select r.*, u.workflow, s.name, w.expires_at, w.result_ref
from receipt as r
cross join run as u on u.id = r.run_id
cross join step as s on s.run_id = r.run_id and s.idx = r.idx
left join wait as w on w.run_id = r.run_id and w.no = r.wait_no and w.state = 'open'
where r.tenant = ?1 and r.state = 'unknown' and r.intent_at <= ?2
    and (r.intent_at, r.run_id, r.no) < (?2, ?3, ?4)
order by r.intent_at desc, r.run_id desc, r.no desc limit ?5

-- name: receipt_details_of
select r.*, u.workflow, s.name, w.expires_at, w.result_ref
from receipt as r
cross join run as u on u.id = r.run_id
cross join step as s on s.run_id = r.run_id and s.idx = r.idx
left join wait as w on w.run_id = r.run_id and w.no = r.wait_no and w.state = 'open'
where r.run_id = ?1 order by r.no

-- name: unknown_receipts_count
select count(*), min(intent_at) from receipt where tenant = ?1 and state = 'unknown'
