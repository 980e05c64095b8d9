-- The named queries of the PostgreSQL store; SQLite has the same names. They fetch and save, nothing else.
--
-- The rows of a query are sent as one array per column ($1..$k), scalars follow. Words in braces are filled in
-- once, when the file is read (statements.py): {run} are the run's columns, {r.run} the same as r.id, r.tenant, …;
-- {now} is the store's clock, whose shift is always $1 where it is used.
--
-- Plans are made once per connection, knowing neither the values nor how the tables will grow, so the queries
-- fix the order of each join: `cross join lateral (… offset 0)` searches an index once per row that was sent, in the
-- order of the rows. In a statement that changes rows, `r.id = any (array[n.id])` does the same, because PostgreSQL
-- cannot reverse such a join. (With `r.id = n.id`, a plan made while the table was empty read the whole index for
-- every save, until the next ANALYZE.) A query that relies on that order for its locks says so. The connections for
-- transactions do not use hash or merge joins (connection.py).

-- ------------------------------------------------------------------------------------- time and locks

-- name: now
-- The store's clock. clock_timestamp(), because now() stands still within a transaction.
select {now} as now_us

-- name: lock_tenants
-- Serialises decisions about caps and concurrency keys of a tenant, until the commit. The locks are sorted, so that two
-- transactions never wait for each other; the lock's answer is never null, so there are no rows.
-- SQLite: nothing to do, it has one writer.
select 0::bigint as run_id
from (select distinct hashtextextended(t, 7450) as key from unnest($1::text[]) t order by key offset 0) k
where pg_advisory_xact_lock(k.key) is null

-- name: lock_runs
-- Locks in id order, waiting; the answer is read after the lock. A later statement loads the rows beneath: its
-- snapshot is taken after the locks. SQLite: a plain select.
select {run} from tenure.run where id = any($1::bigint[]) order by id for update

-- name: lock_free_runs
-- The same, leaving out what others have locked. SQLite: a plain select.
select {run} from tenure.run where id = any($1::bigint[]) order by id for update skip locked

-- name: lock_free_heads
-- The same, for runs that the caller may have cached.
select id, version, head from tenure.run where id = any($1::bigint[]) order by id for update skip locked

-- --------------------------------------------------------------------------------- what a command needs

-- name: load_specs
select {run_spec} from tenure.run_spec where run_id = any($1::bigint[])

-- name: load_steps
select {s.step} from unnest($1::bigint[], $2::integer[]) n (run_id, idx)
cross join lateral (select {step} from tenure.step t where t.run_id = n.run_id and t.idx = n.idx offset 0) s

-- name: load_named_steps
select {s.step} from unnest($1::bigint[], $2::text[]) n (run_id, name)
cross join lateral (select {step} from tenure.step t where t.run_id = n.run_id and t.name = n.name offset 0) s

-- name: load_open_steps
-- The steps that the end of a run closes. The partial index step_open has neither closed steps nor the first step.
select {step} from tenure.step where run_id = any($1::bigint[]) and idx = 0 and finished_at is null
union all
select {step} from tenure.step where run_id = any($1::bigint[]) and idx > 0 and finished_at is null
order by run_id, idx

-- name: load_attempts
-- Heartbeats write leases without the run's lock, so these are locked too, in key order, after the runs.
-- SQLite: a plain select.
select {a.attempt} from (
    select * from unnest($1::bigint[], $2::integer[], $3::integer[]) u (run_id, idx, n)
    order by run_id, idx, n offset 0) k
cross join lateral (
    select {attempt} from tenure.attempt t where t.run_id = k.run_id and t.idx = k.idx and t.n = k.n offset 0 for update) a

-- name: load_checkpoints
select {c.checkpoint} from unnest($1::bigint[], $2::integer[], $3::text[]) n (run_id, idx, name)
cross join lateral (
    select {checkpoint} from tenure.checkpoint t
    where t.run_id = n.run_id and t.idx = n.idx and t.name = n.name offset 0) c

-- name: load_step_checkpoints
select {c.checkpoint} from unnest($1::bigint[], $2::integer[]) n (run_id, idx)
cross join lateral (
    select {checkpoint} from tenure.checkpoint t
    where t.run_id = n.run_id and t.idx = n.idx offset 0) c
order by c.run_id, c.idx, c.no

-- name: load_open_waits
select {wait} from tenure.wait where run_id = any($1::bigint[]) and state = 'open' order by run_id, no

