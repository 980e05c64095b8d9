-- What joins the parts of a save into one statement; see the section on saves in queries.sql. SQLite needs none of this:
-- it runs the parts one after another.

-- name: save_fine
-- Whether decisions at an estimated time ($2) may be written: its error is at most a second.
select $2::bigint is null or abs({now} - $2::bigint) <= 1000000 as yes

-- name: save_ok_held
-- The runs whose rows a save may write: those it holds (`held` locks or changes them), and those it creates.
select id from held

-- name: save_ok_new
select id from new_run

-- name: save_ok_held_and_new
select id from held union all select id from new_run

-- name: save_ok_none
select null::bigint as id where false

-- name: save_done
-- What was written, and when. A save that had to wait for locks until its estimate was wrong is undone:
-- refuse_late_save() raises an error, because a single statement cannot undo its writes in another way.
select ids, now_us, case when cardinality(ids) > 0 and abs(now_us - $2::bigint) > 1000000
    then tenure.refuse_late_save() end
from (select array(select id from ok) as ids, {now} as now_us offset 0) d

-- name: save_done_with_deletes
-- The same for a save that also deletes runs.
select ids, now_us, case when cardinality(ids) > 0 and abs(now_us - $2::bigint) > 1000000
    then tenure.refuse_late_save() end
from (select array(select id from ok union all select id from gone) as ids, {now} as now_us offset 0) d
