-- The feed; see tenure.store.feed.

-- name: save_feed
-- A part of a save: one row for all its runs. Its position is the transaction's id: see feed_after. (A row with this id
-- can only be another server's, from before the database was carried over; see drop_foreign_feed.) Nothing where the feed
-- was never opened.
insert into tenure.feed (pos, at, body)
select pg_current_xact_id()::text::bigint, {now}, string_agg(n.body, ''::bytea)
from unnest(?::tenure.feed_in[]) n where (n.run_id in (select id from ok)) is true and exists (select from tenure.feed)
having count(*) > 0
on conflict (pos) do update set at = excluded.at, body = excluded.body

-- name: feed_key
-- The key under which tenants see places in the feed.
select key from tenure.feed_key

-- name: make_feed_key
-- The first one that is made is it. $1 the key.
insert into tenure.feed_key (id, key) values (1, $1::bytea) on conflict do nothing returning key

-- name: hold_saves
-- Until the commit nobody saves. Every save changes or makes a run, and a statement takes its locks before its snapshot, so
-- one that had to wait for this sees what is committed here: either it is over before, or it tells.
lock table tenure.run in share row exclusive mode

-- name: open_feed
-- An empty row: everything after it is told. $1 the time.
insert into tenure.feed (pos, at, body)
select pg_current_xact_id()::text::bigint, $1::bigint, ''::bytea where not exists (select from tenure.feed)
returning pos, at, body

-- name: feed_bounds
-- Up to where it was trimmed (0: nowhere; the last of what was trimmed stays, empty), and up to where it can be read:
-- everything that may still commit has a higher position.
select coalesce((select case when length(body) = 0 then pos else 0 end from tenure.feed order by pos limit 1), 0),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1

-- name: feed_after
-- $1 the position, $2 how many. A transaction that is under way has an id of at least the snapshot's xmin, and so has
-- every later one: below it nothing can appear any more, so nobody passes a position while a lower one may commit.
select pos, at, body from tenure.feed
where pos > $1::bigint and pos < pg_snapshot_xmin(pg_current_snapshot())::text::bigint order by pos limit $2::bigint

-- name: feed_rows_after
-- Likewise, also what others are not shown yet: for the doctor.
select pos, at, body from tenure.feed where pos > $1::bigint order by pos limit $2::bigint

-- name: feed_old
-- Up to where it can be trimmed, as far as the first $2 rows say: $1 is the moment before which rows are old. Or null.
select max(pos) from (select pos, at from tenure.feed order by pos limit $2::bigint) f where at < $1::bigint

-- name: feed_excess
-- Where the $1 newest rows begin. Positions have gaps, so they are counted, in the index.
select max(pos) from (select pos from tenure.feed order by pos desc offset $1::bigint limit 1) f

-- name: drop_foreign_feed
-- Rows whose position no transaction here has had yet: the database was carried over from another server (by a dump, or
-- logically), where ids were higher. They would come back as news once the ids here get there.
delete from tenure.feed where pos >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint returning pos, at, ''::bytea

-- name: empty_feed
-- The last row that is trimmed stays, empty: it says up to where.
update tenure.feed set body = ''::bytea where pos = $1::bigint and length(body) > 0 returning pos, at, body

-- name: trim_feed
delete from tenure.feed where pos < $1::bigint and pos = any (array(
    select pos from tenure.feed order by pos limit $2::bigint for update skip locked)) returning pos, at, ''::bytea
