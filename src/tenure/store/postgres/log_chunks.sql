-- Chunks of the logs of attempts; see tenure.store.log_chunks.

-- name: attempt_lease
-- The state of a lease, without a lock.
select lease from tenure.attempt where run_id = $1 and idx = $2 and n = $3

-- name: log_chunk_last
-- The last chunk of an attempt.
select {log_chunk} from tenure.log_chunk where run_id = $1 and idx = $2 and n = $3 order by seq desc limit 1

-- name: log_chunk_numbered
select {log_chunk} from tenure.log_chunk where run_id = $1 and idx = $2 and n = $3 and seq = $4

-- name: log_chunks_from
-- The chunk that has the byte $4, and those after it.
select {log_chunk} from tenure.log_chunk
where run_id = $1 and idx = $2 and n = $3 and first_byte >= coalesce(
    (select max(c.first_byte) from tenure.log_chunk as c where c.run_id = $1 and c.idx = $2 and c.n = $3 and c.first_byte <= $4), 0)
order by first_byte limit $5

-- name: log_chunks_before
-- The chunks before the number $4, newest first.
select {log_chunk} from tenure.log_chunk where run_id = $1 and idx = $2 and n = $3 and seq < $4 order by seq desc limit $5

-- name: log_chunk_first_late
select {log_chunk} from tenure.log_chunk where run_id = $1 and idx = $2 and n = $3 and late order by seq limit 1

-- name: log_chunk_rows_of
select {log_chunk} from tenure.log_chunk where run_id = $1 order by idx, n, seq

-- name: save_log_chunk
insert into tenure.log_chunk ({log_chunk}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) returning {log_chunk}

-- name: delete_log_chunk
-- A part of a save: deleted with its run.
delete from tenure.log_chunk where run_id = any (array(select id from gone))
