-- The queries of the SQLite store. The PostgreSQL store has the same names with the same meaning.
--
-- Laws:
-- 1. A query that takes rows is run once for each of them: the row's columns are ?1..?k, the scalars follow.
--    (PostgreSQL takes whole columns as arrays. In SQLite a prepared statement per row is as fast as json_each,
--    and its plan is always a search.) A query without rows has its scalars from ?1 on.
-- 2. `select *` is safe because columns are the fields of the row's struct, in order; a test compares them.
-- 3. The run row needs no lock: the whole file has one writer at a time, from `begin immediate` on.
-- 4. One statement writes each table's state. Columns that never change are not in its SET list.

-- -------------------------------------------------------------------------------------- time and locks

-- name: now
-- The store's clock: the host's (?1), never below the last committed time, which is the time of the newest event, or of a later
-- commit without an event (save_time). PostgreSQL: clock_timestamp().
select max(?1, last_at, ifnull((select at from event where rowid = (select max(rowid) from event)), 0)) from meta

-- name: lock_tenants
-- Nothing to do: the transaction is alone. PostgreSQL: advisory transaction locks.
select 0 where ?1 is null and false

-- name: lock_runs
-- PostgreSQL: for update, in id order.
select * from run where id = ?1

-- name: lock_free_runs
-- The same in SQLite: no other process holds a lock. PostgreSQL: for update skip locked.
select * from run where id = ?1

-- name: lock_free_heads
-- The same, for runs that the caller may have cached.
select id, version, head from run where id = ?1

-- ----------------------------------------------------------------------------- what a command needs

-- name: load_specs
-- The specs of runs.
select * from run_spec where run_id = ?1

-- name: load_steps
-- Steps by key.
select * from step where run_id = ?1 and idx = ?2

-- name: load_named_steps
-- Steps by their name in the workflow.
select * from step where run_id = ?1 and name = ?2

-- name: load_open_steps
-- The steps that the end of a run closes. Closed steps are not read. (The first step is not in step_open.)
select * from step where run_id = ?1 and idx = 0 and finished_at is null
union all
select * from step indexed by step_open where run_id = ?1 and idx > 0 and finished_at is null order by idx

-- name: load_attempts
-- Attempts by key.
select * from attempt where run_id = ?1 and idx = ?2 and n = ?3

-- name: load_checkpoints
-- Checkpoints by key.
select * from checkpoint where run_id = ?1 and idx = ?2 and name = ?3

-- name: load_step_checkpoints
-- All checkpoints of a step in the order of recording, for a replay.
select * from checkpoint where run_id = ?1 and idx = ?2 order by no

-- name: load_open_waits
-- The open waits of runs.
select * from wait indexed by wait_open where run_id = ?1 and state = 'open' order by no

-- name: load_waits
-- Waits by key.
select * from wait where run_id = ?1 and no = ?2

-- name: load_event_waits
-- Open waits for an event, oldest first.
select * from wait indexed by wait_event
where run_id = ?1 and name = ?2 and kind = 'event' and state = 'open' order by no

-- name: load_labeled_waits
-- Waits by the label under which a replay finds them.
select * from wait indexed by wait_label where run_id = ?1 and idx = ?2 and label = ?3 order by no

-- name: load_approvals
-- Approvals by key.
select * from approval where run_id = ?1 and no = ?2

-- name: load_buffered
-- Delivered events of a name that no wait has taken, oldest first.
select * from inbox indexed by inbox_buffered where run_id = ?1 and name = ?2 and wait_no is null order by no

-- name: load_inbox_ids
-- Whether an event was delivered before.
select * from inbox where run_id = ?1 and event_id = ?2

-- name: load_open_children
-- Children that have not finished.
select * from child indexed by child_open where run_id = ?1 and state = 'open' order by child_id

-- name: load_children
-- Children by key.
select * from child where run_id = ?1 and child_id = ?2

-- name: load_acts
-- All receipts of an act, in order.
select * from receipt indexed by receipt_act where run_id = ?1 and idx = ?2 and label = ?3 order by no

