-- Policies, what is in force for a tenant, and verdicts; see tenure.store.policies.

-- name: governance_of
select * from governance where tenant = ?1

-- name: policy_at
select * from policy where tenant = ?1 and version = ?2

-- name: policies_before
select version, digest, author, created_at from policy
where tenant = ?1 and version < ?2 order by version desc limit ?3

-- name: policy_of_digest
select * from policy where tenant = ?1 and digest = ?2 order by version limit 1

-- name: verdicts_since
select * from verdict
where tenant = ?1 and at >= ?2
    and (at > ?3 or (at = ?3 and (run_id > ?4 or (run_id = ?4 and no > ?5))))
order by at, run_id, no limit ?6

-- name: anybody
-- Open or closed: see law 4 of tenure.store.policies.
select * from person where tenant = ?1 limit 1

-- name: save_policy
insert into policy values (?1, ?2, ?3, ?4, ?5, ?6) returning *

-- name: lock_governance
-- SQLite has one writer, so no lock is needed.
select * from governance where tenant = ?1

-- name: save_governance
insert into governance values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
on conflict (tenant) do update set
    version = excluded.version, proposed = excluded.proposed, proposed_by = excluded.proposed_by, frozen = excluded.frozen,
    thaw = excluded.thaw, revision = excluded.revision, updated_at = excluded.updated_at
where governance.revision = excluded.revision - 1
returning *
