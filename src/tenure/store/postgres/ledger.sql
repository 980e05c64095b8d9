-- Ledgers: leaves, full subtrees, signed checkpoints, and signing keys; see tenure.store.ledger.

-- name: ledger_sizes
-- Every ledger, also a ledger that has lost all its leaves, by loose scans: each hop is one search, however long a ledger is.
with recursive hop (tenant) as (
    (select l.tenant from tenure.ledger_leaf l order by l.tenant limit 1)
    union all
    select (select l.tenant from tenure.ledger_leaf l where l.tenant > hop.tenant order by l.tenant limit 1)
    from hop where hop.tenant is not null
),
signs (tenant) as (
    (select s.tenant from tenure.ledger_checkpoint s order by s.tenant limit 1)
    union all
    select (select s.tenant from tenure.ledger_checkpoint s where s.tenant > signs.tenant order by s.tenant limit 1)
    from signs where signs.tenant is not null
),
ledger (tenant) as (select tenant from hop union select tenant from signs)
select
    tenant,
    coalesce((select l.pos + 1 from tenure.ledger_leaf l where l.tenant = ledger.tenant order by l.pos desc limit 1), 0) as size,
    coalesce((select s.size from tenure.ledger_checkpoint s where s.tenant = ledger.tenant order by s.size desc limit 1), 0) as signed
from ledger where tenant is not null order by tenant

-- name: ledger_head
select {ledger_leaf} from tenure.ledger_leaf where tenant = $1 order by pos desc limit 1

-- name: leaves_after
select {ledger_leaf} from tenure.ledger_leaf where tenant = $1 and pos > $2 order by pos limit $3

-- name: leaves_at
select {l.ledger_leaf} from unnest($1::text[], $2::bigint[]) n (tenant, pos)
join tenure.ledger_leaf l on l.tenant = n.tenant and l.pos = n.pos

-- name: leaves_of_run
select {ledger_leaf} from tenure.ledger_leaf where tenant = $1 and run_id = $2 order by pos

-- name: leaves_taken
select {l.ledger_leaf} from unnest($1::text[], $2::bigint[], $3::text[], $4::integer[]) n (tenant, run_id, kind, part)
join tenure.ledger_leaf l on l.tenant = n.tenant and l.run_id = n.run_id and l.kind = n.kind and l.part = n.part

-- name: admin_sealed
select {ledger_leaf} from tenure.ledger_leaf where tenant = $1 and kind = 'admin' order by part desc limit 1

-- name: key_leaves
-- The installation's own ledger has few other leaves.
select {ledger_leaf} from tenure.ledger_leaf where tenant = '' and pos > $1 and kind = 'key' order by pos limit $2

-- name: nodes_at
select {o.ledger_node} from unnest($1::text[], $2::integer[], $3::bigint[]) n (tenant, level, pos)
join tenure.ledger_node o on o.tenant = n.tenant and o.level = n.level and o.pos = n.pos

-- name: nodes_after
select {ledger_node} from tenure.ledger_node where tenant = $1 and (level, pos) > ($2::integer, $3::bigint) order by level, pos limit $4

-- name: ledger_checkpoints_before
select {ledger_checkpoint} from tenure.ledger_checkpoint where tenant = $1 and size < $2 order by size desc limit $3

-- name: ledger_checkpoints_after
select {ledger_checkpoint} from tenure.ledger_checkpoint where tenant = $1 and size > $2 order by size limit $3

-- name: ledger_checkpoints_from
select {ledger_checkpoint} from tenure.ledger_checkpoint where tenant = $1 and size >= $2 order by size limit 1

-- name: signing_keys
select {signing_key} from tenure.signing_key order by created_at, id

-- name: runs_unledgered
-- Runs in a range of ids that have no `created` leaf, with the hash of their first event.
select r.id as run_id, r.tenant, e.hash
from tenure.run r
join tenure.event e on e.run_id = r.id and e.seq = 1
where r.id > $1 and r.id <= $2
    and not exists (
        select from tenure.ledger_leaf l where l.tenant = r.tenant and l.run_id = r.id and l.kind = 'created' and l.part = 0
    )
order by r.id

-- name: admin_unsealed
-- The newest line of each chain (a loose scan, as above), unless a leaf has it.
with recursive hop (tenant) as (
    (select a.tenant from tenure.admin_event a order by a.tenant limit 1)
    union all
    select (select a.tenant from tenure.admin_event a where a.tenant > hop.tenant order by a.tenant limit 1)
    from hop where hop.tenant is not null
)
select e.tenant, e.seq, e.hash
from hop
cross join lateral (
    select a.tenant, a.seq, a.hash from tenure.admin_event a where a.tenant = hop.tenant order by a.seq desc limit 1
) e
where hop.tenant is not null
    and not exists (
        select from tenure.ledger_leaf l where l.tenant = e.tenant and l.kind = 'admin' and l.part >= e.seq
    )

-- name: run_heads
-- A run of this tenant at one of its events. Always one row.
select
    n.run_id, n.seq, r.version, r.status, e.hash,
    exists (select from tenure.ledger_leaf l where l.tenant = n.tenant and l.run_id = n.run_id and l.kind = 'sealed' and l.part = 0) as sealed
from unnest($1::text[], $2::bigint[], $3::bigint[]) n (tenant, run_id, seq)
left join tenure.run r on r.id = n.run_id and r.tenant = n.tenant
left join tenure.event e on e.run_id = r.id and e.seq = n.seq

-- name: save_ledger_leaf
insert into tenure.ledger_leaf ({ledger_leaf})
select * from unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::integer[], $6::bytea[], $7::bigint[])
returning {ledger_leaf}

-- name: save_ledger_node
insert into tenure.ledger_node ({ledger_node})
select * from unnest($1::text[], $2::integer[], $3::bigint[], $4::bytea[])
returning {ledger_node}

-- name: save_ledger_checkpoint
-- Two checkpoints over the same leaves are equal: the first is kept.
insert into tenure.ledger_checkpoint ({ledger_checkpoint})
values ($1::text, $2::bigint, $3::bytea, $4::text, $5::text, $6::bigint)
on conflict (tenant, size) do nothing
returning {ledger_checkpoint}

-- name: save_signing_key
insert into tenure.signing_key ({signing_key})
values ($1::text, $2::bytea, $3::text, $4::bytea, $5::bigint, $6::bigint)
on conflict (id) do update set revoked_from = excluded.revoked_from
returning {signing_key}
