-- Artifacts that runners upload; see tenure.store.artifacts.

-- name: artifacts_of
select {a.artifact}, s.kind, s.state, t.state from tenure.artifact a
join tenure.step s on s.run_id = a.run_id and s.idx = a.idx
join tenure.attempt t on t.run_id = a.run_id and t.idx = a.idx and t.n = a.n
where a.run_id = $1 and (a.name, a.idx, a.n, a.late) > ($2, $3, $4, $5)
order by a.name, a.idx, a.n, a.late limit $6

-- name: artifacts_named
select {a.artifact}, s.kind, s.state, t.state from tenure.artifact a
join tenure.step s on s.run_id = a.run_id and s.idx = a.idx
join tenure.attempt t on t.run_id = a.run_id and t.idx = a.idx and t.n = a.n
where a.run_id = $1 and a.name = $2
order by a.idx, a.n, a.late

-- name: artifacts_of_step
select {a.artifact}, s.kind, s.state, t.state from tenure.artifact a
join tenure.step s on s.run_id = a.run_id and s.idx = a.idx
join tenure.attempt t on t.run_id = a.run_id and t.idx = a.idx and t.n = a.n
where a.run_id = $1 and a.idx = $2 and a.n = $3
order by a.name, a.late

-- name: artifact_rows_of
select {artifact} from tenure.artifact where run_id = $1 order by name, idx, n, late

-- name: artifact_count
select count(*) from tenure.artifact where run_id = $1

-- name: artifact_at
select {artifact} from tenure.artifact where run_id = $1 and name = $2 and idx = $3 and n = $4 and late = $5

-- name: artifacts_expired
-- Files whose retention has ended, oldest first.
select {artifact} from tenure.artifact where expires_at is not null and deleted_at is null and expires_at <= $1
order by expires_at limit $2

-- name: mark_artifact_deleted
-- Unless it was replaced or deleted meanwhile: $6 is the upload that was found, $7 the time.
update tenure.artifact set deleted_at = $7
where run_id = $1 and name = $2 and idx = $3 and n = $4 and late = $5 and upload = $6 and deleted_at is null
returning {artifact}

-- name: save_artifact
-- A repeated upload replaces the file of the same attempt: a file that is in time while the lease is live, a late one always.
insert into tenure.artifact ({artifact})
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
on conflict (run_id, name, idx, n, late) do update set
    worker = excluded.worker, size = excluded.size, digest = excluded.digest, content_type = excluded.content_type,
    at = excluded.at, events = excluded.events, upload = excluded.upload, expires_at = excluded.expires_at,
    deleted_at = excluded.deleted_at
returning {artifact}

-- name: delete_artifact
-- Likewise.
delete from tenure.artifact where run_id = any (array(select id from gone))
