-- What a step did to the world; see tenure.store.acting.

-- name: resume_acts
-- Of the run and of those that it resumes, the oldest first.
with recursive chain (id, depth) as (
    select $1::bigint, 0
    union all
    select s.resumed_from, chain.depth + 1 from chain join run_spec s on s.run_id = chain.id
    where s.resumed_from is not null
)
select r.label, r.no, r.try_no, r.run_id = $1::bigint, r.connector, r.operation, r.name, r.digest, r.state, r.n, r.repeats, r.intent_at,
    r.call_by, r.settled_at, r.settled_by is not null, r.eligible_at, r.error, r.wait_no, q.body, p.body
from chain join receipt r on r.run_id = chain.id
left join payload q on q.run_id = r.run_id and q.ref = r.request_ref
left join payload p on p.run_id = r.run_id and p.ref = r.result_ref
where r.idx = $2::integer order by chain.depth desc, r.no

-- name: undos_of
select run_id from run_spec where undo_of = $1::bigint order by run_id

-- name: acts_of
select r.label, r.no, r.try_no, r.run_id = $1::bigint, r.connector, r.operation, r.name, r.digest, r.state, r.n, r.repeats, r.intent_at,
    r.call_by, r.settled_at, r.settled_by is not null, r.eligible_at, r.error, r.wait_no, q.body, p.body
from receipt r
left join payload q on q.run_id = r.run_id and q.ref = r.request_ref
left join payload p on p.run_id = r.run_id and p.ref = r.result_ref
where r.run_id = $1::bigint and r.idx = $2::integer and r.label = $3::text order by r.no