-- name: load_open_receipts
-- Receipts whose outcome is not known.
select * from receipt indexed by receipt_open where run_id = ?1 and state in ('intent', 'unknown') order by no

-- name: load_receipts
-- One receipt.
select * from receipt where run_id = ?1 and no = ?2

-- name: load_run_spends
-- What a run has spent and written.
select * from run_spend where run_id = ?1

-- name: load_cost_lines
-- What a run has spent, line by line.
select * from cost_line where run_id = ?1

-- name: load_key_holders
-- The receipt that holds a tenant's key, of any run.
select * from receipt where tenant = ?1 and name = ?2 and state in ('intent', 'unknown', 'succeeded')

-- name: load_governance
-- What is in force for a tenant, under a shared lock.
select * from governance where tenant = ?1

-- name: load_people
-- People by id.
select * from person where tenant = ?1 and id = ?2

-- name: load_unconfirmed
-- People who count as one with others.
select id, unconfirmed from person indexed by person_unconfirmed where tenant = ?1 and unconfirmed <> '' order by id

-- name: load_payloads
-- Payloads by key. Payloads that are stored in checkpoints come last: they are found through all checkpoints of the run.
select * from payload where run_id = ?1 and ref = ?2
union all
select run_id, output_ref, salt, output from checkpoint where run_id = ?1 and output_ref = ?2 and salt is not null
limit 1

-- name: load_event_hashes
-- The proof that a commit happened.
select run_id, seq, hash from event where run_id = ?1 and seq = ?2

-- name: find_keys
-- The run that a tenant's idempotency key belongs to.
select * from run_spec where tenant = ?1 and source = ?2 and idempotency_key = ?3

-- name: caps
-- The caps of tenants, of every scope.
select * from cap where tenant = ?1 order by scope

-- ---------------------------------------------------------------------------------------------- claims

-- name: claim_queues
-- The (tenant, workspace) pairs with claimable work in a queue, after a given one. A loose index scan: each
-- hop is a few searches in step_claim, however long the queue is. The store merges the answers of several queues.
-- PostgreSQL compares the pair as a row. SQLite would search for `>=` and step over every equal entry, so
-- a hop asks for the tenant's next workspace, else for the next tenant's first.
with recursive hop (tenant, workspace, n) as (
    select ?2, ?3, 0
    union all
    select
        case
            when exists (
                select 1 from step as s
                where s.queue = ?1 and s.claimable = 1 and s.tenant = hop.tenant and s.workspace > hop.workspace
            ) then hop.tenant
            else (
                select s.tenant from step as s
                where s.queue = ?1 and s.claimable = 1 and s.tenant > hop.tenant
                order by s.tenant limit 1
            )
        end,
        coalesce(
            (
                select s.workspace from step as s
                where s.queue = ?1 and s.claimable = 1 and s.tenant = hop.tenant and s.workspace > hop.workspace
                order by s.workspace limit 1
            ),
            (
                select s.workspace from step as s
                where s.queue = ?1 and s.claimable = 1 and s.tenant > hop.tenant
                order by s.tenant, s.workspace limit 1
            )
        ),
        hop.n + 1
    from hop where hop.tenant is not null and hop.n < ?4
)
select tenant, workspace from hop where tenant is not null and n > 0

-- name: tenant_claim_queues
-- The same for one tenant, after one of its workspaces: such a claim visits no other tenant.
with recursive hop (workspace, n) as (
    select ?3, 0
    union all
    select
        (
            select s.workspace from step as s
            where s.queue = ?1 and s.claimable = 1 and s.tenant = ?2 and s.workspace > hop.workspace
            order by s.workspace limit 1
        ),
        hop.n + 1
    from hop where hop.workspace is not null and hop.n < ?4
)
select ?2, workspace from hop where workspace is not null and n > 0

-- name: usage
-- Live leases of tenants, counted through the index of live leases.
select tenant, workflow, count(*) from attempt
where tenant = ?1 and lease in ('granted', 'active') group by workflow

