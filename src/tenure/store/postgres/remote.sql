-- Remote leases and artifacts; see tenure.store.remote.

-- name: remote_leases_of
select {remote_lease} from remote_lease where claim = $1 order by run_id, idx, n

-- name: remote_tickets
select l.run_id, l.idx, l.n, l.tenant, l.token_hash, a.owner, s.name, l.claim
from unnest($1::bigint[], $2::integer[], $3::integer[]) k (run_id, idx, n)
join remote_lease l on l.run_id = k.run_id and l.idx = k.idx and l.n = k.n
join attempt a on a.run_id = k.run_id and a.idx = k.idx and a.n = k.n
join step s on s.run_id = k.run_id and s.idx = k.idx

-- name: remote_held
select l.run_id, l.idx, l.n, l.tenant, l.token_hash, a.owner, r.workflow, r.code_version, r.profile, r.trace,
    s.name, s.kind, s.tool, s.idempotency_key, s.lease_us, s.recorded, s.attempt,
    a.state, a.lease, a.expires_at, a.timeout_at, a.ended_at, p.body, $4::bigint
from unnest($1::bigint[], $2::integer[], $3::integer[]) k (run_id, idx, n)
join remote_lease l on l.run_id = k.run_id and l.idx = k.idx and l.n = k.n
join run r on r.id = k.run_id
join step s on s.run_id = k.run_id and s.idx = k.idx
join attempt a on a.run_id = k.run_id and a.idx = k.idx and a.n = k.n
left join payload p on p.run_id = k.run_id and p.ref = s.input_ref

-- name: save_remote_lease
-- A part of a save. Two leases of one key cannot be: an attempt is granted once.
insert into remote_lease ({remote_lease})
select {n.remote_lease} from unnest({rows}::remote_lease_in[]) n where (n.run_id in (select id from ok)) is true

-- name: delete_remote_lease
-- A part of a save: goes with its run.
delete from remote_lease where run_id = any (array(select id from gone))

-- name: artifacts_of
select {a.artifact}, s.kind, s.state, t.state from artifact a
join step s on s.run_id = a.run_id and s.idx = a.idx
join attempt t on t.run_id = a.run_id and t.idx = a.idx and t.n = a.n
where a.run_id = $1 and (a.name, a.idx, a.n, a.late) > ($2, $3, $4, $5)
order by a.name, a.idx, a.n, a.late limit $6

-- name: artifacts_named
select {a.artifact}, s.kind, s.state, t.state from artifact a
join step s on s.run_id = a.run_id and s.idx = a.idx
join attempt t on t.run_id = a.run_id and t.idx = a.idx and t.n = a.n
where a.run_id = $1 and a.name = $2
order by a.idx, a.n, a.late

-- name: artifact_rows_of
select {artifact} from artifact where run_id = $1 order by name, idx, n, late

-- name: artifact_count
select count(*) from artifact where run_id = $1

-- name: save_artifact
-- The same file of the same attempt again replaces what it has: of those in time while its lease is live, of late ones the last.
insert into artifact ({artifact})
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
on conflict (run_id, name, idx, n, late) do update set
    worker = excluded.worker, size = excluded.size, digest = excluded.digest, content_type = excluded.content_type,
    at = excluded.at, events = excluded.events
returning {artifact}

-- name: delete_artifact
-- Likewise.
delete from artifact where run_id = any (array(select id from gone))
