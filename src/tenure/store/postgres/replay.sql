-- What a resumed step gets; see tenure.store.replay.

-- name: resume_acts
-- The acts of the run and of the runs that it resumes, the oldest run first.
with recursive chain (id, depth) as (
    select $1::bigint, 0
    union all
    select s.resumed_from, chain.depth + 1 from chain join tenure.run_spec s on s.run_id = chain.id
    where s.resumed_from is not null
)
select r.label, r.no, r.try_no, r.run_id = $1::bigint, r.connector, r.operation, r.name, r.digest, r.state, r.n, r.repeats, r.intent_at,
    r.call_by, r.settled_at, r.settled_by is not null, r.eligible_at, r.error, r.wait_no, q.body, p.body
from chain join tenure.receipt r on r.run_id = chain.id
left join tenure.payload q on q.run_id = r.run_id and q.ref = r.request_ref
left join tenure.payload p on p.run_id = r.run_id and p.ref = r.result_ref
where r.idx = $2::integer order by chain.depth desc, r.no

-- name: undos_of
select run_id from tenure.run_spec where undo_of = $1::bigint order by run_id

-- name: acts_of
select r.label, r.no, r.try_no, r.run_id = $1::bigint, r.connector, r.operation, r.name, r.digest, r.state, r.n, r.repeats, r.intent_at,
    r.call_by, r.settled_at, r.settled_by is not null, r.eligible_at, r.error, r.wait_no, q.body, p.body
from tenure.receipt r
left join tenure.payload q on q.run_id = r.run_id and q.ref = r.request_ref
left join tenure.payload p on p.run_id = r.run_id and p.ref = r.result_ref
where r.run_id = $1::bigint and r.idx = $2::integer and r.label = $3::text order by r.no

-- name: resume_checkpoints
-- The checkpoints of a step with their outputs, for the next holder of its lease.
select c.name, c.no, c.state, c.n, c.resumable, c.idempotent, c.arguments, c.at, c.tries, c.next_at, c.error, c.meta,
    c.output_ref, coalesce(c.output, p.body)
from tenure.checkpoint c
left join lateral (
    select body from tenure.payload t
    where t.run_id = c.run_id and t.ref = case when c.salt is null then c.output_ref end offset 0) p on true
where c.run_id = $1 and c.idx = $2 order by c.no

-- name: resume_waits
-- The waits of a step in a range of numbers, with their answers: an event's payload, a person's reason, a child's outcome.
-- The name of a wait for a child is the child's id.
select w.no, w.label, w.kind, w.name, w.state, w.outcome, w.opened_at, w.expires_at, w.settled_at, p.body,
    a.revision, a.decided_by, y.body, k.child_id, k.outcome, r.reason, o.body, e.body
from tenure.wait w
left join lateral (
    select body from tenure.payload t where t.run_id = w.run_id and t.ref = w.result_ref offset 0) p on true
left join lateral (
    select revision, decided_by, reason_ref from tenure.approval t
    where t.run_id = w.run_id and t.no = w.no offset 0) a on true
left join lateral (
    select body from tenure.payload t where t.run_id = w.run_id and t.ref = a.reason_ref offset 0) y on true
left join lateral (
    select child_id, outcome from tenure.child t
    where t.run_id = w.run_id and t.child_id = case w.kind when 'child' then w.name::bigint end offset 0) k on true
left join lateral (
    select id, status, reason, output_ref, error_ref from tenure.run t
    where t.id = k.child_id and t.finished_at is not null offset 0) r on true
left join lateral (
    select body from tenure.payload t
    where t.run_id = r.id and t.ref = r.output_ref and r.status = 'succeeded' offset 0) o on true
left join lateral (
    select body from tenure.payload t where t.run_id = r.id and t.ref = r.error_ref offset 0) e on true
where w.run_id = $1 and w.idx = $2 and w.no between $3 and $4 order by w.no
