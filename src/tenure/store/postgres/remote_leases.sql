-- Remote leases; see tenure.store.remote_leases.

-- name: remote_leases_of
select {remote_lease} from tenure.remote_lease where claim = $1 order by run_id, idx, n

-- name: lease_credentials
select l.run_id, l.idx, l.n, l.tenant, l.claim, l.token_hash, a.owner, s.name
from unnest($1::bigint[], $2::integer[], $3::integer[]) k (run_id, idx, n)
join tenure.remote_lease l on l.run_id = k.run_id and l.idx = k.idx and l.n = k.n
join tenure.attempt a on a.run_id = k.run_id and a.idx = k.idx and a.n = k.n
join tenure.step s on s.run_id = k.run_id and s.idx = k.idx

-- name: remote_lease_details
select l.run_id, l.idx, l.n, l.tenant, l.claim, l.token_hash, a.owner, r.workflow, r.code_version, r.profile, r.trace,
    s.name, s.kind, s.tool, s.idempotency_key, s.lease_us, s.recorded, s.attempt,
    a.state, a.lease, a.expires_at, a.timeout_at, a.ended_at, p.body, $4::bigint
from unnest($1::bigint[], $2::integer[], $3::integer[]) k (run_id, idx, n)
join tenure.remote_lease l on l.run_id = k.run_id and l.idx = k.idx and l.n = k.n
join tenure.run r on r.id = k.run_id
join tenure.step s on s.run_id = k.run_id and s.idx = k.idx
join tenure.attempt a on a.run_id = k.run_id and a.idx = k.idx and a.n = k.n
left join tenure.payload p on p.run_id = k.run_id and p.ref = s.input_ref

-- name: save_remote_lease
-- A part of a save. A key cannot exist already: an attempt is granted once.
insert into tenure.remote_lease ({remote_lease})
select {n.remote_lease} from unnest(?::tenure.remote_lease_in[]) n where (n.run_id in (select id from ok)) is true

-- name: delete_remote_lease
-- A part of a save: deleted with its run.
delete from tenure.remote_lease where run_id = any (array(select id from gone))
