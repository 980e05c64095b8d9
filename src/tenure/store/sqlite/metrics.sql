-- What a scrape of the metrics reads; see tenure.store.metrics.

-- name: active_run_counts
-- The tenants are read from the index one by one, so that finished runs are never read.
with recursive
whose (tenant) as (
    select min(tenant) from run
    union all
    select (select min(r.tenant) from run as r where r.tenant > w.tenant) from whose as w where w.tenant is not null
),
open (status) as (
    values ('created'), ('planning'), ('queued'), ('running'), ('waiting_approval'), ('waiting_external'), ('retry_wait'), ('canceling')
)
select r.tenant, r.profile, r.status, count(*)
from (select tenant from whose where tenant is not null limit ?1) as w
cross join open as s
cross join run as r on r.tenant = w.tenant and r.status = s.status
group by r.tenant, r.profile, r.status

-- name: oldest_pending
-- (SQLite's min() of several values is null if one of them is.)
select
    ?1,
    (select min(ready_at) from (select ready_at from step where claimable = 1 limit 100000)),
    (
        select min(at) from (
            select min(wake_at) as at from run where wake_at is not null
            union all
            select min(wake_at) from step where wake_at is not null
            union all
            select min(wake_at) from wait where wake_at is not null
        )
    ),
    (select min(created_at) from outbox),
    (select min(due_at) from notice where due_at is not null)
