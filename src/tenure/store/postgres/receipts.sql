-- Receipts for people; see tenure.store.receipts.

-- name: unknown_receipts
select {r.receipt}, u.workflow, s.name, w.expires_at, w.result_ref
from tenure.receipt as r
join tenure.run as u on u.id = r.run_id
join tenure.step as s on s.run_id = r.run_id and s.idx = r.idx
left join tenure.wait as w on w.run_id = r.run_id and w.no = r.wait_no and w.state = 'open'
where r.tenant = $1::text and r.state = 'unknown' and r.intent_at <= $2::bigint
    and (r.intent_at, r.run_id, r.no) < ($2::bigint, $3::bigint, $4::integer)
order by r.intent_at desc, r.run_id desc, r.no desc limit $5::bigint

-- name: receipt_details_of
select {r.receipt}, u.workflow, s.name, w.expires_at, w.result_ref
from tenure.receipt as r
join tenure.run as u on u.id = r.run_id
join tenure.step as s on s.run_id = r.run_id and s.idx = r.idx
left join tenure.wait as w on w.run_id = r.run_id and w.no = r.wait_no and w.state = 'open'
where r.run_id = $1::bigint order by r.no

-- name: unknown_receipts_count
select count(*), min(intent_at) from tenure.receipt where tenant = $1::text and state = 'unknown'
