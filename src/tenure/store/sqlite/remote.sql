-- Remote leases and artifacts; see tenure.store.remote.

-- name: remote_leases_of
select * from remote_lease where claim = ?1 order by run_id, idx, n

-- name: remote_tickets
select l.run_id, l.idx, l.n, l.tenant, l.token_hash, a.owner, s.name, l.claim
from remote_lease as l
join attempt as a on a.run_id = l.run_id and a.idx = l.idx and a.n = l.n
join step as s on s.run_id = l.run_id and s.idx = l.idx
where l.run_id = ?1 and l.idx = ?2 and l.n = ?3

-- name: remote_held
select l.run_id, l.idx, l.n, l.tenant, l.token_hash, a.owner, r.workflow, r.code_version, r.profile, r.trace,
    s.name, s.kind, s.tool, s.idempotency_key, s.lease_us, s.recorded, s.attempt,
    a.state, a.lease, a.expires_at, a.timeout_at, a.ended_at, p.body, ?4
from remote_lease as l
join run as r on r.id = l.run_id
join step as s on s.run_id = l.run_id and s.idx = l.idx
join attempt as a on a.run_id = l.run_id and a.idx = l.idx and a.n = l.n
left join payload as p on p.run_id = l.run_id and p.ref = s.input_ref
where l.run_id = ?1 and l.idx = ?2 and l.n = ?3

-- name: save_remote_lease
-- A part of a save. Two leases of one key cannot be: an attempt is granted once.
insert into remote_lease values (?1, ?2, ?3, ?4, ?5, ?6)

-- name: delete_remote_lease
-- A part of a save: goes with its run.
delete from remote_lease where run_id = ?1

-- name: artifacts_of
select a.*, s.kind, s.state, t.state from artifact as a
join step as s on s.run_id = a.run_id and s.idx = a.idx
join attempt as t on t.run_id = a.run_id and t.idx = a.idx and t.n = a.n
where a.run_id = ?1 and (a.name, a.idx, a.n, a.late) > (?2, ?3, ?4, ?5)
order by a.name, a.idx, a.n, a.late limit ?6

-- name: artifacts_named
select a.*, s.kind, s.state, t.state from artifact as a
join step as s on s.run_id = a.run_id and s.idx = a.idx
join attempt as t on t.run_id = a.run_id and t.idx = a.idx and t.n = a.n
where a.run_id = ?1 and a.name = ?2
order by a.idx, a.n, a.late

-- name: artifact_rows_of
select * from artifact where run_id = ?1 order by name, idx, n, late

-- name: artifact_count
select count(*) from artifact where run_id = ?1

-- name: save_artifact
-- The same file of the same attempt again replaces what it has: of those in time while its lease is live, of late ones the last.
insert into artifact values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
on conflict (run_id, name, idx, n, late) do update set
    worker = excluded.worker, size = excluded.size, digest = excluded.digest, content_type = excluded.content_type,
    at = excluded.at, events = excluded.events
returning *

-- name: delete_artifact
-- Likewise.
delete from artifact where run_id = ?1
