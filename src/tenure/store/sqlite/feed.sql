-- The feed; see tenure.store.feed.

-- name: save_feed
-- A part of a save. There is one writer, so positions are created and seen in order. ?1 is the time, ?2 the lines.
-- Writes nothing if the feed was never opened.
insert into feed (at, body) select ?1, ?2 where exists (select 1 from feed)

-- name: feed_key
-- The key that encrypts the cursors of tenants.
select key from feed_key

-- name: make_feed_key
-- The first key that is written is kept. ?1 is the key.
insert into feed_key (id, key) values (1, ?1) on conflict do nothing returning key

-- name: hold_saves
-- Nothing to do: the transaction is alone. PostgreSQL: a lock on the table of runs.
select 0, 0, x'' where false

-- name: open_feed
-- An empty row: every later save writes to the feed. ?1 is the time.
insert into feed (at, body) select ?1, x'' where not exists (select 1 from feed) returning pos, at, body

-- name: feed_bounds
-- The last trimmed position (0: none; the last trimmed row is kept, empty), and the last position that can be read.
select coalesce((select case when length(body) = 0 then pos else 0 end from feed order by pos limit 1), 0),
    coalesce((select max(pos) from feed), 0)

-- name: feed_after
-- ?1 is the position, ?2 the limit.
select pos, at, body from feed where pos > ?1 order by pos limit ?2

-- name: feed_rows_after
-- The same: in SQLite every row may be read.
select pos, at, body from feed where pos > ?1 order by pos limit ?2

-- name: feed_old
-- The last position among the first ?2 rows that is older than the time ?1; or null.
select max(pos) from (select pos, at from feed order by pos limit ?2) where at < ?1

-- name: feed_excess
-- The position before the ?1 newest rows. Positions have no gaps in SQLite.
select max(pos) - ?1 from feed

-- name: drop_foreign_feed
-- Only PostgreSQL's positions depend on the server. In SQLite they belong to the file.
delete from feed where false returning pos, at, x''

-- name: empty_feed
-- The last trimmed row is kept, empty: it marks how far the feed was trimmed.
update feed set body = x'' where pos = ?1 and length(body) > 0 returning pos, at, body

-- name: trim_feed
delete from feed where pos < ?1 and pos in (select pos from feed order by pos limit ?2) returning pos, at, x''
