-- The feed; see tenure.store.feed.

-- name: save_feed
-- A part of a save: one row for all its runs. Its position is the transaction's id: see feed_after. (A row with this id
-- can only be another server's, from before the database was moved; see drop_foreign_feed.) Writes nothing if the feed
-- was never opened.
insert into tenure.feed (pos, at, body)
select pg_current_xact_id()::text::bigint, {now}, string_agg(n.body, ''::bytea)
from unnest(?::tenure.feed_in[]) n where (n.run_id in (select id from ok)) is true and exists (select from tenure.feed)
having count(*) > 0
on conflict (pos) do update set at = excluded.at, body = excluded.body

-- name: feed_key
-- The key that encrypts the cursors of tenants.
select key from tenure.feed_key

-- name: make_feed_key
-- The first key that is written is kept. $1 is the key.
insert into tenure.feed_key (id, key) values (1, $1::bytea) on conflict do nothing returning key

-- name: hold_saves
-- Blocks saves until the commit. Every save changes or creates a run, and a statement takes its locks before its snapshot, so a
-- save that had to wait sees this commit: each save either ends before it, or writes to the feed.
lock table tenure.run in share row exclusive mode

-- name: open_feed
-- An empty row: every later save writes to the feed. $1 is the time.
insert into tenure.feed (pos, at, body)
select pg_current_xact_id()::text::bigint, $1::bigint, ''::bytea where not exists (select from tenure.feed)
returning pos, at, body

-- name: feed_bounds
-- The last trimmed position (0: none; the last trimmed row is kept, empty), and the last position that can be read: every
-- transaction that may still commit has a higher one.
select coalesce((select case when length(body) = 0 then pos else 0 end from tenure.feed order by pos limit 1), 0),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1

-- name: feed_after
-- $1 is the position, $2 the limit. A transaction that is under way has an id of at least the snapshot's xmin, and so has
-- every later one. No row can appear below it, so a reader never passes a position while a lower one may commit.
select pos, at, body from tenure.feed
where pos > $1::bigint and pos < pg_snapshot_xmin(pg_current_snapshot())::text::bigint order by pos limit $2::bigint

-- name: feed_rows_after
-- The same, with the rows that readers do not see yet: for the doctor.
select pos, at, body from tenure.feed where pos > $1::bigint order by pos limit $2::bigint

-- name: feed_old
-- The last position among the first $2 rows that is older than the time $1; or null.
select max(pos) from (select pos, at from tenure.feed order by pos limit $2::bigint) f where at < $1::bigint

-- name: feed_excess
-- The position before the $1 newest rows. Positions have gaps, so the rows are counted, in the index.
select max(pos) from (select pos from tenure.feed order by pos desc offset $1::bigint limit 1) f

-- name: drop_foreign_feed
-- Rows whose position is above every transaction id of this server: the database was moved from another server (by a dump, or
-- logically), where ids were higher. They would be read as new when the ids of this server reach them.
delete from tenure.feed where pos >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint returning pos, at, ''::bytea

-- name: empty_feed
-- The last trimmed row is kept, empty: it marks how far the feed was trimmed.
update tenure.feed set body = ''::bytea where pos = $1::bigint and length(body) > 0 returning pos, at, body

-- name: trim_feed
delete from tenure.feed where pos < $1::bigint and pos = any (array(
    select pos from tenure.feed order by pos limit $2::bigint for update skip locked)) returning pos, at, ''::bytea