-- name: candidates
-- The best steps of a claim queue: highest priority, then oldest. ?4 is how many.
select run_id, idx, tenant, workspace, workflow, priority, ready_at from step
where queue = ?1 and tenant = ?2 and workspace = ?3 and claimable = 1
order by priority desc, ready_at, run_id, idx limit ?4

-- name: candidates_behind
-- The same, after a given step (?4..?7): first the steps of its priority, then those of lower priorities. The four columns
-- cannot be compared as one row, because priorities descend.
select * from (
    select run_id, idx, tenant, workspace, workflow, priority, ready_at from step
    where
        queue = ?1 and tenant = ?2 and workspace = ?3 and claimable = 1
        and priority = ?4 and (ready_at, run_id, idx) > (?5, ?6, ?7)
    order by ready_at, run_id, idx limit ?8
)
union all
select * from (
    select run_id, idx, tenant, workspace, workflow, priority, ready_at from step
    where queue = ?1 and tenant = ?2 and workspace = ?3 and claimable = 1 and priority < ?4
    order by priority desc, ready_at, run_id, idx limit ?8
)
order by 6 desc, 7, 1, 2 limit ?8

-- name: key_queue
-- The run that holds a concurrency key, and the run that has waited for it longest. Always one row. A run that waits for the
-- key checks again soon (wake_at <= ?3); a run whose start is delayed does not wait for it yet.
select
    (
        select id from run
        where tenant = ?1 and concurrency_key = ?2 and admitted_at is not null and finished_at is null
    ),
    (
        select id from run
        where
            tenant = ?1 and concurrency_key = ?2 and admitted_at is null and finished_at is null and wake_at <= ?3
        order by created_at, id limit 1
    )

-- name: live_keys
-- Unfinished runs with a concurrency key, except one run.
select id, admitted_at, created_at, cancel_at from run
where tenant = ?1 and concurrency_key = ?2 and finished_at is null and id <> ?3
order by created_at, id

-- name: rates
-- Rated runs admitted after a time, by workflow.
select workflow, count(*), min(admitted_at) from run
where tenant = ?1 and rated = 1 and admitted_at > ?2
group by workflow order by workflow

-- name: beat
-- A heartbeat only extends a lease: the lease is active and unexpired, the message is newer, the expiry is not earlier.
-- ?7 is now; the last message may have been decided at an estimate a little ahead of it. A heartbeat without a
-- number (0, from the process that holds the lease) is never late, and does not change the sequence.
update attempt set beat_at = max(beat_at, ?7), expires_at = ?5, seq = max(seq, ?4), progress = ?6
where
    run_id = ?1 and idx = ?2 and n = ?3
    and lease = 'active' and expires_at > ?7 and (?4 = 0 or seq < ?4) and expires_at <= ?5
returning run_id, idx, n, state

-- --------------------------------------------------------------------------------------------- writing

-- name: save_expected
-- Whether a run still has the expected version and head.
select id from run where id = ?1 and version = ?2 and head = coalesce(?3, head)

-- name: save_new_spec
-- The spec of a new run. Writes nothing if its id or its idempotency key exists (I31). changes() says whether it did: a
-- RETURNING clause costs a third more.
insert into run_spec values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
    ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30
)
on conflict do nothing

-- name: save_new_run
-- A new run, after its spec was accepted. A held concurrency key is an error; an existing id is not.
insert into run values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
    ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37, ?38, ?39, ?40, ?41, ?42, ?43, ?44,
    ?45, ?46, ?47, ?48, ?49, ?50, ?51, ?52
)
on conflict (id) do nothing

-- name: save_run
-- All columns that can change. The version was checked in this transaction. SQLite rewrites the entries of every
-- index with a column in the SET list, changed or not; save_variants.sql has shorter forms
-- of this statement for the usual cases: no indexed column has changed, or only the light ones.
update run set
    status = ?14, version = ?15, head = ?16, event_at = ?17, planned = ?18, admitted_at = ?19,
    started_at = ?20, finished_at = ?21, duration_us = ?22, reason = ?23, paused = ?24, parked = ?25,
    cancel_at = ?26, cancel_reason = ?27, deadline_at = ?28, human_since = ?29, reported_at = ?30,
    sealed_at = ?31, wake_at = ?32, steps_total = ?33, steps_open = ?34, steps_ready = ?35, steps_live = ?36,
    steps_approval = ?37, steps_external = ?38, steps_retry = ?39, steps_bad = ?40, steps_done = ?41,
    checkpoints = ?42, waits_open = ?43, inbox_total = ?44, inbox_buffered = ?45, children_open = ?46,
    next_ref = ?47, next_no = ?48, output_ref = ?49, error_ref = ?50, receipts = ?51, steps_skipped = ?52