-- name: load_event_waits
-- Open waits for an event, oldest first.
select {w.wait} from unnest($1::bigint[], $2::text[]) n (run_id, name)
cross join lateral (
    select {wait} from tenure.wait t
    where t.run_id = n.run_id and t.name = n.name and t.kind = 'event' and t.state = 'open' offset 0) w
order by w.run_id, w.no

-- name: load_waits
select {w.wait} from unnest($1::bigint[], $2::integer[]) n (run_id, no)
cross join lateral (select {wait} from tenure.wait t where t.run_id = n.run_id and t.no = n.no offset 0) w

-- name: load_labeled_waits
select {w.wait} from unnest($1::bigint[], $2::integer[], $3::text[]) n (run_id, idx, label)
cross join lateral (
    select {wait} from tenure.wait t
    where t.run_id = n.run_id and t.idx = n.idx and t.label = n.label offset 0) w
order by w.run_id, w.no

-- name: load_approvals
select {a.approval} from unnest($1::bigint[], $2::integer[]) n (run_id, no)
cross join lateral (select {approval} from tenure.approval t where t.run_id = n.run_id and t.no = n.no offset 0) a

-- name: load_buffered
-- Delivered events of a name that no wait has taken, oldest first.
select {i.inbox} from unnest($1::bigint[], $2::text[]) n (run_id, name)
cross join lateral (
    select {inbox} from tenure.inbox t
    where t.run_id = n.run_id and t.name = n.name and t.wait_no is null offset 0) i
order by i.run_id, i.no

-- name: load_inbox_ids
select {i.inbox} from unnest($1::bigint[], $2::text[]) n (run_id, event_id)
cross join lateral (
    select {inbox} from tenure.inbox t
    where t.run_id = n.run_id and t.event_id = n.event_id offset 0) i

-- name: load_open_children
select {child} from tenure.child where run_id = any($1::bigint[]) and state = 'open' order by run_id, child_id

-- name: load_children
select {c.child} from unnest($1::bigint[], $2::bigint[]) n (run_id, child_id)
cross join lateral (
    select {child} from tenure.child t
    where t.run_id = n.run_id and t.child_id = n.child_id offset 0) c

-- name: load_acts
select {r.receipt} from unnest($1::bigint[], $2::integer[], $3::text[]) n (run_id, idx, label)
cross join lateral (
    select {receipt} from tenure.receipt t
    where t.run_id = n.run_id and t.idx = n.idx and t.label = n.label offset 0) r
order by r.run_id, r.no

-- name: load_open_receipts
select {receipt} from tenure.receipt where run_id = any($1::bigint[]) and state in ('intent', 'unknown')
order by run_id, no

-- name: load_receipts
select {r.receipt} from unnest($1::bigint[], $2::integer[]) n (run_id, no)
cross join lateral (
    select {receipt} from tenure.receipt t where t.run_id = n.run_id and t.no = n.no offset 0) r

-- name: load_run_spends
select {run_spend} from tenure.run_spend where run_id = any($1::bigint[])

-- name: load_cost_lines
select {cost_line} from tenure.cost_line where run_id = any($1::bigint[]) order by run_id, no

-- name: load_key_holders
select {r.receipt} from unnest($1::text[], $2::text[]) n (tenant, name)
cross join lateral (
    select {receipt} from tenure.receipt t
    where t.tenant = n.tenant and t.name = n.name and t.state in ('intent', 'unknown', 'succeeded') offset 0) r

-- name: load_governance
select {governance} from tenure.governance where tenant = any($1::text[]) order by tenant for share

-- name: load_people
select {p.person} from unnest($1::text[], $2::text[]) n (tenant, id)
cross join lateral (
    select {person} from tenure.person t where t.tenant = n.tenant and t.id = n.id offset 0) p

-- name: load_unconfirmed
select id, unconfirmed from tenure.person where tenant = any($1::text[]) and unconfirmed <> '' order by id

-- name: load_payloads
-- Payloads that are stored in checkpoints come last: they are found through all checkpoints of the run.
select {p.payload} from unnest($1::bigint[], $2::integer[]) n (run_id, ref)
cross join lateral (
    select {payload} from tenure.payload t where t.run_id = n.run_id and t.ref = n.ref
    union all
    select run_id, output_ref, salt, output from tenure.checkpoint t
    where t.run_id = n.run_id and t.output_ref = n.ref and t.salt is not null
    limit 1) p

-- name: load_event_hashes
-- The proof that an ambiguous commit happened.
select e.run_id, e.seq, e.hash from unnest($1::bigint[], $2::integer[]) n (run_id, seq)
cross join lateral (
    select run_id, seq, hash from tenure.event t
    where t.run_id = n.run_id and t.seq = n.seq offset 0) e

