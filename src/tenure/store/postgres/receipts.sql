-- Receipts for people; see tenure.store.receipts.

-- name: unknown_receipts
select r.run_id, r.no, r.tenant, u.workflow, s.name, r.label, r.try_no, r.connector, r.operation, r.tier, r.name, r.digest, r.repeats,
    r.reversible, r.approval_no, r.n, r.intent_at, r.request_ref, r.reverses_run, r.reverses_no, r.state, r.settled_at, r.settled_by,
    r.result_ref, r.error, r.eligible_at, r.reversed_run, r.reversed_no, r.source_run, r.source_no, w.expires_at, w.result_ref
from tenure.receipt as r
join tenure.run as u on u.id = r.run_id
join tenure.step as s on s.run_id = r.run_id and s.idx = r.idx
left join tenure.wait as w on w.run_id = r.run_id and w.no = r.wait_no and w.state = 'open'
where r.tenant = $1::text and r.state = 'unknown' and r.intent_at <= $2::bigint
    and (r.intent_at, r.run_id, r.no) < ($2::bigint, $3::bigint, $4::integer)
order by r.intent_at desc, r.run_id desc, r.no desc limit $5::bigint

-- name: receipt_details_of
select r.run_id, r.no, r.tenant, u.workflow, s.name, r.label, r.try_no, r.connector, r.operation, r.tier, r.name, r.digest, r.repeats,
    r.reversible, r.approval_no, r.n, r.intent_at, r.request_ref, r.reverses_run, r.reverses_no, r.state, r.settled_at, r.settled_by,
    r.result_ref, r.error, r.eligible_at, r.reversed_run, r.reversed_no, r.source_run, r.source_no, w.expires_at, w.result_ref
from tenure.receipt as r
join tenure.run as u on u.id = r.run_id
join tenure.step as s on s.run_id = r.run_id and s.idx = r.idx
left join tenure.wait as w on w.run_id = r.run_id and w.no = r.wait_no and w.state = 'open'
where r.run_id = $1::bigint order by r.no

-- name: unknown_receipts_count
select count(*), min(intent_at) from tenure.receipt where tenant = $1::text and state = 'unknown'