where id = ?1

-- name: save_run_spec
-- Only labels, metadata, an erased salt, the involved people and the statement that its end was reported can change.
-- (?30 is the last column, so that a whole row can be bound.)
update run_spec set labels = ?20, metadata = ?21, salt = ?22, involved = ?27, reported_stated_by = ?29, reported_stated_at = ?30
where run_id = ?1

-- name: save_step
-- The definition of a step never changes. Its state does, and so do its dependents, when steps are added later.
insert into step values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
    ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37, ?38, ?39, ?40, ?41, ?42, ?43, ?44
)
on conflict (run_id, idx) do update set
    dependents = excluded.dependents, state = excluded.state, needs_left = excluded.needs_left,
    attempt = excluded.attempt,
    charged = excluded.charged, claimable = excluded.claimable, ready_at = excluded.ready_at,
    cancel_by = excluded.cancel_by, wait_no = excluded.wait_no, waits_on = excluded.waits_on,
    recorded = excluded.recorded, unsafe = excluded.unsafe, finished_at = excluded.finished_at,
    reason = excluded.reason, output_ref = excluded.output_ref, error_ref = excluded.error_ref,
    last_error = excluded.last_error, eligible_at = excluded.eligible_at, wake_at = excluded.wake_at,
    resolution = excluded.resolution, input_ref = excluded.input_ref, idempotency_key = excluded.idempotency_key,
    reuse_key = excluded.reuse_key, reused_run = excluded.reused_run, reused_step = excluded.reused_step

-- name: save_attempt
-- A heartbeat may have written since the decision: its expiry, time, sequence number and progress are kept.
insert into attempt values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20
)
on conflict (run_id, idx, n) do update set
    timeout_at = excluded.timeout_at, state = excluded.state, lease = excluded.lease,
    expires_at = max(expires_at, excluded.expires_at), beat_at = max(beat_at, excluded.beat_at),
    seq = max(seq, excluded.seq), last_message = excluded.last_message, answer = excluded.answer,
    progress = iif(excluded.beat_at < beat_at, progress, excluded.progress),
    ended_at = excluded.ended_at, reason = excluded.reason, cost = excluded.cost

-- name: save_checkpoint
-- Written when it starts, and again when it ends. (The statement is short because apsw reads its text for every row: with
-- `on conflict ... do update set` it costs a third more.)
replace into checkpoint values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19
)

-- name: save_wait
-- Opened, then settled or closed.
insert into wait values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15
)
on conflict (run_id, no) do update set
    name = excluded.name, expires_at = excluded.expires_at, state = excluded.state, outcome = excluded.outcome,
    settled_at = excluded.settled_at, result_ref = excluded.result_ref, wake_at = excluded.wake_at

-- name: save_approval
-- A revision may ask again.
insert into approval values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19
)
on conflict (run_id, no) do update set
    tier = excluded.tier, people = excluded.people, requester = excluded.requester, digest = excluded.digest,
    revision = excluded.revision, requested_at = excluded.requested_at, expires_at = excluded.expires_at,
    question_ref = excluded.question_ref, status = excluded.status, votes = excluded.votes,
    decided_at = excluded.decided_at, decided_by = excluded.decided_by, reason_ref = excluded.reason_ref,
    people_in = excluded.people_in, reminded_at = excluded.reminded_at, used_no = excluded.used_no

-- name: save_inbox
-- Delivered, then taken.
insert into inbox values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9
)
on conflict (run_id, no) do update set
    wait_no = excluded.wait_no

