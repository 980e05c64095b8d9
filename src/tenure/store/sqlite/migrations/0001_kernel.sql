-- The kernel's tables. Names and columns are those of tenure.kernel.run_rows, in the same order.
--
-- Laws:
-- 1. Times are whole microseconds; booleans are 0 or 1; every table is strict.
-- 2. A CHECK or a partial unique index enforces each invariant that can be checked on one row or one index.
-- 3. The columns that every command writes are in no index: run.version, head, event_at and the counters;
--    attempt.expires_at, beat_at and seq.
-- 4. There are no foreign keys: a run's rows are written and deleted in the run's own commits, and the doctor looks
--    for orphans.
-- 5. Tables that commands write all the time (run, step, attempt, payload, event) have a rowid: new rows are appended, and
--    their keys are close together in the index. Checkpoints are stored in key order, next to the others of their step. Run
--    ids ascend, so new checkpoints are near the end too, and the commit of one writes a page less. Tables that are seldom
--    written are also stored in key order.
-- 6. A row is closed if finished_at is set, which the CHECKs tie to the state: partial indexes stay cheap to test.

create table schema_version (
    number integer primary key,
    name text not null unique,
    applied_at integer not null,
    checksum text not null
) strict;

-- One row: the newest time of any commit. The clock never goes below it. The other columns anchor the file's time to one boot of
-- the machine (tenure.store.sqlite.file_clock): the boot, the file's time less the time since boot, and the time since boot when a
-- process last agreed.
create table meta (
    one integer primary key check (one = 1),
    last_at integer not null,
    boot text,
    boot_offset integer,
    boot_confirmed integer,
    constraint meta_boot_whole check ((boot is null) = (boot_offset is null) and (boot is null) = (boot_confirmed is null))
) strict;

insert into meta (one, last_at) values (1, 0);

-- ------------------------------------------------------------------------------------------------ run

create table run (
    id integer primary key,
    tenant text not null,
    workspace text not null,
    workflow text not null,
    code_version text not null,
    profile text not null,
    repo text,
    concurrency_key text,
    rated integer not null check (rated in (0, 1)),
    linked integer not null check (linked in (0, 1)),
    timeout_us integer,
    created_at integer not null,
    trace text,
    status text not null,
    version integer not null,
    head blob not null,
    event_at integer not null,
    planned integer not null check (planned in (0, 1)),
    admitted_at integer,
    started_at integer,
    finished_at integer,
    duration_us integer,
    reason text,
    paused integer not null check (paused in (0, 1)),
    parked text,
    cancel_at integer,
    cancel_reason text,
    deadline_at integer,
    human_since integer,
    reported_at integer,
    sealed_at integer,
    wake_at integer,
    steps_total integer not null,
    steps_open integer not null,
    steps_ready integer not null,
    steps_live integer not null,
    steps_approval integer not null,
    steps_external integer not null,
    steps_retry integer not null,
    steps_bad integer not null,
    steps_done integer not null,
    checkpoints integer not null,
    waits_open integer not null,
    inbox_total integer not null,
    inbox_buffered integer not null,
    children_open integer not null,
    next_ref integer not null,
    next_no integer not null,
    output_ref integer,
    error_ref integer,
    receipts integer not null,
    steps_skipped integer not null,
    constraint run_status_known check (
        case status
            when 'created' then finished_at is null
            when 'planning' then finished_at is null
            when 'plan_failed' then finished_at is null
            when 'queued' then finished_at is null
            when 'running' then finished_at is null
            when 'waiting_approval' then finished_at is null
            when 'waiting_external' then finished_at is null
            when 'retry_wait' then finished_at is null
            when 'canceling' then finished_at is null
            when 'succeeded' then finished_at is not null
            when 'failed' then finished_at is not null
            when 'canceled' then finished_at is not null
            when 'timed_out' then finished_at is not null
            else 0
        end
    ),
    constraint run_terminal_is_complete check (
        (finished_at is null) = (reason is null) and (finished_at is null) = (duration_us is null)
    ),
    constraint run_terminal_has_no_timer check (finished_at is null or wake_at is null),
    constraint run_times_in_order check (
        started_at >= created_at and finished_at >= created_at and finished_at >= started_at
    ),
    constraint run_sealed_when_finished check (sealed_at is null or finished_at is not null),
    constraint run_counters check (
        min(
            version, steps_total, steps_open, steps_ready, steps_live, steps_approval, steps_external, steps_retry,
            steps_bad, steps_done, checkpoints, waits_open, inbox_total, inbox_buffered, children_open,
            receipts, steps_skipped
        ) >= 0
    )
) strict;