-- name: find_keys
select {s.run_spec} from unnest($1::text[], $2::text[], $3::text[]) n (tenant, source, idempotency_key)
cross join lateral (
    select {run_spec} from tenure.run_spec t
    where t.tenant = n.tenant and t.source = n.source and t.idempotency_key = n.idempotency_key offset 0) s

-- --------------------------------------------------------------------------- claims, caps, keys, beats

-- name: caps
select {cap} from tenure.cap where tenant = any($1::text[]) order by tenant, scope

-- name: claim_queues
-- The (tenant, workspace) with claimable work, after a given one. A loose index scan: per queue it hops
-- from one pair to the next through step_claim, so its cost is the number of claim queues, not the length of the
-- queue. SQLite: the same recursion, with the pair compared column by column.
with recursive hop (queue, tenant, workspace, n) as (
    select q.queue, f.tenant, f.workspace, 1
    from unnest($1::text[]) q (queue)
    cross join lateral (
        select s.tenant, s.workspace from tenure.step s
        where s.claimable and s.queue = q.queue and (s.tenant, s.workspace) > ($2::text, $3::text)
        order by s.tenant, s.workspace limit 1) f
    union all
    select h.queue, f.tenant, f.workspace, h.n + 1
    from hop h
    cross join lateral (
        select s.tenant, s.workspace from tenure.step s
        where s.claimable and s.queue = h.queue and (s.tenant, s.workspace) > (h.tenant, h.workspace)
        order by s.tenant, s.workspace limit 1) f
    where h.n < $4::integer
)
select distinct tenant, workspace from hop order by tenant, workspace limit $4::integer

-- name: tenant_claim_queues
-- The same for one tenant, after one of its workspaces: such a claim visits no other tenant.
with recursive hop (queue, workspace, n) as (
    select q.queue, f.workspace, 1
    from unnest($1::text[]) q (queue)
    cross join lateral (
        select s.workspace from tenure.step s
        where s.claimable and s.queue = q.queue and s.tenant = $2::text and s.workspace > $3::text
        order by s.workspace limit 1) f
    union all
    select h.queue, f.workspace, h.n + 1
    from hop h
    cross join lateral (
        select s.workspace from tenure.step s
        where s.claimable and s.queue = h.queue and s.tenant = $2::text and s.workspace > h.workspace
        order by s.workspace limit 1) f
    where h.n < $4::integer
)
select distinct $2::text, workspace from hop order by workspace limit $4::integer

-- name: usage
-- Live leases, counted through the partial index attempt_live; ended ones are not in it.
select tenant, workflow, count(*) as leases from tenure.attempt
where lease in ('granted', 'active') and tenant = any($1::text[])
group by tenant, workflow

-- name: candidates
-- For each claim queue asked for, its first steps in the order of step_claim. No locks: the claim locks the runs
-- that are free and checks the steps again.
select c.run_id, c.idx, c.tenant, c.workspace, c.workflow, c.priority, c.ready_at
from unnest($1::text[], $2::text[], $3::text[], $4::integer[]) l (queue, tenant, workspace, most)
cross join lateral (
    select s.run_id, s.idx, s.tenant, s.workspace, s.workflow, s.priority, s.ready_at from tenure.step s
    where s.claimable and s.queue = l.queue and s.tenant = l.tenant and s.workspace = l.workspace
    order by s.priority desc, s.ready_at, s.run_id, s.idx limit l.most) c

-- name: candidates_behind
-- The same, after a given step: first the steps of its priority, then those of lower priorities. The four columns cannot be
-- compared as one row, because priorities descend.
select c.run_id, c.idx, c.tenant, c.workspace, c.workflow, c.priority, c.ready_at
from unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::bigint[], $6::bigint[], $7::integer[], $8::integer[])
    l (queue, tenant, workspace, priority, ready_at, run_id, idx, most)
cross join lateral (
    select * from (
        select s.run_id, s.idx, s.tenant, s.workspace, s.workflow, s.priority, s.ready_at from tenure.step s
        where s.claimable and s.queue = l.queue and s.tenant = l.tenant and s.workspace = l.workspace
            and s.priority = l.priority and (s.ready_at, s.run_id, s.idx) > (l.ready_at, l.run_id, l.idx)
        order by s.ready_at, s.run_id, s.idx limit l.most) same
    union all
    select * from (
        select s.run_id, s.idx, s.tenant, s.workspace, s.workflow, s.priority, s.ready_at from tenure.step s
        where s.claimable and s.queue = l.queue and s.tenant = l.tenant and s.workspace = l.workspace
            and s.priority < l.priority
        order by s.priority desc, s.ready_at, s.run_id, s.idx limit l.most) lower_
    order by priority desc, ready_at, run_id, idx limit l.most) c

