-- The feed; see tenure.store.feed.

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