-- These indexes ascend: read backwards, they give the newest run first, and the id breaks ties in the same order.
create index run_by_status on run (tenant, status, created_at);
create index run_by_repo on run (tenant, repo, created_at) where repo is not null;
create index run_newest on run (tenant, created_at);
create index run_wake on run (wake_at) where wake_at is not null;
create index run_rate on run (tenant, admitted_at) where rated = 1;
create index run_key_open on run (tenant, concurrency_key, created_at)
where concurrency_key is not null and finished_at is null;
create unique index run_key_held on run (tenant, concurrency_key)
where concurrency_key is not null and admitted_at is not null and finished_at is null;

create table run_spec (
    run_id integer primary key,
    tenant text not null,
    source text not null,
    idempotency_key text,
    request_hash blob not null,
    trigger_type text not null,
    trigger_ref text,
    requester text not null,
    priority integer not null,
    concurrency_mode text not null check (concurrency_mode in ('queue', 'supersede')),
    not_before integer,
    wall_clock integer not null check (wall_clock in (0, 1)),
    input_ref integer,
    parent_id integer,
    parent_no integer,
    resumed_from integer,
    resume_count integer not null check (resume_count >= 0),
    rerun_of integer,
    attempt_no integer not null check (attempt_no >= 0),
    labels text not null,
    metadata text not null,
    salt blob not null,
    undo_of integer,
    budget integer,
    currency text not null,
    compensate integer not null check (compensate in (0, 1)),
    involved text not null,
    vcs_target text,
    reported_stated_by text,
    reported_stated_at integer
) strict;

-- I31: one run per tenant, source and key.
create unique index run_spec_key on run_spec (tenant, source, idempotency_key) where idempotency_key is not null;

-- ----------------------------------------------------------------------------------- steps and leases

create table step (
    run_id integer not null,
    idx integer not null,
    name text not null,
    kind text not null,
    tool text not null,
    queue text not null,
    tenant text not null,
    workspace text not null,
    workflow text not null,
    priority integer not null,
    required integer not null check (required in (0, 1)),
    dependents text not null,
    max_attempts integer not null check (max_attempts >= 1),
    timeout_us integer,
    lease_us integer not null,
    idempotency_key text not null,
    input_ref integer,
    spec text,
    created_at integer not null,
    state text not null,
    needs_left integer not null,
    attempt integer not null,
    charged integer not null,
    claimable integer not null check (claimable in (0, 1)),
    ready_at integer,
    cancel_by integer,
    wait_no integer,
    waits_on text not null,
    recorded integer not null check (recorded in (0, 1)),
    unsafe integer not null,
    finished_at integer,
    reason text,
    output_ref integer,
    error_ref integer,
    last_error text,
    eligible_at integer,
    wake_at integer,
    template_ref integer,
    condition text,
    resolution text not null,
    reuse text,
    reuse_key blob,
    reused_run integer,
    reused_step text,
    primary key (run_id, idx),
    constraint step_state_known check (
        case state
            when 'pending' then finished_at is null
            when 'ready' then finished_at is null
            when 'leased' then finished_at is null
            when 'starting' then finished_at is null
            when 'running' then finished_at is null
            when 'uploading' then finished_at is null
            when 'waiting_approval' then finished_at is null
            when 'waiting_external' then finished_at is null
            when 'retry_wait' then finished_at is null
            when 'canceling' then finished_at is null
            when 'succeeded' then finished_at is not null
            when 'failed' then finished_at is not null
            when 'canceled' then finished_at is not null
            when 'timed_out' then finished_at is not null
            when 'skipped' then finished_at is not null
            else 0
        end
    ),
    constraint step_kind_known check (
        case kind when 'work' then 1 when 'body' then 1 when 'approval' then 1 when 'wait' then 1 when 'plan' then 1 else 0 end
    ),
    constraint step_terminal_is_complete check ((finished_at is null) = (reason is null)),
    constraint step_terminal_has_no_timer check (finished_at is null or wake_at is null),
    constraint step_times_in_order check (finished_at >= created_at),
    -- I45: gates are never leased.
    constraint step_claimable check (
        claimable = 0 or (state = 'ready' and (kind = 'work' or kind = 'body' or kind = 'plan') and ready_at is not null)
    ),
    constraint step_resolution_known check (resolution = '' or resolution = 'due' or resolution = 'each' or resolution = 'skip'),
    constraint step_resolution_has_template check (resolution in ('', 'skip') or template_ref is not null or reuse is not null),
    -- A step with the result of an earlier one succeeded without an attempt, and names that step.
    constraint step_reused_never_ran check (
        (reused_run is null) = (reused_step is null)
        and (reused_run is null or (state = 'succeeded' and attempt = 0 and reuse_key is not null))
    ),
    constraint step_reuse_key_has_terms check (reuse_key is null or reuse is not null),
    -- I61: a step that must be resolved first, or is skipped, is never leased.
    constraint step_unresolved_is_not_claimable check (claimable = 0 or resolution in ('', 'each')),
    constraint step_counters check (min(needs_left, attempt, charged, unsafe) >= 0)
) strict;

