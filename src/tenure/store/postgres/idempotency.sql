-- Idempotency records; see tenure.store.idempotency.

-- name: key_record
select {idempotency} from tenure.idempotency where tenant = $1 and source = $2 and name = $3

-- name: key_records
select {i.idempotency} from unnest($1::text[], $2::text[], $3::text[]) n (tenant, source, name)
cross join lateral (
    select {idempotency} from tenure.idempotency t
    where t.tenant = n.tenant and t.source = n.source and t.name = n.name offset 0) i

-- name: records_amiss
-- Compares the records of API calls with the runs of their keys. (For a hook, record and run have different hashes.)
select s.run_id, i.name, (i.request_hash <> s.request_hash)::int, (i.run_id is distinct from s.run_id)::int
from tenure.idempotency i join tenure.run_spec s on s.tenant = i.tenant and s.source = i.source and s.idempotency_key = i.name
where i.source = 'api' and i.status = 'completed' and (i.request_hash <> s.request_hash or i.run_id is distinct from s.run_id)

-- name: begin_key
insert into tenure.idempotency ({idempotency}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
on conflict (tenant, source, name) do nothing
returning {idempotency}

-- name: put_key
-- Only if the record is as it was found: its status, its last change and its attempts.
update tenure.idempotency set run_id = $7, status = $8, request_hash = $9, response = $10, error = $11, created_at = $12,
    updated_at = $13, expires_at = $14, lock_expires_at = $15, attempts = $16, holder = $17
where tenant = $1 and source = $2 and name = $3 and status = $4 and updated_at = $5 and attempts = $6
returning {idempotency}

-- name: drop_key
delete from tenure.idempotency
where tenant = $1 and source = $2 and name = $3 and status = 'processing' and lock_expires_at = $4
returning {idempotency}

-- name: drop_past_keys
delete from tenure.idempotency i using unnest($1::text[], $2::text[], $3::text[]) n (tenant, source, name)
where i.tenant = n.tenant and i.source = n.source and i.name = n.name and i.expires_at <= $4
returning {i.idempotency}

-- name: delete_expired_keys
-- Locked records are left for the next time.
delete from tenure.idempotency i using (
    select tenant, source, name from tenure.idempotency where status = $1 and expires_at <= $2
    order by expires_at limit $3 for update skip locked
) n
where i.tenant = n.tenant and i.source = n.source and i.name = n.name
returning {i.idempotency}
