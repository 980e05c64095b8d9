-- Idempotency records; see tenure.store.idempotency.

-- name: key_record
select * from idempotency where tenant = ?1 and source = ?2 and name = ?3

-- name: key_records
select * from idempotency where tenant = ?1 and source = ?2 and name = ?3

-- name: records_amiss
-- Compares the records of API calls with the runs of their keys. (For a hook, record and run have different hashes.)
select s.run_id, i.name, i.request_hash <> s.request_hash, i.run_id is not s.run_id
from idempotency as i join run_spec as s on s.tenant = i.tenant and s.source = i.source and s.idempotency_key = i.name
where i.source = 'api' and i.status = 'completed' and (i.request_hash <> s.request_hash or i.run_id is not s.run_id)

-- name: begin_key
insert into idempotency values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
on conflict (tenant, source, name) do nothing
returning *

-- name: put_key
-- Only if the record is as it was found: its status, its last change and its attempts.
update idempotency set run_id = ?7, status = ?8, request_hash = ?9, response = ?10, error = ?11, created_at = ?12,
    updated_at = ?13, expires_at = ?14, lock_expires_at = ?15, attempts = ?16, holder = ?17
where tenant = ?1 and source = ?2 and name = ?3 and status = ?4 and updated_at = ?5 and attempts = ?6
returning *

-- name: drop_key
delete from idempotency
where tenant = ?1 and source = ?2 and name = ?3 and status = 'processing' and lock_expires_at = ?4
returning *

-- name: drop_past_keys
delete from idempotency where tenant = ?1 and source = ?2 and name = ?3 and expires_at <= ?4
returning *

-- name: delete_expired_keys
delete from idempotency where (tenant, source, name) in (
    select tenant, source, name from idempotency where status = ?1 and expires_at <= ?2
    order by expires_at limit ?3
)
returning *
