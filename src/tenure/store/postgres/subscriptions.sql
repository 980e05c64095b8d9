-- Subscriptions and their notices; see tenure.store.subscriptions.

-- name: subscriptions_of
-- $1 is the tenant, $2 and $3 the last one seen (created, id), $4 the limit; newest first.
select {subscription} from tenure.subscription
where tenant = $1::text and (created_at, id) < ($2::bigint, $3::text)
order by created_at desc, id desc limit $4::bigint

-- name: subscription_named
select {subscription} from tenure.subscription where tenant = $1::text and id = $2::text

-- name: subscriptions_live
select {subscription} from tenure.subscription where not disabled

-- name: save_subscription
-- A new subscription, or the next revision of an existing one. `pos` does not change: notices are written meanwhile.
insert into tenure.subscription as s ({subscription}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
on conflict (tenant, id) do update set url = excluded.url, secret = excluded.secret, types = excluded.types,
    workflow = excluded.workflow, owner = excluded.owner, updated_at = excluded.updated_at,
    revision = excluded.revision, disabled = excluded.disabled
where s.revision = excluded.revision - 1
returning {s.subscription}

-- name: advance_subscription
-- Advances from $3 to $4, unless another process has advanced the subscription.
update tenure.subscription set pos = $4::bigint
where tenant = $1::text and id = $2::text and pos = $3::bigint and not disabled returning {subscription}

-- name: delete_subscription
delete from tenure.subscription where tenant = $1::text and id = $2::text returning {subscription}

-- name: save_notice
insert into tenure.notice ({notice})
select * from unnest($1::text[], $2::text[], $3::bigint[], $4::integer[], $5::bigint[], $6::text[], $7::bytea[],
    $8::bigint[], $9::bigint[], $10::integer[], $11::text[])
on conflict do nothing

-- name: take_notices
-- At most $3 notices that are due at $1 and wait for no earlier notice of their run. The caller has them until $2. No notice
-- waits for a dead one, and closed tenants get none. Notices that another process is taking are left out; a notice that was
-- taken just before is checked again, and is not due any more.
update tenure.notice t set due_at = $2::bigint, tries = t.tries + 1
from (
    select n.tenant, n.subscription, n.pos, n.part from tenure.notice n
    join tenure.subscription s on s.tenant = n.tenant and s.id = n.subscription and not s.disabled
    where n.due_at <= $1::bigint
        and not exists (select from tenure.tenant c where c.id = n.tenant and c.closed_at is not null) and not exists (
        select from tenure.notice e where e.tenant = n.tenant and e.subscription = n.subscription
            and e.run_id = n.run_id and (e.pos, e.part) < (n.pos, n.part) and e.due_at is not null)
    order by n.due_at limit $3::bigint for update of n skip locked) d
where t.tenant = d.tenant and t.subscription = d.subscription and t.pos = d.pos and t.part = d.part
    and t.due_at <= $1::bigint
returning {t.notice}

-- name: done_notice
-- Deletes a delivered notice; only by the process that took it for try $5.
delete from tenure.notice where tenant = $1::text and subscription = $2::text and pos = $3::bigint and part = $4::integer
    and tries = $5::integer
returning {notice}

-- name: fail_notice
-- The notice was not delivered: it is due again at $6, or dead (null). $7 is the reason.
update tenure.notice set due_at = $6::bigint, error = $7::text
where tenant = $1::text and subscription = $2::text and pos = $3::bigint and part = $4::integer and tries = $5::integer
returning {notice}

-- name: next_notice
-- When the next notice is due, if there is one.
select min(n.due_at) from tenure.notice n
where n.due_at is not null and exists (
    select from tenure.subscription s where s.tenant = n.tenant and s.id = n.subscription and not s.disabled)
    and not exists (select from tenure.tenant c where c.id = n.tenant and c.closed_at is not null)

-- name: dead_notices
-- $1 is the tenant, $2 the subscription, $3 and $4 the last one seen (position, part), $5 the limit; newest first.
select {notice} from tenure.notice
where tenant = $1::text and subscription = $2::text and (pos, part) < ($3::bigint, $4::integer) and due_at is null
order by pos desc, part desc limit $5::bigint

-- name: revive_notices
-- Dead notices are due again, from the first try; $4 is now. $3 names one notice (`pos-part`), or is null for all.
update tenure.notice set due_at = $4::bigint, tries = 0, created_at = $4::bigint
where tenant = $1::text and subscription = $2::text and due_at is null
    and ($3::text is null or pos || '-' || part = $3::text)
returning {notice}

-- name: delete_notices
delete from tenure.notice where tenant = $1::text and subscription = $2::text returning {notice}

-- name: delete_old_notices
-- Dead since before $1.
delete from tenure.notice where ctid = any (array(
    select ctid from tenure.notice where due_at is null and created_at < $1::bigint limit $2::bigint)) returning {notice}
