-- Hooks and deliveries; see tenure.store.hook_deliveries.

-- name: hook_named
select * from hook where id = ?1

-- name: lock_hook
-- SQLite has one writer anyway.
select * from hook where id = ?1

-- name: hooks_of
select * from hook where tenant = ?1 and (created_at, id) < (?2, ?3) order by created_at desc, id desc limit ?4

-- name: delivery_named
select * from delivery where hook_id = ?1 and id = ?2

-- name: deliveries_of
-- Without headers and bodies, which may be large.
select hook_id, id, event, name, received_at, status, run_id, note, replays, tries
from delivery where hook_id = ?1 and (received_at, id) < (?2, ?3)
order by received_at desc, id desc limit ?4

-- name: deliveries_set_aside
-- The same, by an index of the deliveries that are set aside.
select hook_id, id, event, name, received_at, status, run_id, note, replays, tries
from delivery where hook_id = ?1 and (received_at, id) < (?2, ?3) and status = 'set_aside'
order by received_at desc, id desc limit ?4

-- name: deliveries_left
-- This repeats the source of a hook's keys (tenure.store.hook_deliveries) and when a lock counts as expired
-- (tenure.store.idempotency).
select d.* from delivery d
join hook h on h.id = d.hook_id
left join idempotency r on r.tenant = d.tenant and r.name = d.name
    and r.source = case h.kind when 'github' then 'github_webhook' when 'generic' then 'webhook' else h.kind end
left join worker w on w.name = r.holder
where d.status = 'received' and (
    r.name is null or r.lock_expires_at is null or r.lock_expires_at <= ?1
    or (r.holder is not null and (w.name is null or w.seen_at <= ?2))
)
order by d.received_at limit ?3

-- name: delivery_alike
-- Only deliveries that have a run, may get one, or were set aside (only a replay starts those again). A delivery that was
-- ignored or failed may be sent again.
select * from delivery indexed by delivery_content
where hook_id = ?1 and digest = ?2 and received_at > ?3 and status in ('received', 'done', 'set_aside')
order by received_at limit 1

-- name: delivery_akin
select * from delivery indexed by delivery_fingerprint
where hook_id = ?1 and fingerprint = ?2 and received_at > ?3 and status in ('received', 'done')
order by received_at limit 1

-- name: save_hook
insert into hook values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) returning *

-- name: change_hook
-- The kind and the time of creation never change.
update hook set
    workspace = ?3, name = ?5, secrets = ?6, rules = ?7, owner = ?8, settings = ?9, updated_at = ?11, revision = ?12,
    disabled = ?13, unconfirmed = ?14
where id = ?1 and tenant = ?2 and kind = ?4 and created_at = ?10 and revision = ?12 - 1
returning *

-- name: delete_hook
delete from hook where tenant = ?1 and id = ?2 returning *

-- name: delete_deliveries
delete from delivery where hook_id = ?1
returning hook_id, id, event, name, received_at, status, run_id, note, replays, tries

-- name: delete_old_deliveries
-- By the index of each hook's newest deliveries.
delete from delivery where (hook_id, id) in (
    select d.hook_id, d.id from hook h
    join delivery d on d.hook_id = h.id and d.received_at < ?1
    where d.status <> 'received' limit ?2
)
returning hook_id, id, event, name, received_at, status, run_id, note, replays, tries

-- name: save_delivery
insert into delivery values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16) returning *

-- name: count_try
-- The try is counted before it begins, so that a try that ends its process counts, too.
update delivery set tries = tries + 1 where hook_id = ?1 and id = ?2 and status = 'received' returning *

-- name: note_delivery
update delivery set note = ?3 where hook_id = ?1 and id = ?2 and status = 'received' returning *

-- name: settle_delivery
-- Closes an open delivery, or opens a failed one again.
update delivery set status = ?3, run_id = ?4, note = ?5
where hook_id = ?1 and id = ?2 and status = case ?3 when 'received' then 'failed' else 'received' end
returning *

-- name: settle_repeats
-- The repeats that arrived while the first delivery was in process.
update delivery set run_id = ?4
where hook_id = ?1 and received_at >= ?2 and status = 'duplicate' and note = ?3 and run_id is null
returning hook_id, id, event, name, received_at, status, run_id, note, replays, tries

-- name: count_replay
update delivery set replays = replays + 1 where hook_id = ?1 and id = ?2 returning *