create unique index step_name on step (run_id, name);
create index step_claim on step (queue, tenant, workspace, priority desc, ready_at, run_id, idx) where claimable = 1;
create index step_wake on step (wake_at) where wake_at is not null;
-- Results that may be used again.
create index step_reuse on step (tenant, reuse_key) where reuse_key is not null;
-- The first step is found by its key. Most runs have no other step.
create index step_open on step (run_id, idx) where finished_at is null and idx > 0;

create table attempt (
    run_id integer not null,
    idx integer not null,
    n integer not null check (n >= 1),
    tenant text not null,
    workflow text not null,
    owner text not null,
    granted_at integer not null,
    timeout_at integer,
    session integer,
    state text not null,
    lease text not null,
    expires_at integer not null,
    beat_at integer not null,
    seq integer not null check (seq >= 0),
    last_message text not null,
    answer blob not null,
    progress text not null,
    ended_at integer,
    reason text,
    cost text,
    primary key (run_id, idx, n),
    constraint attempt_state_known check (
        case state
            when 'created' then ended_at is null
            when 'queued' then ended_at is null
            when 'leased' then ended_at is null
            when 'starting' then ended_at is null
            when 'running' then ended_at is null
            when 'uploading' then ended_at is null
            when 'canceling' then ended_at is null
            when 'succeeded' then ended_at is not null
            when 'failed' then ended_at is not null
            when 'timed_out' then ended_at is not null
            when 'stale' then ended_at is not null
            when 'canceled' then ended_at is not null
            when 'suspended' then ended_at is not null
            when 'released' then ended_at is not null
            else 0
        end
    ),
    constraint attempt_lease_known check (
        case lease
            when 'granted' then ended_at is null
            when 'active' then ended_at is null
            when 'completed' then ended_at is not null
            when 'released' then ended_at is not null
            when 'expired' then ended_at is not null
            when 'revoked' then ended_at is not null
            when 'canceled' then ended_at is not null
            else 0
        end
    ),
    constraint attempt_times_in_order check (
        ended_at >= granted_at and expires_at >= granted_at and beat_at >= granted_at
    )
) strict;

-- I22: one live lease per step. The tenant and workflow of its run come first, because caps count live leases by them.
create unique index attempt_live on attempt (tenant, workflow, run_id, idx) where lease in ('granted', 'active');

create table checkpoint (
    run_id integer not null,
    idx integer not null,
    name text not null,
    no integer not null,
    state text not null,
    n integer not null,
    seq integer not null,
    resumable integer not null check (resumable in (0, 1)),
    idempotent integer not null check (idempotent in (0, 1)),
    arguments blob not null,
    at integer not null,
    tries integer not null check (tries >= 0),
    next_at integer,
    output_ref integer,
    error text,
    meta text,
    input_ref integer,
    salt blob,
    output blob,
    primary key (run_id, idx, name),
    constraint checkpoint_state_known check (
        case state when 'done' then 1 when 'started' then 1 when 'failed' then 1 else 0 end
    )
) strict, without rowid;

-- Messages of ended leases: each type is recorded once per lease.
create table stale_message (
    run_id integer not null,
    idx integer not null,
    n integer not null,
    message text not null,
    seq integer not null,
    owner text not null,
    at integer not null,
    primary key (run_id, idx, n, message)
) strict, without rowid;

-- --------------------------------------------------------------------------------- waits and messages

create table wait (
    run_id integer not null,
    no integer not null,
    idx integer not null,
    kind text not null,
    name text not null,
    label text not null,
    gate integer not null check (gate in (0, 1)),
    fatal integer not null check (fatal in (0, 1)),
    opened_at integer not null,
    expires_at integer,
    state text not null,
    outcome text,
    settled_at integer,
    result_ref integer,
    wake_at integer,
    primary key (run_id, no),
    constraint wait_state_known check (
        case state
            when 'open' then outcome is null and settled_at is null
            when 'settled' then outcome is not null and settled_at is not null and wake_at is null
            when 'closed' then wake_at is null
            else 0
        end
    ),
    constraint wait_times_in_order check (settled_at >= opened_at)
) strict, without rowid;

