-- Publications and what their documents are made from; see tenure.store.publications.

-- name: claim_publication
-- $1 is the publication, $2 the holder, $3 now, $4 the end of the lease.
insert into tenure.publication as p ({publication}) values ($1::text, $2::text, 1, $4::bigint, -1)
on conflict (id) do update set fence = p.fence + (p.holder <> excluded.holder)::integer, holder = excluded.holder,
    until = excluded.until
where p.until <= $3::bigint or p.holder = excluded.holder
returning {p.publication}

-- name: keep_publication
-- Only under the newest fence $2. $3 is the position, $4 the end of the lease.
update tenure.publication set pos = $3::bigint, until = $4::bigint where id = $1::text and fence = $2::bigint
returning {publication}

-- name: take_deletions
-- At most $4 deletions of $1 that are due at $2; they are due again at $3.
update tenure.publication_deletion set due_at = $3::bigint, tries = tries + 1
where publication = $1::text and run_id in (
    select run_id from tenure.publication_deletion where publication = $1::text and due_at <= $2::bigint
    order by due_at limit $4::bigint for update skip locked)
returning {publication_deletion}

-- name: put_deletion
update tenure.publication_deletion set due_at = $3::bigint, rounds = $4::integer, error = $5::text
where publication = $1::text and run_id = $2::bigint
returning {publication_deletion}

-- name: drop_deletion
delete from tenure.publication_deletion where publication = $1::text and run_id = $2::bigint
returning {publication_deletion}

-- name: publication_deletions
-- All that are pending, of every publication.
select {publication_deletion} from tenure.publication_deletion order by publication, run_id

-- name: published_runs
select r.id, r.tenant, r.workflow, r.profile, r.status, r.version, r.event_at, r.started_at, r.finished_at, r.reason,
    r.planned, r.steps_total, r.steps_done, r.timeout_us, r.output_ref, r.error_ref, coalesce(s.trigger_type, 'api'),
    exists (select 1 from tenure.step as t where t.run_id = r.id and t.kind = 'body')
from tenure.run as r left join tenure.run_spec as s on s.run_id = r.id where r.id = any($1::bigint[])

-- name: published_run_ids
-- Every run of the profile $1 after the id $2, page by page.
select r.id, r.tenant, r.workflow, r.profile, r.status, r.version, r.event_at, r.started_at, r.finished_at, r.reason,
    r.planned, r.steps_total, r.steps_done, r.timeout_us, r.output_ref, r.error_ref, '', false
from tenure.run as r where r.id > $2::bigint and r.profile = $1::text order by r.id limit $3::bigint

-- name: published_events
-- When events of runs happened. $1 is the run, $2 the number.
select e.run_id, e.seq, e.at from unnest($1::bigint[], $2::integer[]) n (run_id, seq)
join tenure.event as e on e.run_id = n.run_id and e.seq = n.seq

-- name: published_steps
-- Steps that have ended since $2; a body and a planner are no steps to readers.
select t.run_id, t.idx, 0, t.name, t.state, t.finished_at, t.attempt, t.reason, t.output_ref, null::bytea, t.condition
from unnest($1::bigint[], $2::bigint[]) n (run_id, since)
join tenure.step as t on t.run_id = n.run_id and t.finished_at >= n.since and t.kind not in ('body', 'plan')

-- name: published_checkpoints
-- Checkpoints that were recorded since $2.
select t.run_id, t.idx, t.no, t.name, t.state, t.at, t.tries, t.error, t.output_ref, t.output, null::text
from unnest($1::bigint[], $2::bigint[]) n (run_id, since)
join tenure.checkpoint as t on t.run_id = n.run_id and t.at >= n.since

-- name: published_attempts
select a.run_id, a.idx, s.name, a.granted_at, a.ended_at
from unnest($1::bigint[], $2::bigint[]) n (run_id, since)
join tenure.attempt as a on a.run_id = n.run_id and (a.ended_at is null or a.ended_at >= n.since)
join tenure.step as s on s.run_id = a.run_id and s.idx = a.idx and s.kind not in ('body', 'plan')
order by a.run_id, a.idx, a.n

-- name: published_questions
select a.run_id, a.no, w.kind, w.label, a.requested_at, a.decided_at
from tenure.approval as a join tenure.wait as w on w.run_id = a.run_id and w.no = a.no
where a.run_id = any($1::bigint[]) order by a.run_id, a.no

-- name: published_open_steps
select t.run_id, t.idx, t.name from unnest($1::bigint[]) n (run_id)
cross join lateral (
    select run_id, idx, name from tenure.step as s
    where s.run_id = n.run_id and s.finished_at is null and s.kind not in ('body', 'plan') order by s.idx limit 1) t

-- name: published_keys
-- A key without its owner counts as closed.
select k.id, k.tenant, k.hash, k.roles, coalesce(c.roles, p.roles, '[]'),
    least(k.expires_at, k.replaced_until),
    k.revoked_at is null and coalesce(t.closed_at, c.closed_at, p.closed_at) is null
        and (c.id is not null or p.id is not null)
from tenure.api_key as k
left join tenure.tenant as t on t.id = k.tenant
left join tenure.client as c on k.owner_kind = 'client' and c.tenant = k.tenant and c.id = k.owner_id
left join tenure.person as p on k.owner_kind = 'person' and p.tenant = k.tenant and p.id = k.owner_id
where k.tenant = $1::text

-- name: published_tenants
select id from tenure.tenant where closed_at is null order by id

-- name: changed_tenants
-- Tenants whose people or keys have changed since $1.
select distinct tenant from tenure.admin_event where at >= $1::bigint and tenant <> ''

-- name: tenant_questions
select a.tenant, w.kind, count(*), min(a.requested_at), max(a.requested_at), sum(a.revision)::bigint
from tenure.approval as a join tenure.wait as w on w.run_id = a.run_id and w.no = a.no
where a.tenant = any($1::text[]) and a.status = 'requested' group by a.tenant, w.kind

-- name: tenant_receipts
select tenant, count(*), min(intent_at) from tenure.receipt
where tenant = any($1::text[]) and state = 'unknown' group by tenant
