-- The clock of a database file; see tenure.store.sqlite.file_clock. PostgreSQL has a clock of its own.

-- name: save_time
-- The time of a commit that wrote rows but no event. The clock never goes below it again.
update meta set last_at = max(last_at, ?1)

-- name: load_anchor
-- The expected time of the file within one boot of the machine; see tenure.store.sqlite.file_clock.
select boot, boot_offset, boot_confirmed from meta where boot is not null

-- name: save_anchor
update meta set boot = ?1, boot_offset = ?2, boot_confirmed = ?3