create index wait_label on wait (run_id, idx, label);
create index wait_open on wait (run_id, no) where state = 'open';
create index wait_event on wait (run_id, name, no) where kind = 'event' and state = 'open';
create index wait_wake on wait (wake_at) where wake_at is not null;

create table approval (
    run_id integer not null,
    no integer not null,
    tenant text not null,
    tier text not null,
    people integer not null check (people >= 1),
    requester text not null,
    digest blob not null,
    revision integer not null check (revision >= 0),
    requested_at integer not null,
    expires_at integer,
    question_ref integer,
    status text not null,
    votes text not null,
    decided_at integer,
    decided_by text,
    reason_ref integer,
    people_in text not null,
    reminded_at integer,
    used_no integer,
    primary key (run_id, no),
    -- I42: only an approved approval is used.
    constraint approval_used_when_approved check (used_no is null or status = 'approved'),
    -- I43: the requester neither approves nor decides, and an approval that is used has enough approvers.
    constraint approval_requester_apart check (instr(' ' || votes || ' ', ' ' || requester || ' ') = 0),
    constraint approval_decided_apart check (decided_by is null or decided_by <> requester),
    constraint approval_used_by_enough check (
        used_no is null or (votes <> '' and length(votes) - length(replace(votes, ' ', '')) + 1 >= people)),
    -- I44: a decided approval has exactly one decision, with its time and person.
    constraint approval_status_known check (
        case status
            when 'requested' then decided_at is null and decided_by is null
            when 'approved' then decided_at is not null and decided_by is not null
            when 'rejected' then decided_at is not null and decided_by is not null
            when 'expired' then 1
            when 'canceled' then 1
            else 0
        end
    )
) strict, without rowid;

create index approval_open on approval (tenant, requested_at) where status = 'requested';

create table inbox (
    run_id integer not null,
    no integer not null,
    name text not null,
    event_id text not null,
    source text not null,
    payload_ref integer,
    received_at integer not null,
    wait_no integer,
    senders text not null,
    primary key (run_id, no)
) strict, without rowid;

create unique index inbox_event on inbox (run_id, event_id);
create index inbox_buffered on inbox (run_id, name, no) where wait_no is null;

create table child (
    run_id integer not null,
    child_id integer not null,
    idx integer not null,
    on_close text not null check (on_close in ('cancel', 'leave', 'wait')),
    wait_no integer not null,
    state text not null,
    outcome text,
    primary key (run_id, child_id)
) strict, without rowid;

create index child_open on child (run_id, child_id) where state = 'open';

-- ------------------------------------------------------------------------- history, payloads, outbox

create table payload (
    run_id integer not null,
    ref integer not null,
    salt blob not null,
    body blob not null,
    primary key (run_id, ref)
) strict;

create table event (
    run_id integer not null,
    seq integer not null check (seq >= 1),
    kind text not null,
    at integer not null,
    actor text not null,
    initiator text not null,
    cause text not null,
    body blob not null,
    hash blob not null,
    primary key (run_id, seq)
) strict;

create table outbox (
    run_id integer not null,
    seq integer not null,
    part integer not null,
    topic text not null,
    target_id integer,
    body blob not null,
    created_at integer not null,
    primary key (run_id, seq, part)
) strict, without rowid;

create index outbox_oldest on outbox (created_at);

-- ------------------------------------------------------------------------------------ tenants and keys

create table cap (
    tenant text not null,
    scope text not null,
    weight integer not null check (weight >= 1),
    max_concurrency integer check (max_concurrency >= 0),
    max_runs_per_min integer check (max_runs_per_min >= 0),
    max_writes_per_run integer check (max_writes_per_run >= 0),
    primary key (tenant, scope)
) strict, without rowid;

create table idempotency (
    tenant text not null,
    source text not null,
    name text not null,
    run_id integer,
    status text not null,
    request_hash blob not null,
    response blob,
    error text,
    created_at integer not null,
    updated_at integer not null,
    expires_at integer not null,
    lock_expires_at integer,
    attempts integer not null check (attempts >= 1),
    holder text,
    primary key (tenant, source, name),
    constraint idempotency_status_known check (
        case status when 'processing' then 1 when 'completed' then 1 when 'failed' then 1 else 0 end
    ),
    constraint idempotency_times_in_order check (updated_at >= created_at)
) strict;

create index idempotency_expiry on idempotency (status, expires_at);