-- name: key_queue
-- The run that holds a concurrency key, and the run that has waited for it longest. Always one row. A run that waits for the
-- key checks again soon (wake_at <= $3); a run whose start is delayed does not wait for it yet.
select
    (select id from tenure.run where tenant = $1 and concurrency_key = $2 and admitted_at is not null
        and finished_at is null limit 1) as holder_id,
    (select id from tenure.run where tenant = $1 and concurrency_key = $2 and admitted_at is null
        and finished_at is null and wake_at <= $3 order by created_at, id limit 1) as first_waiting_id

-- name: live_keys
select id as run_id, admitted_at, created_at, cancel_at from tenure.run
where tenant = $1 and concurrency_key = $2 and finished_at is null and id <> $3
order by created_at, id

-- name: rates
select workflow, count(*) as runs, min(admitted_at) as first_at from tenure.run
where rated and tenant = $1 and admitted_at > $2
group by workflow order by workflow

-- name: beat
-- Heartbeats write only columns without an index, and never the run. The rows are locked in key order by
-- being updated in it: a nested loop keeps the order of its sorted outer side. SQLite: one update … from. A
-- heartbeat without a number (0, from the process that holds the lease) is never late, and does not change the sequence.
-- `coalesce` hides from the planner that all these leases are in attempt_live: without statistics it would choose that index,
-- and each heartbeat would read every live lease.
update tenure.attempt a set
    beat_at = greatest(a.beat_at, $7::bigint), expires_at = b.expires_at, seq = greatest(a.seq, b.seq), progress = b.progress
from (
    select * from unnest($1::bigint[], $2::integer[], $3::integer[], $4::integer[], $5::bigint[], $6::text[])
        u (run_id, idx, n, seq, expires_at, progress)
    order by run_id, idx, n offset 0) b
where a.run_id = any (array[b.run_id]) and a.idx = b.idx and a.n = b.n
    and coalesce(a.lease = 'active', false) and a.expires_at > $7::bigint and (b.seq = 0 or a.seq < b.seq)
    and a.expires_at <= b.expires_at
returning a.run_id, a.idx, a.n, a.state

-- --------------------------------------------------------------------------------------------- timers

-- name: due
-- Runs, steps and waits whose timer has expired, earliest first: the heads of three partial indexes, then one
-- look-up of each run. (`offset 0` keeps the planner from joining all runs instead: it does not know how small the
-- limit is.)
select entity, run_id, at, tenant, admitted, wake_at from (
    (select 'run' as entity, id as run_id, 0 as at, tenant, admitted_at is not null as admitted, wake_at
        from tenure.run where wake_at <= $1::bigint order by wake_at limit $2::integer)
    union all
    (select 'step', s.run_id, s.idx, s.tenant, r.admitted_at is not null, s.wake_at
        from (select run_id, idx, tenant, wake_at from tenure.step where wake_at <= $1::bigint
            order by wake_at limit $2::integer) s
        cross join lateral (select admitted_at from tenure.run where id = s.run_id offset 0) r)
    union all
    (select 'wait', w.run_id, w.no, r.tenant, r.admitted_at is not null, w.wake_at
        from (select run_id, no, wake_at from tenure.wait where wake_at <= $1::bigint
            order by wake_at limit $2::integer) w
        cross join lateral (select tenant, admitted_at from tenure.run where id = w.run_id offset 0) r)
) t order by wake_at, run_id, entity, at limit $2::integer

-- name: next_wake
select min(at) as now_us from (
    select min(wake_at) as at from tenure.run
    union all select min(wake_at) from tenure.step
    union all select min(wake_at) from tenure.wait) t
having min(at) is not null

-- ------------------------------------------------------------------------------------------- listings

-- name: outbox_pending
select {outbox} from tenure.outbox where created_at < $1 order by created_at, run_id, seq, part limit $2

-- name: get_run
select {run} from tenure.run where id = $1

-- name: get_spec
select {run_spec} from tenure.run_spec where run_id = $1

-- name: runs_by_status
select {run} from tenure.run where tenant = $1 and status = $2 and created_at < $3 order by created_at desc, id desc limit $4

-- name: approvals_open
select {approval} from tenure.approval where tenant = $1 and status = 'requested' order by requested_at, run_id, no limit $2