-- name: save_child
-- Started, then finished.
insert into child values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7
)
on conflict (run_id, child_id) do update set
    state = excluded.state, outcome = excluded.outcome

-- name: save_verdict
-- Only ever inserted.
insert into verdict values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21
)

-- name: save_receipt
-- Intended, then settled, perhaps reversed.
insert into receipt values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
    ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33
)
on conflict (run_id, no) do update set
    n = excluded.n, call_by = excluded.call_by, state = excluded.state, settled_at = excluded.settled_at,
    settled_by = excluded.settled_by, result_ref = excluded.result_ref, error = excluded.error,
    eligible_at = excluded.eligible_at, wait_no = excluded.wait_no, reversed_run = excluded.reversed_run,
    reversed_no = excluded.reversed_no

-- name: save_run_spend
-- Created with the first act or cost, then changed.
insert into run_spend values (
    ?1, ?2, ?3
)
on conflict (run_id) do update set
    spent = excluded.spent, writes = excluded.writes

-- name: save_cost_line
-- Created with the first cost of its kind, then changed.
insert into cost_line values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12
)
on conflict (run_id, no) do update set
    calls = excluded.calls, tokens_in = excluded.tokens_in, tokens_out = excluded.tokens_out,
    micros = excluded.micros

-- name: save_payload
-- Only ever inserted.
insert into payload values (
    ?1, ?2, ?3, ?4
)

-- name: save_event
-- Only ever inserted: a second event of the same number is an error.
insert into event values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9
)

-- name: save_outbox
-- Only ever inserted, and deleted when delivered.
insert into outbox values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7
)

-- name: save_stale_message
-- Recorded once.
insert into stale_message values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7
)
on conflict do nothing

-- name: save_delivered
-- The commit that delivers an outbox row deletes it. ?4 has the runs that this save left out, as JSON: their rows are
-- kept.
delete from outbox
where
    run_id = ?1 and seq = ?2 and part = ?3
    and (target_id is null or target_id not in (select value from json_each(?4)))

-- name: save_cap
-- Insert or replace.
insert into cap values (
    ?1, ?2, ?3, ?4, ?5, ?6
)
on conflict (tenant, scope) do update set
    weight = excluded.weight, max_concurrency = excluded.max_concurrency,
    max_runs_per_min = excluded.max_runs_per_min, max_writes_per_run = excluded.max_writes_per_run

-- name: save_idempotency
-- An existing key refuses the save: another request has it.
insert into idempotency values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14
)

-- -------------------------------------------------------------------------------------------- deleting

-- name: delete_run
-- Only a finished run. If it answers the run, the rows beneath it are deleted, too.
delete from run where id = ?1 and finished_at is not null returning id

-- name: delete_run_spec
-- Beneath a deleted run. A spec with an idempotency key is kept: the key has created its run permanently (rule 8).
delete from run_spec where run_id = ?1 and idempotency_key is null

-- name: delete_step
-- Beneath a deleted run.
delete from step where run_id = ?1

-- name: delete_attempt
-- Beneath a deleted run.
delete from attempt where run_id = ?1

-- name: delete_checkpoint
-- Beneath a deleted run.
delete from checkpoint where run_id = ?1

-- name: delete_wait
-- Beneath a deleted run.
delete from wait where run_id = ?1

-- name: delete_approval
-- Beneath a deleted run.
delete from approval where run_id = ?1

-- name: delete_inbox
-- Beneath a deleted run.
delete from inbox where run_id = ?1

-- name: delete_child
-- Beneath a deleted run.
delete from child where run_id = ?1

-- name: delete_verdict
-- Beneath a deleted run.
delete from verdict where run_id = ?1

-- name: delete_receipt
-- Beneath a deleted run.
delete from receipt where run_id = ?1

-- name: delete_run_spend
-- Beneath a deleted run.
delete from run_spend where run_id = ?1

-- name: delete_cost_line
-- Beneath a deleted run.
delete from cost_line where run_id = ?1

-- name: delete_payload
-- Beneath a deleted run.
delete from payload where run_id = ?1

