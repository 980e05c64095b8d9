-- Policies, what is in force for a tenant, and verdicts; see tenure.store.policies.

-- name: governance_of
select {governance} from tenure.governance where tenant = $1

-- name: policy_at
select {policy} from tenure.policy where tenant = $1 and version = $2

-- name: policies_before
select version, digest, author, created_at from tenure.policy
where tenant = $1 and version < $2 order by version desc limit $3

-- name: policy_of_digest
select {policy} from tenure.policy where tenant = $1 and digest = $2 order by version limit 1

-- name: verdicts_since
select {verdict} from tenure.verdict
where tenant = $1 and at >= $2
    and (at, run_id, no) > ($3, $4, $5)
order by at, run_id, no limit $6

-- name: anybody
-- Open or closed: see law 4 of tenure.store.policies.
select {person} from tenure.person where tenant = $1 limit 1

-- name: save_policy
insert into tenure.policy ({policy})
values ($1::text, $2::integer, $3::text, $4::bytea, $5::text, $6::bigint)
returning {policy}

-- name: lock_governance
-- Waits for INTENTs under way: they hold a shared lock of this row until they commit.
select {governance} from tenure.governance where tenant = $1 for update

-- name: save_governance
insert into tenure.governance ({governance})
values ($1::text, $2::integer, $3::integer, $4::text, $5::text, $6::text, $7::integer, $8::bigint)
on conflict (tenant) do update set
    version = excluded.version, proposed = excluded.proposed, proposed_by = excluded.proposed_by, frozen = excluded.frozen,
    thaw = excluded.thaw, revision = excluded.revision, updated_at = excluded.updated_at
where governance.revision = excluded.revision - 1
returning {governance}