-- name: run_ids_after
select id as run_id from tenure.run where id > $1 order by id limit $2

-- ---------------------------------------------------------------------------------- all rows of a run

-- name: reusable_steps
-- Steps that ran and succeeded under a key, newest first.
select {step} from tenure.step
where tenant = $1 and reuse_key = $2 and state = 'succeeded' and attempt > 0
order by finished_at desc, run_id desc limit $3

-- name: reused_steps_of
-- The steps of a run that have the result of an earlier step.
select {step} from tenure.step where run_id = $1 and reused_run is not null order by idx

-- name: steps_of
select {step} from tenure.step where run_id = $1 order by idx

-- name: attempts_of
select {attempt} from tenure.attempt where run_id = $1 order by idx, n

-- name: checkpoints_of
select {checkpoint} from tenure.checkpoint where run_id = $1 order by idx, name

-- name: waits_of
select {wait} from tenure.wait where run_id = $1 order by no

-- name: approvals_of
select {approval} from tenure.approval where run_id = $1 order by no

-- name: inbox_of
select {inbox} from tenure.inbox where run_id = $1 order by no

-- name: children_of
select {child} from tenure.child where run_id = $1 order by child_id

-- name: verdicts_of
select {verdict} from tenure.verdict where run_id = $1 order by no

-- name: receipts_of
select {receipt} from tenure.receipt where run_id = $1 order by no

-- name: run_spends_of
select {run_spend} from tenure.run_spend where run_id = $1 order by run_id

-- name: cost_lines_of
select {cost_line} from tenure.cost_line where run_id = $1 order by no

-- name: payloads_of
-- Including payloads that are stored in checkpoints.
select {payload} from tenure.payload where run_id = $1
union all
select run_id, output_ref, salt, output from tenure.checkpoint where run_id = $1 and salt is not null
order by ref

-- name: events_of
select {event} from tenure.event where run_id = $1 order by seq

-- name: outbox_of
select {outbox} from tenure.outbox where run_id = $1 order by seq, part

-- name: events_after
select {event} from tenure.event where run_id = $1 and seq > $2 order by seq limit $3

-- name: payload
-- Also if it is stored in a checkpoint; see load_payloads.
select {payload} from tenure.payload where run_id = $1 and ref = $2
union all
select run_id, output_ref, salt, output from tenure.checkpoint where run_id = $1 and output_ref = $2 and salt is not null
limit 1

-- ----------------------------------------------------------------------------------------- the doctor

-- name: all_caps
select {cap} from tenure.cap order by tenant, scope

-- name: live_usage
select tenant, workflow, count(*) as leases from tenure.attempt where lease in ('granted', 'active')
group by tenant, workflow order by tenant, workflow

-- name: key_holders_twice
select id as run_id from (
    select id, count(*) over (partition by tenant, concurrency_key) as holders from tenure.run
    where concurrency_key is not null and admitted_at is not null and finished_at is null) h
where holders > 1 order by id

-- name: orphan_rows
select distinct b.run_id from (
    select run_id from tenure.run_spec where idempotency_key is null
    union all select run_id from tenure.step
    union all select run_id from tenure.attempt
    union all select run_id from tenure.checkpoint
    union all select run_id from tenure.wait
    union all select run_id from tenure.approval
    union all select run_id from tenure.inbox
    union all select run_id from tenure.child
    union all select run_id from tenure.payload
    union all select run_id from tenure.event
    union all select run_id from tenure.stale_message
    union all select run_id from tenure.log_line
    union all select run_id from tenure.log_chunk
    union all select run_id from tenure.upload
    union all select run_id from tenure.upload_part
    union all select run_id from tenure.test_report
    union all select run_id from tenure.verdict
    union all select run_id from tenure.receipt
    union all select run_id from tenure.run_spend
    union all select run_id from tenure.cost_line) b
where not exists (select from tenure.run r where r.id = b.run_id) order by b.run_id

-- name: lost_specs
select r.id as run_id from tenure.run r left join tenure.run_spec s on s.run_id = r.id
where s.run_id is null or s.tenant <> r.tenant order by r.id

