-- Publications and what their documents are made from; see tenure.store.publications.

-- name: claim_publication
-- ?1 is the publication, ?2 the holder, ?3 now, ?4 the end of the lease.
insert into publication values (?1, ?2, 1, ?4, -1)
on conflict (id) do update set fence = publication.fence + (publication.holder <> excluded.holder), holder = excluded.holder,
    until = excluded.until
where publication.until <= ?3 or publication.holder = excluded.holder
returning id, holder, fence, until, pos

-- name: keep_publication
-- Only under the newest fence ?2. ?3 is the position, ?4 the end of the lease.
update publication set pos = ?3, until = ?4 where id = ?1 and fence = ?2
returning id, holder, fence, until, pos

-- name: take_deletions
-- At most ?4 deletions of ?1 that are due at ?2; they are due again at ?3.
update publication_deletion set due_at = ?3, tries = tries + 1
where publication = ?1 and run_id in (
    select run_id from publication_deletion where publication = ?1 and due_at <= ?2 order by due_at limit ?4)
returning publication, run_id, tenant, due_at, rounds, tries, error

-- name: put_deletion
update publication_deletion set due_at = ?3, rounds = ?4, error = ?5 where publication = ?1 and run_id = ?2
returning publication, run_id, tenant, due_at, rounds, tries, error

-- name: drop_deletion
delete from publication_deletion where publication = ?1 and run_id = ?2
returning publication, run_id, tenant, due_at, rounds, tries, error

-- name: publication_deletions
-- All that are pending, of every publication.
select publication, run_id, tenant, due_at, rounds, tries, error from publication_deletion order by publication, run_id

-- name: published_runs
select r.id, r.tenant, r.workflow, r.profile, r.status, r.version, r.event_at, r.started_at, r.finished_at, r.reason,
    r.planned, r.steps_total, r.steps_done, r.timeout_us, r.output_ref, r.error_ref, coalesce(s.trigger_type, 'api'),
    exists (select 1 from step as t where t.run_id = r.id and t.kind = 'body')
from run as r left join run_spec as s on s.run_id = r.id where r.id = ?1

-- name: published_run_ids
-- Every run of the profile ?1 after the id ?2, page by page.
select r.id, r.tenant, r.workflow, r.profile, r.status, r.version, r.event_at, r.started_at, r.finished_at, r.reason,
    r.planned, r.steps_total, r.steps_done, r.timeout_us, r.output_ref, r.error_ref, '', 0
from run as r where r.id > ?2 and r.profile = ?1 order by r.id limit ?3

-- name: published_events
-- When events of runs happened. ?1 is the run, ?2 the number.
select run_id, seq, at from event where run_id = ?1 and seq = ?2

-- name: published_steps
-- Steps that have ended since ?2; a body and a planner are no steps to readers.
select run_id, idx, 0, name, state, finished_at, attempt, reason, output_ref, null, condition
from step where run_id = ?1 and finished_at >= ?2 and kind not in ('body', 'plan')

-- name: published_checkpoints
-- Checkpoints that were recorded since ?2.
select run_id, idx, no, name, state, at, tries, error, output_ref, output, null
from checkpoint where run_id = ?1 and at >= ?2

-- name: published_attempts
select a.run_id, a.idx, s.name, a.granted_at, a.ended_at
from attempt as a cross join step as s on s.run_id = a.run_id and s.idx = a.idx and s.kind not in ('body', 'plan')
where a.run_id = ?1 and (a.ended_at is null or a.ended_at >= ?2) order by a.idx, a.n

-- name: published_questions
select a.run_id, a.no, w.kind, w.label, a.requested_at, a.decided_at
from approval as a cross join wait as w on w.run_id = a.run_id and w.no = a.no
where a.run_id = ?1 order by a.no

-- name: published_open_steps
select run_id, idx, name from step
where run_id = ?1 and finished_at is null and kind not in ('body', 'plan') order by idx limit 1

-- name: published_keys
-- A key without its owner counts as closed.
select k.id, k.tenant, k.hash, k.roles, coalesce(c.roles, p.roles, '[]'),
    coalesce(min(k.expires_at, k.replaced_until), k.expires_at, k.replaced_until),
    k.revoked_at is null and coalesce(t.closed_at, c.closed_at, p.closed_at) is null
        and (c.id is not null or p.id is not null)
from api_key as k
left join tenant as t on t.id = k.tenant
left join client as c on k.owner_kind = 'client' and c.tenant = k.tenant and c.id = k.owner_id
left join person as p on k.owner_kind = 'person' and p.tenant = k.tenant and p.id = k.owner_id
where k.tenant = ?1

-- name: published_tenants
select id from tenant where closed_at is null order by id

-- name: changed_tenants
-- Tenants whose people or keys have changed since ?1.
select distinct tenant from admin_event where at >= ?1 and tenant <> ''

-- name: tenant_questions
select a.tenant, w.kind, count(*), min(a.requested_at), max(a.requested_at), sum(a.revision)
from approval as a cross join wait as w on w.run_id = a.run_id and w.no = a.no
where a.tenant = ?1 and a.status = 'requested' group by w.kind

-- name: tenant_receipts
select tenant, count(*), min(intent_at) from receipt where tenant = ?1 and state = 'unknown' group by tenant
