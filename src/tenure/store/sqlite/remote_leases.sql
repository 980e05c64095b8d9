-- Remote leases; see tenure.store.remote_leases.

-- name: remote_leases_of
select * from remote_lease where claim = ?1 order by run_id, idx, n

-- name: lease_credentials
select l.run_id, l.idx, l.n, l.tenant, l.claim, l.token_hash, a.owner, s.name
from remote_lease as l
join attempt as a on a.run_id = l.run_id and a.idx = l.idx and a.n = l.n
join step as s on s.run_id = l.run_id and s.idx = l.idx
where l.run_id = ?1 and l.idx = ?2 and l.n = ?3

-- name: remote_lease_details
select l.run_id, l.idx, l.n, l.tenant, l.claim, l.token_hash, a.owner, r.workflow, r.code_version, r.profile, r.trace,
    s.name, s.kind, s.tool, s.idempotency_key, s.lease_us, s.recorded, s.attempt,
    a.state, a.lease, a.expires_at, a.timeout_at, a.ended_at, p.body, ?4
from remote_lease as l
join run as r on r.id = l.run_id
join step as s on s.run_id = l.run_id and s.idx = l.idx
join attempt as a on a.run_id = l.run_id and a.idx = l.idx and a.n = l.n
left join payload as p on p.run_id = l.run_id and p.ref = s.input_ref
where l.run_id = ?1 and l.idx = ?2 and l.n = ?3

-- name: save_remote_lease
-- A part of a save. A key cannot exist already: an attempt is granted once.
insert into remote_lease values (?1, ?2, ?3, ?4, ?5, ?6)

-- name: delete_remote_lease
-- A part of a save: deleted with its run.
delete from remote_lease where run_id = ?1