-- name: sizes
select 'run' as "table", count(*) as rows from tenure.run
union all select 'run_spec', count(*) from tenure.run_spec
union all select 'step', count(*) from tenure.step
union all select 'attempt', count(*) from tenure.attempt
union all select 'checkpoint', count(*) from tenure.checkpoint
union all select 'wait', count(*) from tenure.wait
union all select 'approval', count(*) from tenure.approval
union all select 'inbox', count(*) from tenure.inbox
union all select 'child', count(*) from tenure.child
union all select 'verdict', count(*) from tenure.verdict
union all select 'receipt', count(*) from tenure.receipt
union all select 'run_spend', count(*) from tenure.run_spend
union all select 'cost_line', count(*) from tenure.cost_line
union all select 'payload', count(*) from tenure.payload
union all select 'event', count(*) from tenure.event
union all select 'outbox', count(*) from tenure.outbox
union all select 'stale_message', count(*) from tenure.stale_message
union all select 'cap', count(*) from tenure.cap
union all select 'idempotency', count(*) from tenure.idempotency
union all select 'schedule', count(*) from tenure.schedule
union all select 'worker', count(*) from tenure.worker
union all select 'worker_process', count(*) from tenure.worker_process
union all select 'workflow', count(*) from tenure.workflow
union all select 'log_line', count(*) from tenure.log_line
union all select 'log_chunk', count(*) from tenure.log_chunk
union all select 'upload', count(*) from tenure.upload
union all select 'upload_part', count(*) from tenure.upload_part
union all select 'cache_entry', count(*) from tenure.cache_entry
union all select 'test_report', count(*) from tenure.test_report
union all select 'test_history', count(*) from tenure.test_history
union all select 'file_deletion', count(*) from tenure.file_deletion

-- -------------------------------------------------------------------------------------------------- saves
--
-- A save is one statement: a CTE for each table it writes, joined by statements.py from the queries below, their
-- variants in save_variants.sql, and saves.sql. `?` is the next parameter of the whole statement; for most queries it is an
-- array of the table's wire type. `ok` has the runs that were found as expected or were inserted; every other query
-- writes only their rows. SQLite: the same statements one after another in its transaction.

-- name: save_expected
-- Locks runs that are expected but do not change themselves, in id order: the rows arrive sorted. A save whose
-- runs all change does not need it: the update below locks them, and locking twice costs a third more.
select r.id from unnest(?::tenure.expect_in[]) e
cross join lateral (
    select t.id from tenure.run t
    where t.id = e.id and t.version = e.version and t.head = coalesce(e.head, t.head) and (e.valid_until is null or e.valid_until > {now})
    offset 0 for update) r
where (select yes from fine)

-- name: save_run
-- The rows arrive sorted by id and the nested loop keeps their order, so two saves never wait for each
-- other. If a run was locked, its version and the time are checked again after the wait.
update tenure.run r set
    status = n.status, version = n.version, head = n.head, event_at = n.event_at, planned = n.planned,
    admitted_at = n.admitted_at, started_at = n.started_at, finished_at = n.finished_at,
    duration_us = n.duration_us, reason = n.reason, paused = n.paused, parked = n.parked, cancel_at = n.cancel_at,
    cancel_reason = n.cancel_reason, deadline_at = n.deadline_at, human_since = n.human_since, reported_at = n.reported_at,
    sealed_at = n.sealed_at, wake_at = n.wake_at, steps_total = n.steps_total, steps_open = n.steps_open,
    steps_ready = n.steps_ready, steps_live = n.steps_live, steps_approval = n.steps_approval,
    steps_external = n.steps_external, steps_retry = n.steps_retry, steps_bad = n.steps_bad,
    steps_done = n.steps_done, checkpoints = n.checkpoints, waits_open = n.waits_open,
    inbox_total = n.inbox_total, inbox_buffered = n.inbox_buffered, children_open = n.children_open,
    next_ref = n.next_ref, next_no = n.next_no, output_ref = n.output_ref, error_ref = n.error_ref,
    receipts = n.receipts, steps_skipped = n.steps_skipped
from unnest(?::tenure.run_change_in[]) n
where r.id = any (array[n.id]) and r.version = n.expected and r.head = coalesce(n.expected_head, r.head)
    and (n.valid_until is null or n.valid_until > {now}) and (select yes from fine)
returning r.id

-- name: save_new_spec
-- A taken id or idempotency key (I31) leaves the run out. Sorted by key, for the same reason as above.
insert into tenure.run_spec ({run_spec})
select {n.run_spec} from unnest(?::tenure.run_spec_in[]) n where (select yes from fine)
on conflict do nothing returning run_id

-- name: save_new_run
insert into tenure.run ({run})
select {n.run} from unnest(?::tenure.run_in[]) n where (n.id in (select run_id from new_spec)) is true
returning id

-- name: save_run_spec
-- Labels and metadata change, an erased salt, who stands behind it, and who said that its end was reported; nothing else
-- does.
update tenure.run_spec s set involved = n.involved, labels = n.labels, metadata = n.metadata, salt = n.salt,
    reported_stated_by = n.reported_stated_by, reported_stated_at = n.reported_stated_at
