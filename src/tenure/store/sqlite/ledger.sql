-- Ledgers: leaves, full subtrees, signed checkpoints, and signing keys; see tenure.store.ledger.

-- name: ledger_sizes
-- Every ledger, also a ledger that has lost all its leaves, by loose scans: each hop is one search, however long a ledger is.
with recursive hop (tenant) as (
    select min(tenant) from ledger_leaf
    union all
    select (select l.tenant from ledger_leaf as l where l.tenant > hop.tenant order by l.tenant limit 1)
    from hop where hop.tenant is not null
),
signs (tenant) as (
    select min(tenant) from ledger_checkpoint
    union all
    select (select s.tenant from ledger_checkpoint as s where s.tenant > signs.tenant order by s.tenant limit 1)
    from signs where signs.tenant is not null
),
ledger (tenant) as (select tenant from hop union select tenant from signs)
select
    tenant,
    coalesce((select l.pos + 1 from ledger_leaf as l where l.tenant = ledger.tenant order by l.pos desc limit 1), 0),
    coalesce((select s.size from ledger_checkpoint as s where s.tenant = ledger.tenant order by s.size desc limit 1), 0)
from ledger where tenant is not null order by tenant

-- name: ledger_head
select * from ledger_leaf where tenant = ?1 order by pos desc limit 1

-- name: leaves_after
select * from ledger_leaf where tenant = ?1 and pos > ?2 order by pos limit ?3

-- name: leaves_at
select * from ledger_leaf where tenant = ?1 and pos = ?2

-- name: leaves_of_run
select * from ledger_leaf indexed by ledger_leaf_run where tenant = ?1 and run_id = ?2 order by pos

-- name: leaves_taken
select * from ledger_leaf where tenant = ?1 and run_id = ?2 and kind = ?3 and part = ?4

-- name: admin_sealed
select * from ledger_leaf where tenant = ?1 and kind = 'admin' order by part desc limit 1

-- name: key_leaves
-- The installation's own ledger has few other leaves.
select * from ledger_leaf where tenant = '' and pos > ?1 and kind = 'key' order by pos limit ?2

-- name: nodes_at
select * from ledger_node where tenant = ?1 and level = ?2 and pos = ?3

-- name: nodes_after
select * from ledger_node where tenant = ?1 and (level, pos) > (?2, ?3) order by level, pos limit ?4

-- name: ledger_checkpoints_before
select * from ledger_checkpoint where tenant = ?1 and size < ?2 order by size desc limit ?3

-- name: ledger_checkpoints_after
select * from ledger_checkpoint where tenant = ?1 and size > ?2 order by size limit ?3

-- name: ledger_checkpoints_from
select * from ledger_checkpoint where tenant = ?1 and size >= ?2 order by size limit 1

-- name: signing_keys
select * from signing_key order by created_at, id

-- name: runs_unledgered
-- Runs in a range of ids that have no `created` leaf, with the hash of their first event.
select r.id, r.tenant, e.hash
from run as r
join event as e on e.run_id = r.id and e.seq = 1
where r.id > ?1 and r.id <= ?2
    and not exists (
        select 1 from ledger_leaf as l where l.tenant = r.tenant and l.run_id = r.id and l.kind = 'created' and l.part = 0
    )
order by r.id

-- name: admin_unsealed
-- The newest line of each chain (a loose scan, as above), unless a leaf has it.
with recursive hop (tenant) as (
    select min(tenant) from admin_event
    union all
    select (select a.tenant from admin_event as a where a.tenant > hop.tenant order by a.tenant limit 1)
    from hop where hop.tenant is not null
)
select e.tenant, e.seq, e.hash
from hop
join admin_event as e on
    e.tenant = hop.tenant
    and e.seq = (select a.seq from admin_event as a where a.tenant = hop.tenant order by a.seq desc limit 1)
where hop.tenant is not null
    and not exists (
        select 1 from ledger_leaf as l where l.tenant = e.tenant and l.kind = 'admin' and l.part >= e.seq
    )

-- name: run_heads
-- A run of this tenant at one of its events. Always one row.
select
    ?2, ?3, r.version, r.status, (select e.hash from event as e where e.run_id = r.id and e.seq = ?3),
    exists (select 1 from ledger_leaf as l where l.tenant = ?1 and l.run_id = ?2 and l.kind = 'sealed' and l.part = 0)
from (select 1) left join run as r on r.id = ?2 and r.tenant = ?1

-- name: save_ledger_leaf
insert into ledger_leaf values (?1, ?2, ?3, ?4, ?5, ?6, ?7) returning *

-- name: save_ledger_node
insert into ledger_node values (?1, ?2, ?3, ?4) returning *

-- name: save_ledger_checkpoint
-- Two checkpoints over the same leaves are equal: the first is kept.
insert into ledger_checkpoint values (?1, ?2, ?3, ?4, ?5, ?6) on conflict (tenant, size) do nothing returning *

-- name: save_signing_key
insert into signing_key values (?1, ?2, ?3, ?4, ?5, ?6)
on conflict (id) do update set revoked_from = excluded.revoked_from
returning *
