-- Subscriptions and their notices; see tenure.store.subscriptions.

-- name: subscriptions_of
-- ?1 is the tenant, ?2 and ?3 the last one seen (created, id), ?4 the limit; newest first.
select tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled
from subscription where tenant = ?1 and (created_at, id) < (?2, ?3) order by created_at desc, id desc limit ?4

-- name: subscription_named
select tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled
from subscription where tenant = ?1 and id = ?2

-- name: subscriptions_live
select tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled
from subscription where disabled = 0

-- name: save_subscription
-- A new subscription, or the next revision of an existing one. `pos` does not change: notices are written meanwhile.
insert into subscription values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
on conflict (tenant, id) do update set url = excluded.url, secret = excluded.secret, types = excluded.types,
    workflow = excluded.workflow, owner = excluded.owner, updated_at = excluded.updated_at,
    revision = excluded.revision, disabled = excluded.disabled
where subscription.revision = excluded.revision - 1
returning tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled

-- name: advance_subscription
-- Advances from ?3 to ?4, unless another process has advanced the subscription.
update subscription set pos = ?4 where tenant = ?1 and id = ?2 and pos = ?3 and disabled = 0
returning tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled

-- name: delete_subscription
delete from subscription where tenant = ?1 and id = ?2
returning tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled

-- name: save_notice
insert into notice values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) on conflict do nothing

-- name: take_notices
-- At most ?3 notices that are due at ?1 and wait for no earlier notice of their run. The caller has them until ?2. No notice
-- waits for a dead one, and closed tenants get none.
update notice set due_at = ?2, tries = tries + 1
where (tenant, subscription, pos, part) in (
    select n.tenant, n.subscription, n.pos, n.part from notice n
    join subscription s on s.tenant = n.tenant and s.id = n.subscription and s.disabled = 0
    where n.due_at <= ?1
        and not exists (select 1 from tenant t where t.id = n.tenant and t.closed_at is not null) and not exists (
        select 1 from notice e where e.tenant = n.tenant and e.subscription = n.subscription
            and e.run_id = n.run_id and (e.pos, e.part) < (n.pos, n.part) and e.due_at is not null)
    order by n.due_at limit ?3)
returning tenant, subscription, pos, part, run_id, type, body, created_at, due_at, tries, error

-- name: done_notice
-- Deletes a delivered notice; only by the process that took it for try ?5.
delete from notice where tenant = ?1 and subscription = ?2 and pos = ?3 and part = ?4 and tries = ?5
returning tenant, subscription, pos, part, run_id, type, x'', created_at, due_at, tries, error

-- name: fail_notice
-- The notice was not delivered: it is due again at ?6, or dead (null). ?7 is the reason.
update notice set due_at = ?6, error = ?7
where tenant = ?1 and subscription = ?2 and pos = ?3 and part = ?4 and tries = ?5
returning tenant, subscription, pos, part, run_id, type, x'', created_at, due_at, tries, error

-- name: next_notice
-- When the next notice is due, if there is one.
select min(n.due_at) from notice n
where n.due_at is not null and exists (
    select 1 from subscription s where s.tenant = n.tenant and s.id = n.subscription and s.disabled = 0)
    and not exists (select 1 from tenant t where t.id = n.tenant and t.closed_at is not null)

-- name: dead_notices
-- ?1 is the tenant, ?2 the subscription, ?3 and ?4 the last one seen (position, part), ?5 the limit; newest first.
select tenant, subscription, pos, part, run_id, type, body, created_at, due_at, tries, error from notice
where tenant = ?1 and subscription = ?2 and (pos, part) < (?3, ?4) and due_at is null
order by pos desc, part desc limit ?5

-- name: revive_notices
-- Dead notices are due again, from the first try; ?4 is now. ?3 names one notice (`pos-part`), or is null for all.
update notice set due_at = ?4, tries = 0, created_at = ?4
where tenant = ?1 and subscription = ?2 and due_at is null and (?3 is null or pos || '-' || part = ?3)
returning tenant, subscription, pos, part, run_id, type, x'', created_at, due_at, tries, error

-- name: delete_notices
delete from notice where tenant = ?1 and subscription = ?2
returning tenant, subscription, pos, part, run_id, type, x'', created_at, due_at, tries, error

-- name: delete_old_notices
-- Dead since before ?1.
delete from notice where rowid in (select rowid from notice where due_at is null and created_at < ?1 limit ?2)
returning tenant, subscription, pos, part, run_id, type, x'', created_at, due_at, tries, error