from unnest(?::tenure.run_spec_in[]) n
where s.run_id = any (array[n.run_id]) and (n.run_id in (select id from ok)) is true

-- name: save_step
insert into tenure.step ({step})
select {n.step} from unnest(?::tenure.step_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id, idx) do update set
    dependents = excluded.dependents, state = excluded.state, needs_left = excluded.needs_left,
    attempt = excluded.attempt, charged = excluded.charged, claimable = excluded.claimable, ready_at = excluded.ready_at,
    cancel_by = excluded.cancel_by, wait_no = excluded.wait_no, waits_on = excluded.waits_on,
    recorded = excluded.recorded, unsafe = excluded.unsafe, finished_at = excluded.finished_at,
    reason = excluded.reason, output_ref = excluded.output_ref, error_ref = excluded.error_ref,
    last_error = excluded.last_error, eligible_at = excluded.eligible_at, wake_at = excluded.wake_at,
    resolution = excluded.resolution, input_ref = excluded.input_ref, idempotency_key = excluded.idempotency_key,
    reuse_key = excluded.reuse_key, reused_run = excluded.reused_run, reused_step = excluded.reused_step

-- name: save_attempt
-- A heartbeat may have written since the decision: its expiry, time, sequence number and progress are kept.
insert into tenure.attempt as a ({attempt})
select {n.attempt} from unnest(?::tenure.attempt_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id, idx, n) do update set
    timeout_at = excluded.timeout_at, state = excluded.state, lease = excluded.lease,
    expires_at = greatest(a.expires_at, excluded.expires_at), beat_at = greatest(a.beat_at, excluded.beat_at),
    seq = greatest(a.seq, excluded.seq), last_message = excluded.last_message, answer = excluded.answer,
    progress = case when excluded.beat_at < a.beat_at then a.progress else excluded.progress end,
    ended_at = excluded.ended_at, reason = excluded.reason, cost = excluded.cost

-- name: save_checkpoint
insert into tenure.checkpoint ({checkpoint})
select {n.checkpoint} from unnest(?::tenure.checkpoint_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id, idx, name) do update set
    no = excluded.no, state = excluded.state, n = excluded.n, seq = excluded.seq, resumable = excluded.resumable,
    idempotent = excluded.idempotent, arguments = excluded.arguments, at = excluded.at, tries = excluded.tries,
    next_at = excluded.next_at, output_ref = excluded.output_ref, error = excluded.error, meta = excluded.meta,
    input_ref = excluded.input_ref, salt = excluded.salt, output = excluded.output

-- name: save_wait
insert into tenure.wait ({wait})
select {n.wait} from unnest(?::tenure.wait_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id, no) do update set
    name = excluded.name, expires_at = excluded.expires_at, state = excluded.state, outcome = excluded.outcome,
    settled_at = excluded.settled_at, result_ref = excluded.result_ref, wake_at = excluded.wake_at

-- name: save_approval
insert into tenure.approval ({approval})
select {n.approval} from unnest(?::tenure.approval_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id, no) do update set
    tier = excluded.tier, people = excluded.people, requester = excluded.requester, digest = excluded.digest,
    revision = excluded.revision, requested_at = excluded.requested_at, expires_at = excluded.expires_at,
    question_ref = excluded.question_ref, status = excluded.status, votes = excluded.votes,
    decided_at = excluded.decided_at, decided_by = excluded.decided_by, reason_ref = excluded.reason_ref,
    people_in = excluded.people_in, reminded_at = excluded.reminded_at, used_no = excluded.used_no

-- name: save_inbox
insert into tenure.inbox ({inbox})
select {n.inbox} from unnest(?::tenure.inbox_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id, no) do update set wait_no = excluded.wait_no

-- name: save_child
insert into tenure.child ({child})
select {n.child} from unnest(?::tenure.child_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id, child_id) do update set
    state = excluded.state, outcome = excluded.outcome

-- name: save_verdict
insert into tenure.verdict ({verdict})
select {n.verdict} from unnest(?::tenure.verdict_in[]) n where (n.run_id in (select id from ok)) is true

-- name: save_receipt
insert into tenure.receipt ({receipt})
select {n.receipt} from unnest(?::tenure.receipt_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id, no) do update set
    n = excluded.n, call_by = excluded.call_by, state = excluded.state, settled_at = excluded.settled_at,
    settled_by = excluded.settled_by, result_ref = excluded.result_ref, error = excluded.error,
    eligible_at = excluded.eligible_at, wait_no = excluded.wait_no, reversed_run = excluded.reversed_run,
    reversed_no = excluded.reversed_no

