-- Uploads in parts, and files that are to be deleted; see tenure.store.uploads.

-- name: upload_named
select {upload} from tenure.upload where run_id = $1 and idx = $2 and n = $3 and kind = $4 and name = $5

-- name: upload_of
select {upload} from tenure.upload where run_id = $1 and idx = $2 and n = $3 and id = $4

-- name: uploads_of_run
select {upload} from tenure.upload where run_id = $1 order by idx, n, kind, name

-- name: upload_count
select count(*) from tenure.upload where run_id = $1 and idx = $2 and n = $3

-- name: uploads_abandoned
-- Uploads of leases that ended before $1.
select {u.upload} from tenure.upload as u
join tenure.attempt as a on a.run_id = u.run_id and a.idx = u.idx and a.n = u.n
where a.ended_at is not null and a.ended_at < $1 order by u.begun_at limit $2

-- name: upload_parts_of
select {upload_part} from tenure.upload_part where run_id = $1 and upload = $2 order by no

-- name: upload_part_rows_of
select {upload_part} from tenure.upload_part where run_id = $1 order by upload, no

-- name: save_upload
insert into tenure.upload ({upload}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9) returning {upload}

-- name: end_upload
-- It is complete or abandoned.
delete from tenure.upload where run_id = $1 and idx = $2 and n = $3 and id = $4 returning {upload}

-- name: save_upload_part
-- The same part again changes nothing.
insert into tenure.upload_part ({upload_part}) values ($1, $2, $3, $4, $5)
on conflict (run_id, upload, no) do update set size = excluded.size, digest = excluded.digest
returning {upload_part}

-- name: end_upload_parts
delete from tenure.upload_part where run_id = $1 and upload = $2 returning {upload_part}

-- name: delete_upload
-- A part of a save: deleted with its run.
delete from tenure.upload where run_id = any (array(select id from gone))

-- name: delete_upload_part
-- Likewise.
delete from tenure.upload_part where run_id = any (array(select id from gone))

-- name: file_deletions_due
select {file_deletion} from tenure.file_deletion where due_at <= $1 order by due_at limit $2

-- name: save_file_deletion
-- Asked for again, it is due again.
insert into tenure.file_deletion ({file_deletion}) values ($1, $2, $3, $4, $5)
on conflict (path) do update set asked_at = excluded.asked_at, due_at = excluded.due_at, tries = excluded.tries
returning {file_deletion}

-- name: end_file_deletion
delete from tenure.file_deletion where path = $1 and asked_at = $2 returning {file_deletion}
