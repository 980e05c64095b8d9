-- Parts of evidence, and runs that need one; see tenure.store.evidence.

-- name: evidence_of
select {evidence} from tenure.evidence where run_id = $1 order by no

-- name: evidence_after
select {evidence} from tenure.evidence
where tenant = $1 and no = 0 and (at < $2 or (at = $2 and run_id < $3)) order by at desc, run_id desc limit $4

-- name: runs_unsealed
select r.id, r.tenant, r.finished_at
from tenure.run as r
where r.finished_at is not null and r.sealed_at is null
    and (r.finished_at, r.id) > ($1, $2)
    and r.event_at <= $3
    and (r.event_at <= $4 or not exists (select 1 from tenure.evidence as e where e.run_id = r.id))
order by r.finished_at, r.id limit $5

-- name: save_evidence
insert into tenure.evidence ({evidence})
values (
    $1::bigint, $2::integer, $3::text, $4::bytea, $5::bigint, $6::bytea, $7::integer, $8::text, $9::bytea, $10::bytea, $11::bigint
)
returning {evidence}
