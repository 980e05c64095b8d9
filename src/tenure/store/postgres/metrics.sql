-- What a scrape of the metrics reads; see tenure.store.metrics.

-- name: active_run_counts
-- The tenants are read from the index one by one, so that finished runs are never read.
with recursive whose (tenant) as (
    (select tenant from tenure.run order by tenant limit 1)
    union all
    select (select r.tenant from tenure.run r where r.tenant > w.tenant order by r.tenant limit 1)
    from whose w where w.tenant is not null
)
select r.tenant, r.profile, r.status, count(*)
from (select tenant from whose where tenant is not null limit $1) w
cross join unnest(array['created', 'planning', 'queued', 'running', 'waiting_approval', 'waiting_external', 'retry_wait', 'canceling']) s (status)
join tenure.run r on r.tenant = w.tenant and r.status = s.status
group by r.tenant, r.profile, r.status

-- name: oldest_pending
select
    $1::bigint,
    (select min(ready_at) from (select ready_at from tenure.step where claimable limit 100000) ready),
    least(
        (select min(wake_at) from tenure.run where wake_at is not null),
        (select min(wake_at) from tenure.step where wake_at is not null),
        (select min(wake_at) from tenure.wait where wake_at is not null)
    ),
    (select min(created_at) from tenure.outbox),
    (select min(due_at) from tenure.notice where due_at is not null)
