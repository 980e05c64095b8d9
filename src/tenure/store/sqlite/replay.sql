-- What a resumed step gets; see tenure.store.replay.

-- name: resume_acts
-- The acts of the run and of the runs that it resumes, the oldest run first.
with recursive chain (id, depth) as (
    select ?1, 0
    union all
    select s.resumed_from, chain.depth + 1 from chain join run_spec as s on s.run_id = chain.id
    where s.resumed_from is not null
)
select r.label, r.no, r.try_no, r.run_id = ?1, r.connector, r.operation, r.name, r.digest, r.state, r.n, r.repeats, r.intent_at,
    r.call_by, r.settled_at, r.settled_by is not null, r.eligible_at, r.error, r.wait_no, q.body, p.body
from chain join receipt as r on r.run_id = chain.id
left join payload as q on q.run_id = r.run_id and q.ref = r.request_ref
left join payload as p on p.run_id = r.run_id and p.ref = r.result_ref
where r.idx = ?2 order by chain.depth desc, r.no

-- name: undos_of
select run_id from run_spec where undo_of = ?1 order by run_id

-- name: acts_of
select r.label, r.no, r.try_no, r.run_id = ?1, r.connector, r.operation, r.name, r.digest, r.state, r.n, r.repeats, r.intent_at,
    r.call_by, r.settled_at, r.settled_by is not null, r.eligible_at, r.error, r.wait_no, q.body, p.body
from receipt as r
left join payload as q on q.run_id = r.run_id and q.ref = r.request_ref
left join payload as p on p.run_id = r.run_id and p.ref = r.result_ref
where r.run_id = ?1 and r.idx = ?2 and r.label = ?3 order by r.no

-- name: resume_checkpoints
-- The checkpoints of a step with their outputs, for the next holder of its lease.
select
    c.name, c.no, c.state, c.n, c.resumable, c.idempotent, c.arguments, c.at, c.tries, c.next_at, c.error, c.meta,
    c.output_ref, ifnull(c.output, p.body)
from checkpoint as c left join payload as p on p.run_id = c.run_id and p.ref = c.output_ref and c.salt is null
where c.run_id = ?1 and c.idx = ?2 order by c.no

-- name: resume_waits
-- The waits of a step in a range of numbers, with their answers: an event's payload, a person's reason, a child's outcome.
-- The name of a wait for a child is the child's id.
select
    w.no, w.label, w.kind, w.name, w.state, w.outcome, w.opened_at, w.expires_at, w.settled_at, p.body,
    a.revision, a.decided_by, y.body, k.child_id, k.outcome, r.reason, o.body, e.body
from wait as w
left join payload as p on p.run_id = w.run_id and p.ref = w.result_ref
left join approval as a on a.run_id = w.run_id and a.no = w.no
left join payload as y on y.run_id = w.run_id and y.ref = a.reason_ref
left join child as k on w.kind = 'child' and k.run_id = w.run_id and k.child_id = cast(w.name as integer)
left join run as r on r.id = k.child_id and r.finished_at is not null
left join payload as o on o.run_id = r.id and o.ref = r.output_ref and r.status = 'succeeded'
left join payload as e on e.run_id = r.id and e.ref = r.error_ref
where w.run_id = ?1 and w.idx = ?2 and w.no between ?3 and ?4 order by w.no
