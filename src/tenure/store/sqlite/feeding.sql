-- The feed, subscriptions and notices; see tenure.store.feeding.

-- name: save_feed
-- A part of a save. There is one writer, so positions are made, and seen, in their order. ?1 the time, ?2 what is told.
-- Nothing where the feed was never opened.
insert into feed (at, body) select ?1, ?2 where exists (select 1 from feed)

-- name: feed_key
-- The key under which tenants see places in the feed.
select key from feed_key

-- name: make_feed_key
-- The first one that is made is it. ?1 the key.
insert into feed_key (id, key) values (1, ?1) on conflict do nothing returning key

-- name: hold_saves
-- Nothing to do: the transaction is alone. PostgreSQL: a lock on the table of runs.
select 0, 0, x'' where false

-- name: open_feed
-- An empty row: everything after it is told. ?1 the time.
insert into feed (at, body) select ?1, x'' where not exists (select 1 from feed) returning pos, at, body

-- name: feed_bounds
-- Up to where it was trimmed (0: nowhere; the last of what was trimmed stays, empty), and up to where it can be read.
select coalesce((select case when length(body) = 0 then pos else 0 end from feed order by pos limit 1), 0),
    coalesce((select max(pos) from feed), 0)

-- name: feed_after
-- ?1 the position, ?2 how many.
select pos, at, body from feed where pos > ?1 order by pos limit ?2

-- name: feed_rows_after
-- The same: here everything that is there may be read.
select pos, at, body from feed where pos > ?1 order by pos limit ?2

-- name: feed_old
-- Up to where it can be trimmed, as far as the first ?2 rows say: ?1 is the moment before which rows are old. Or null.
select max(pos) from (select pos, at from feed order by pos limit ?2) where at < ?1

-- name: feed_excess
-- Where the ?1 newest rows begin. Positions are dense here.
select max(pos) - ?1 from feed

-- name: drop_foreign_feed
-- Only PostgreSQL's positions depend on the server. Here they go with the file.
delete from feed where false returning pos, at, x''

-- name: empty_feed
-- The last row that is trimmed stays, empty: it says up to where.
update feed set body = x'' where pos = ?1 and length(body) > 0 returning pos, at, body

-- name: trim_feed
delete from feed where pos < ?1 and pos in (select pos from feed order by pos limit ?2) returning pos, at, x''

-- ---------------------------------------------------------------------------------------- subscriptions

-- name: subscriptions_of
-- ?1 the tenant, ?2 and ?3 the last one seen (created, id), ?4 how many; newest first.
select tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled
from subscription where tenant = ?1 and (created_at, id) < (?2, ?3) order by created_at desc, id desc limit ?4

-- name: subscription_named
select tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled
from subscription where tenant = ?1 and id = ?2

-- name: subscriptions_live
select tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled
from subscription where disabled = 0

-- name: save_subscription
-- A new one, or the next revision of the one that is there. `pos` is not touched: notices are being made meanwhile.
insert into subscription values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
on conflict (tenant, id) do update set url = excluded.url, secret = excluded.secret, types = excluded.types,
    workflow = excluded.workflow, owner = excluded.owner, updated_at = excluded.updated_at,
    revision = excluded.revision, disabled = excluded.disabled
where subscription.revision = excluded.revision - 1
returning tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled

-- name: advance_subscription
-- Notices were made up to ?4, by whoever still found it at ?3.
update subscription set pos = ?4 where tenant = ?1 and id = ?2 and pos = ?3 and disabled = 0
returning tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled

-- name: delete_subscription
delete from subscription where tenant = ?1 and id = ?2
returning tenant, id, url, secret, types, workflow, owner, pos, created_at, updated_at, revision, disabled

-- ---------------------------------------------------------------------------------------------- notices

-- name: save_notice
insert into notice values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) on conflict do nothing

-- name: take_notices
-- Those whose moment (?1) has come and that no earlier notice of their run holds back, ?3 at most; they are ours until ?2.
-- A notice that is dead holds nothing back; nothing is told for a tenant that is closed.
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
-- It was told, by whoever took it the ?5th time.
delete from notice where tenant = ?1 and subscription = ?2 and pos = ?3 and part = ?4 and tries = ?5
returning tenant, subscription, pos, part, run_id, type, x'', created_at, due_at, tries, error

-- name: fail_notice
-- It could not be told: again at ?6, or dead (null). ?7 why.
update notice set due_at = ?6, error = ?7
where tenant = ?1 and subscription = ?2 and pos = ?3 and part = ?4 and tries = ?5
returning tenant, subscription, pos, part, run_id, type, x'', created_at, due_at, tries, error

-- name: next_notice
-- When the next one is due, if there is one.
select min(n.due_at) from notice n
where n.due_at is not null and exists (
    select 1 from subscription s where s.tenant = n.tenant and s.id = n.subscription and s.disabled = 0)
    and not exists (select 1 from tenant t where t.id = n.tenant and t.closed_at is not null)

-- name: dead_notices
-- ?1 the tenant, ?2 the subscription, ?3 and ?4 the last one seen (position, part), ?5 how many; newest first.
select tenant, subscription, pos, part, run_id, type, body, created_at, due_at, tries, error from notice
where tenant = ?1 and subscription = ?2 and (pos, part) < (?3, ?4) and due_at is null
order by pos desc, part desc limit ?5

-- name: revive_notices
-- Dead ones are due again, from the beginning; ?4 is now. ?3 names one (`pos-part`), or null: all of them.
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