-- name: save_run_spend
insert into tenure.run_spend ({run_spend})
select {n.run_spend} from unnest(?::tenure.run_spend_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id) do update set
    spent = excluded.spent, writes = excluded.writes

-- name: save_cost_line
insert into tenure.cost_line ({cost_line})
select {n.cost_line} from unnest(?::tenure.cost_line_in[]) n where (n.run_id in (select id from ok)) is true
on conflict (run_id, no) do update set
    calls = excluded.calls, tokens_in = excluded.tokens_in, tokens_out = excluded.tokens_out,
    micros = excluded.micros

-- name: save_payload
insert into tenure.payload ({payload})
select {n.payload} from unnest(?::tenure.payload_in[]) n where (n.run_id in (select id from ok)) is true

-- name: save_event
insert into tenure.event ({event})
select {n.event} from unnest(?::tenure.event_in[]) n where (n.run_id in (select id from ok)) is true

-- name: save_outbox
insert into tenure.outbox ({outbox})
select {n.outbox} from unnest(?::tenure.outbox_in[]) n where (n.run_id in (select id from ok)) is true

-- name: save_stale_message
insert into tenure.stale_message ({stale_message})
select {n.stale_message} from unnest(?::tenure.stale_message_in[]) n where (n.run_id in (select id from ok)) is true
on conflict do nothing

-- name: save_delivered
-- The second parameter has the runs of this save. The outbox rows of a run that was left out are kept.
delete from tenure.outbox o using unnest(?::tenure.outbox_key_in[]) n
where o.run_id = any (array[n.run_id]) and o.seq = n.seq and o.part = n.part
    and (o.target_id is null or o.target_id <> all(?::bigint[]) or o.target_id in (select id from ok))

-- name: save_cap
insert into tenure.cap ({cap})
select {n.cap} from unnest($1::tenure.cap_in[]) n
on conflict (tenant, scope) do update set
    weight = excluded.weight, max_concurrency = excluded.max_concurrency,
    max_runs_per_min = excluded.max_runs_per_min, max_writes_per_run = excluded.max_writes_per_run

-- name: save_idempotency
-- An existing key refuses the save: another request has it.
insert into tenure.idempotency ({idempotency})
select {n.idempotency} from unnest(?::tenure.idempotency_in[]) n where (n.run_id in (select id from ok)) is true

-- ------------------------------------------------------------------------------------------ retention

-- name: delete_run
-- Parts of a save, too: a finished run is deleted with all rows beneath it. `gone` has the deleted ids.
delete from tenure.run where id = any(?::bigint[]) and finished_at is not null
    and (id <> all(?::bigint[]) or id in (select id from ok)) returning id

-- name: delete_run_spec
-- A spec with an idempotency key is kept: the key has created its run permanently (rule 8).
delete from tenure.run_spec where run_id = any (array(select id from gone)) and idempotency_key is null

-- name: delete_step
delete from tenure.step where run_id = any (array(select id from gone))

-- name: delete_attempt
delete from tenure.attempt where run_id = any (array(select id from gone))

-- name: delete_checkpoint
delete from tenure.checkpoint where run_id = any (array(select id from gone))

-- name: delete_wait
delete from tenure.wait where run_id = any (array(select id from gone))

-- name: delete_approval
delete from tenure.approval where run_id = any (array(select id from gone))

-- name: delete_inbox
delete from tenure.inbox where run_id = any (array(select id from gone))

-- name: delete_child
delete from tenure.child where run_id = any (array(select id from gone))

-- name: delete_verdict
delete from tenure.verdict where run_id = any (array(select id from gone))

-- name: delete_receipt
delete from tenure.receipt where run_id = any (array(select id from gone))

-- name: delete_run_spend
delete from tenure.run_spend where run_id = any (array(select id from gone))

-- name: delete_cost_line
delete from tenure.cost_line where run_id = any (array(select id from gone))

-- name: delete_payload
delete from tenure.payload where run_id = any (array(select id from gone))

-- name: delete_event
delete from tenure.event where run_id = any (array(select id from gone))

-- name: delete_stale_message
delete from tenure.stale_message where run_id = any (array(select id from gone))

-- ----------------------------------------------------------------------------------- schema's version

-- name: schema_applied
select number, name, checksum from tenure.schema_version order by number

-- name: schema_record
insert into tenure.schema_version (number, name, applied_at, checksum)
values ($2, $3, {now}, $4)