-- name: delete_event
-- Beneath a deleted run.
delete from event where run_id = ?1

-- name: delete_stale_message
-- Beneath a deleted run.
delete from stale_message where run_id = ?1

-- ----------------------------------------------------------------------------------------- the sweeper

-- name: due
-- Expired timers, earliest first.
select * from (
    select 'run', id, 0, tenant, admitted_at is not null, wake_at from run
    where wake_at <= ?1 order by wake_at limit ?2
)
union all
select * from (
    select 'step', s.run_id, s.idx, s.tenant, r.admitted_at is not null, s.wake_at
    from step as s cross join run as r on r.id = s.run_id
    where s.wake_at <= ?1 order by s.wake_at limit ?2
)
union all
select * from (
    select 'wait', w.run_id, w.no, r.tenant, r.admitted_at is not null, w.wake_at
    from wait as w cross join run as r on r.id = w.run_id
    where w.wake_at <= ?1 order by w.wake_at limit ?2
)
order by 6, 2, 1, 3 limit ?2

-- name: next_wake
-- The time of the next timer.
select at from (
    select min(at) as at from (
        select min(wake_at) as at from run where wake_at is not null
        union all
        select min(wake_at) from step where wake_at is not null
        union all
        select min(wake_at) from wait where wake_at is not null
    )
)
where at is not null

-- name: outbox_pending
-- Outbox rows, oldest first.
select * from outbox where created_at < ?1 order by created_at, run_id, seq, part limit ?2

-- -------------------------------------------------------------------------------------------- listings

-- name: get_run
-- One run.
select * from run where id = ?1

-- name: get_spec
-- One run's spec.
select * from run_spec where run_id = ?1

-- name: runs_by_status
-- Newest first.
select * from run where tenant = ?1 and status = ?2 and created_at < ?3 order by created_at desc, id desc limit ?4

-- name: approvals_open
-- Open questions to people, oldest first.
select * from approval where tenant = ?1 and status = 'requested' order by requested_at, run_id, no limit ?2

-- name: run_ids_after
-- Every run, page by page.
select id from run where id > ?1 order by id limit ?2

-- name: reusable_steps
-- Steps that ran and succeeded under a key, newest first.
select * from step
where tenant = ?1 and reuse_key = ?2 and state = 'succeeded' and attempt > 0
order by finished_at desc, run_id desc limit ?3

-- name: reused_steps_of
-- The steps of a run that have the result of an earlier step.
select * from step where run_id = ?1 and reused_run is not null order by idx

-- name: steps_of
-- All of one run, in key order.
select * from step where run_id = ?1 order by idx

-- name: attempts_of
-- All of one run, in key order.
select * from attempt where run_id = ?1 order by idx, n

-- name: checkpoints_of
-- All of one run, in key order.
select * from checkpoint where run_id = ?1 order by idx, name

-- name: waits_of
-- All of one run, in key order.
select * from wait where run_id = ?1 order by no

-- name: approvals_of
-- All of one run, in key order.
select * from approval where run_id = ?1 order by no

-- name: inbox_of
-- All of one run, in key order.
select * from inbox where run_id = ?1 order by no

-- name: children_of
-- All of one run, in key order.
select * from child where run_id = ?1 order by child_id

-- name: verdicts_of
-- All of one run, in key order.
select * from verdict where run_id = ?1 order by no

-- name: receipts_of
-- All of one run, in key order.
select * from receipt where run_id = ?1 order by no

-- name: run_spends_of
-- All of one run, in key order.
select * from run_spend where run_id = ?1 order by run_id

-- name: cost_lines_of
-- All of one run, in key order.
select * from cost_line where run_id = ?1 order by no

-- name: payloads_of
-- All of one run, in key order, including payloads that are stored in checkpoints.
select * from payload where run_id = ?1
union all
select run_id, output_ref, salt, output from checkpoint where run_id = ?1 and salt is not null
order by ref

-- name: events_of
-- All of one run, in key order.
select * from event where run_id = ?1 order by seq

-- name: outbox_of
-- All of one run, in key order.
select * from outbox where run_id = ?1 order by seq, part

