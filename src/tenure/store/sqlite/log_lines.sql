-- Log lines of runs; see tenure.store.log_lines.

-- name: save_log_line
-- A line gets the next number of its run. Lines of a run that does not exist are dropped.
insert into log_line
select
    ?1, coalesce((select max(no) from log_line where run_id = ?1), 0) + 1, iif(?2 > 0, ?2, ?7), ?3, ?4, ?5, ?6
where exists (select 1 from run where id = ?1)
returning *

-- name: delete_old_log_lines
-- The oldest lines of a run that has too many: those up to number ?2.
delete from log_line where run_id = ?1 and no <= ?2

-- name: delete_log_line
-- Beneath a deleted run.
delete from log_line where run_id = ?1

-- name: log_lines_of
-- A run's lines after a number.
select * from log_line where run_id = ?1 and no > ?2 order by no limit ?3
