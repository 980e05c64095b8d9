-- Log lines of runs; see tenure.store.log_lines.

-- name: save_log_line
-- Lines get the next numbers of their run. Lines of a run that does not exist are dropped. If two writers choose the same
-- number, the key refuses the second, which tries again: so a reader that continues from a number misses no line. SQLite has
-- one writer, and writes one line at a time.
insert into tenure.log_line ({log_line})
select n.run_id, l.no + row_number() over (partition by n.run_id order by n.place),
    case when n.at > 0 then n.at else $7::bigint end, n.step, n.level, n.text, n.fields
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[])
    with ordinality n (run_id, at, step, level, text, fields, place)
cross join lateral (select coalesce(max(t.no), 0) as no from tenure.log_line t where t.run_id = n.run_id offset 0) l
where exists (select from tenure.run r where r.id = n.run_id)
order by n.run_id, n.place
returning {log_line}

-- name: delete_old_log_lines
-- The oldest lines of runs that have too many: those up to a number each.
delete from tenure.log_line l using unnest($1::bigint[], $2::integer[]) n (run_id, no)
where l.run_id = any (array[n.run_id]) and l.no <= n.no

-- name: delete_log_line
delete from tenure.log_line where run_id = any (array(select id from gone))

-- name: log_lines_of
select {log_line} from tenure.log_line where run_id = $1 and no > $2 order by no limit $3
