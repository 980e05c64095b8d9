-- Remote leases and artifacts; see tenure.store.remote.

-- name: delete_remote_lease
-- A part of a save: goes with its run.
delete from remote_lease where run_id = any (array(select id from gone))

-- name: delete_artifact
-- Likewise.
delete from artifact where run_id = any (array(select id from gone))