-- name: events_after
-- A run's history after an event.
select * from event where run_id = ?1 and seq > ?2 order by seq limit ?3

-- name: payload
-- One payload, also if it is stored in a checkpoint; see load_payloads.
select * from payload where run_id = ?1 and ref = ?2
union all
select run_id, output_ref, salt, output from checkpoint where run_id = ?1 and output_ref = ?2 and salt is not null
limit 1

-- name: all_caps
-- Every cap.
select * from cap order by tenant, scope

-- ---------------------------------------------------------------------------------------------- doctor

-- name: live_usage
-- Live leases of all tenants.
select tenant, workflow, count(*) from attempt where lease in ('granted', 'active')
group by tenant, workflow order by tenant, workflow

-- name: key_holders_twice
-- Runs that share a concurrency key while both are admitted and open; the unique index run_key_held forbids it.
select id from run
where
    concurrency_key is not null and admitted_at is not null and finished_at is null
    and (tenant, concurrency_key) in (
        select tenant, concurrency_key from run
        where concurrency_key is not null and admitted_at is not null and finished_at is null
        group by tenant, concurrency_key having count(*) > 1
    )
order by id

-- name: orphan_rows
-- Run ids of rows beneath a run that does not exist.
select run_id from (
    select run_id from run_spec where idempotency_key is null
    union
    select run_id from step
    union
    select run_id from attempt
    union
    select run_id from checkpoint
    union
    select run_id from wait
    union
    select run_id from approval
    union
    select run_id from inbox
    union
    select run_id from child
    union
    select run_id from payload
    union
    select run_id from event
    union
    select run_id from stale_message
    union
    select run_id from log_line
    union
    select run_id from log_chunk
    union
    select run_id from upload
    union
    select run_id from upload_part
    union
    select run_id from test_report
    union
    select run_id from verdict
    union
    select run_id from receipt
    union
    select run_id from run_spend
    union
    select run_id from cost_line
)
where run_id not in (select id from run) order by run_id

-- name: lost_specs
-- Runs without a spec, or with a spec of another tenant.
select r.id from run as r left join run_spec as s on s.run_id = r.id
where s.run_id is null or s.tenant <> r.tenant order by r.id

-- name: sizes
-- Each table and its number of rows.
select 'run', count(*) from run
union all
select 'run_spec', count(*) from run_spec
union all
select 'step', count(*) from step
union all
select 'attempt', count(*) from attempt
union all
select 'checkpoint', count(*) from checkpoint
union all
select 'wait', count(*) from wait
union all
select 'approval', count(*) from approval
union all
select 'inbox', count(*) from inbox
union all
select 'child', count(*) from child
union all
select 'verdict', count(*) from verdict
union all
select 'receipt', count(*) from receipt
union all
select 'run_spend', count(*) from run_spend
union all
select 'cost_line', count(*) from cost_line
union all
select 'payload', count(*) from payload
union all
select 'event', count(*) from event
union all
select 'outbox', count(*) from outbox
union all
select 'stale_message', count(*) from stale_message
union all
select 'cap', count(*) from cap
union all
select 'idempotency', count(*) from idempotency
union all
select 'schedule', count(*) from schedule
union all
select 'worker', count(*) from worker
union all
select 'worker_process', count(*) from worker_process
union all
select 'workflow', count(*) from workflow
union all
select 'log_line', count(*) from log_line
union all
select 'log_chunk', count(*) from log_chunk
union all
select 'upload', count(*) from upload
union all
select 'upload_part', count(*) from upload_part
union all
select 'cache_entry', count(*) from cache_entry
union all
select 'test_report', count(*) from test_report
union all
select 'test_history', count(*) from test_history
union all
select 'file_deletion', count(*) from file_deletion

-- ------------------------------------------------------------------------------------------ the schema

-- name: schema_applied
-- The migrations that were applied.
select number, name, checksum from schema_version order by number

-- name: schema_record
-- A migration that was applied.
insert into schema_version (number, name, applied_at, checksum) values (?1, ?2, ?3, ?4)
