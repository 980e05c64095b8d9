-- The kernel's tables. Names and columns are those of tenure.kernel.run_rows, in the same order.
--
-- Times are whole microseconds since 1970 (bigint). Text has the collation "C", so that both databases
-- compare bytes and sort alike. There are no foreign keys: a run's rows are written in the commit that
-- locks the run, a check per row would cost a tenth of that commit, and the doctor looks for orphans.
-- run, step and attempt are updated in place: the free space of their pages (fillfactor) keeps an update
-- that changes no indexed column out of the indexes (HOT). So run.version, head, event_at, the counters
-- and the columns that a heartbeat writes are in no index.

-- States and counters are domains, because the check of a domain is read from the catalog once per connection, and the
-- check of a table once per statement. For a save of a single run, that was a tenth of the server's work.

create domain counter as integer check (value >= 0);
create domain run_status as text collate "C" check (value in (
    'created', 'planning', 'plan_failed', 'queued', 'running', 'waiting_approval', 'waiting_external', 'retry_wait',
    'canceling', 'succeeded', 'failed', 'canceled', 'timed_out'));
create domain step_kind as text collate "C" check (value in ('work', 'body', 'approval', 'wait', 'plan'));
create domain step_state as text collate "C" check (value in (
    'pending', 'ready', 'leased', 'starting', 'running', 'uploading', 'waiting_approval', 'waiting_external',
    'retry_wait', 'canceling', 'succeeded', 'failed', 'canceled', 'timed_out', 'skipped'));
create domain attempt_state as text collate "C" check (value in (
    'created', 'queued', 'leased', 'starting', 'running', 'uploading', 'canceling', 'succeeded', 'failed',
    'timed_out', 'stale', 'canceled', 'suspended', 'released'));
create domain lease_state as text collate "C" check (value in (
    'granted', 'active', 'completed', 'released', 'expired', 'revoked', 'canceled'));
create domain checkpoint_state as text collate "C" check (value in ('started', 'done', 'failed'));
create domain idempotency_status as text collate "C" check (value in (
    'processing', 'completed', 'failed'));

create table schema_version (
    number integer primary key,
    name text not null unique,
    applied_at bigint not null,
    checksum text not null
);

-- ------------------------------------------------------------------------------------------------ run

create table run (
    id bigint primary key,
    tenant text collate "C" not null,
    workspace text collate "C" not null,
    workflow text collate "C" not null,
    code_version text collate "C" not null,
    profile text collate "C" not null,
    repo text collate "C",
    concurrency_key text collate "C",
    rated boolean not null,
    linked boolean not null,
    timeout_us bigint,
    created_at bigint not null,
    trace text collate "C",
    status run_status not null,
    version counter not null,
    head bytea not null,
    event_at bigint not null,
    planned boolean not null,
    admitted_at bigint,
    started_at bigint,
    finished_at bigint,
    duration_us bigint,
    reason text collate "C",
    paused boolean not null,
    parked text collate "C",
    cancel_at bigint,
    cancel_reason text collate "C",
    deadline_at bigint,
    human_since bigint,
    reported_at bigint,
    sealed_at bigint,
    wake_at bigint,
    steps_total counter not null,
    steps_open counter not null,
    steps_ready counter not null,
    steps_live counter not null,
    steps_approval counter not null,
    steps_external counter not null,
    steps_retry counter not null,
    steps_bad counter not null,
    steps_done counter not null,
    checkpoints counter not null,
    waits_open counter not null,
    inbox_total counter not null,
    inbox_buffered counter not null,
    children_open counter not null,
    next_ref counter not null,
    next_no counter not null,
    output_ref integer,
    error_ref integer,
    receipts counter not null,
    steps_skipped counter not null,
    constraint run_status_known check (
        (status in ('succeeded', 'failed', 'canceled', 'timed_out')) = (finished_at is not null)),
    constraint run_terminal_is_complete check (
        (finished_at is null) = (reason is null) and (finished_at is null) = (duration_us is null)),
    constraint run_terminal_has_no_timer check (finished_at is null or wake_at is null),
    constraint run_times_in_order check (
        started_at >= created_at and finished_at >= created_at and finished_at >= started_at),
    constraint run_sealed_when_finished check (sealed_at is null or finished_at is not null)
) with (fillfactor = 70);

create index run_by_status on run (tenant, status, created_at desc, id desc);
create index run_by_repo on run (tenant, repo, created_at desc, id desc) where repo is not null;
create index run_newest on run (tenant, created_at desc, id desc);
create index run_wake on run (wake_at) where wake_at is not null;
create index run_rate on run (tenant, admitted_at) where rated;
create index run_key_open on run (tenant, concurrency_key, created_at, id)
    where concurrency_key is not null and finished_at is null;
-- At most one admitted, unfinished run per concurrency key.
create unique index run_key_held on run (tenant, concurrency_key)
    where concurrency_key is not null and admitted_at is not null and finished_at is null;

create table run_spec (
    run_id bigint primary key,
    tenant text collate "C" not null,
    source text collate "C" not null,
    idempotency_key text collate "C",
    request_hash bytea not null,
    trigger_type text collate "C" not null,
    trigger_ref text collate "C",
    requester text collate "C" not null,
    priority integer not null,
    concurrency_mode text collate "C" not null,
    not_before bigint,
    wall_clock boolean not null,
    input_ref integer,
    parent_id bigint,
    parent_no integer,
    resumed_from bigint,
    resume_count counter not null,
    rerun_of bigint,
    attempt_no counter not null,
    labels text collate "C" not null,
    metadata text collate "C" not null,
    salt bytea not null,
    undo_of bigint,
    budget bigint,
    currency text collate "C" not null,
    compensate boolean not null,
    involved text collate "C" not null,
    vcs_target text collate "C",
    reported_stated_by text collate "C",
    reported_stated_at bigint,
    constraint run_spec_mode_known check (concurrency_mode in ('queue', 'supersede'))
);

-- I31: one run per tenant, source and key.
create unique index run_spec_key on run_spec (tenant, source, idempotency_key) where idempotency_key is not null;

-- ---------------------------------------------------------------------------------------------- steps

create table step (
    run_id bigint not null,
    idx integer not null,
    name text collate "C" not null,
    kind step_kind not null,
    tool text collate "C" not null,
    queue text collate "C" not null,
    tenant text collate "C" not null,
    workspace text collate "C" not null,
    workflow text collate "C" not null,
    priority integer not null,
    required boolean not null,
    dependents text collate "C" not null,
    max_attempts integer not null,
    timeout_us bigint,
    lease_us bigint not null,
    idempotency_key text collate "C" not null,
    input_ref integer,
    spec text collate "C",
    created_at bigint not null,
    state step_state not null,
    needs_left counter not null,
    attempt counter not null,
    charged counter not null,
    claimable boolean not null,
    ready_at bigint,
    cancel_by bigint,
    wait_no integer,
    waits_on text collate "C" not null,
    recorded boolean not null,
    unsafe counter not null,
    finished_at bigint,
    reason text collate "C",
    output_ref integer,
    error_ref integer,
    last_error text collate "C",
    eligible_at bigint,
    wake_at bigint,
    template_ref integer,
    condition text collate "C",
    resolution text collate "C" not null,
    reuse text collate "C",
    reuse_key bytea,
    reused_run bigint,
    reused_step text collate "C",
    primary key (run_id, idx),
    constraint step_state_known check (
        (state in ('succeeded', 'failed', 'canceled', 'timed_out', 'skipped')) = (finished_at is not null)),
    constraint step_terminal_is_complete check ((finished_at is null) = (reason is null)),
    constraint step_terminal_has_no_timer check (finished_at is null or wake_at is null),
    constraint step_times_in_order check (finished_at >= created_at),
    -- I45: gates are never leased.
    constraint step_claimable check (
        not claimable or (state = 'ready' and kind in ('work', 'body', 'plan') and ready_at is not null)),
    constraint step_resolution_known check (resolution in ('', 'due', 'each', 'skip')),
    constraint step_resolution_has_template check (resolution in ('', 'skip') or template_ref is not null or reuse is not null),
    -- A step with the result of an earlier one succeeded without an attempt, and names that step.
    constraint step_reused_never_ran check (
        (reused_run is null) = (reused_step is null)
        and (reused_run is null or (state = 'succeeded' and attempt = 0 and reuse_key is not null))
    ),
    constraint step_reuse_key_has_terms check (reuse_key is null or reuse is not null),
    -- I61: a step that must be resolved first, or is skipped, is never leased.
    constraint step_unresolved_is_not_claimable check (not claimable or resolution in ('', 'each')),
    constraint step_counters check (max_attempts >= 1)
) with (fillfactor = 70);

create unique index step_name on step (run_id, name);
-- The steps that a claim reads, in the order in which it takes them.
create index step_claim on step (queue, tenant, workspace, priority desc, ready_at, run_id, idx) where claimable;
create index step_wake on step (wake_at) where wake_at is not null;
-- Results that may be used again.
create index step_reuse on step (tenant, reuse_key) where reuse_key is not null;
-- A step is closed if finished_at is set, which a CHECK ties to the state: so a change of state alone stays HOT.
-- The first step is found by its key. Most runs have no other step.
create index step_open on step (run_id, idx) where finished_at is null and idx > 0;

create table attempt (
    run_id bigint not null,
    idx integer not null,
    n integer not null,
    tenant text collate "C" not null,
    workflow text collate "C" not null,
    owner text collate "C" not null,
    granted_at bigint not null,
    timeout_at bigint,
    session bigint,
    state attempt_state not null,
    lease lease_state not null,
    expires_at bigint not null,
    beat_at bigint not null,
    seq counter not null,
    last_message text collate "C" not null,
    answer bytea not null,
    progress text collate "C" not null,
    ended_at bigint,
    reason text collate "C",
    cost text collate "C",
    primary key (run_id, idx, n),
    constraint attempt_state_known check (
        (state in ('succeeded', 'failed', 'timed_out', 'stale', 'canceled', 'suspended', 'released'))
        = (ended_at is not null)),
    constraint attempt_lease_known check ((lease in ('granted', 'active')) = (ended_at is null)),
    constraint attempt_times_in_order check (
        ended_at >= granted_at and expires_at >= granted_at and beat_at >= granted_at),
    constraint attempt_counters check (n >= 1)
) with (fillfactor = 70);

-- I22: one live lease per step. The tenant and workflow of its run come first, because caps count live leases by them.
-- The search for stale heartbeats uses this index too.
create unique index attempt_live on attempt (tenant, workflow, run_id, idx) where lease in ('granted', 'active');

create table checkpoint (
    run_id bigint not null,
    idx integer not null,
    name text collate "C" not null,
    no integer not null,
    state checkpoint_state not null,
    n integer not null,
    seq integer not null,
    resumable boolean not null,
    idempotent boolean not null,
    arguments bytea not null,
    at bigint not null,
    tries counter not null,
    next_at bigint,
    output_ref integer,
    error text collate "C",
    meta text collate "C",
    input_ref integer,
    salt bytea,
    output bytea,
    primary key (run_id, idx, name)
);

-- ---------------------------------------------------------------------------------------------- waits

create table wait (
    run_id bigint not null,
    no integer not null,
    idx integer not null,
    kind text collate "C" not null,
    name text collate "C" not null,
    label text collate "C" not null,
    gate boolean not null,
    fatal boolean not null,
    opened_at bigint not null,
    expires_at bigint,
    state text collate "C" not null,
    outcome text collate "C",
    settled_at bigint,
    result_ref integer,
    wake_at bigint,
    primary key (run_id, no),
    constraint wait_state_known check (
        case state
            when 'open' then outcome is null and settled_at is null
            when 'settled' then outcome is not null and settled_at is not null and wake_at is null
            when 'closed' then wake_at is null
            else false
        end),
    constraint wait_times_in_order check (settled_at >= opened_at)
);

create index wait_label on wait (run_id, idx, label);
create index wait_open on wait (run_id, no) where state = 'open';
create index wait_event on wait (run_id, name, no) where kind = 'event' and state = 'open';
create index wait_wake on wait (wake_at) where wake_at is not null;

create table approval (
    run_id bigint not null,
    no integer not null,
    tenant text collate "C" not null,
    tier text collate "C" not null,
    people integer not null,
    requester text collate "C" not null,
    digest bytea not null,
    revision integer not null,
    requested_at bigint not null,
    expires_at bigint,
    question_ref integer,
    status text collate "C" not null,
    votes text collate "C" not null,
    decided_at bigint,
    decided_by text collate "C",
    reason_ref integer,
    people_in text collate "C" not null,
    reminded_at bigint,
    used_no integer,
    primary key (run_id, no),
    -- I42: only an approved approval is used.
    constraint approval_used_when_approved check (used_no is null or status = 'approved'),
    -- I43: the requester neither approves nor decides, and an approval that is used has enough approvers.
    constraint approval_requester_apart check (position(' ' || requester || ' ' in ' ' || votes || ' ') = 0),
    constraint approval_decided_apart check (decided_by is null or decided_by <> requester),
    constraint approval_used_by_enough check (
        used_no is null or (votes <> '' and length(votes) - length(replace(votes, ' ', '')) + 1 >= people)),
    -- I44: a decided approval has exactly one decision, with its time and person.
    constraint approval_status_known check (
        case status
            when 'requested' then decided_at is null and decided_by is null
            when 'approved' then decided_at is not null and decided_by is not null
            when 'rejected' then decided_at is not null and decided_by is not null
            when 'expired' then true
            when 'canceled' then true
            else false
        end),
    constraint approval_counters check (people >= 1 and revision >= 0)
);

create index approval_open on approval (tenant, requested_at, run_id, no) where status = 'requested';

create table inbox (
    run_id bigint not null,
    no integer not null,
    name text collate "C" not null,
    event_id text collate "C" not null,
    source text collate "C" not null,
    payload_ref integer,
    received_at bigint not null,
    wait_no integer,
    senders text collate "C" not null,
    primary key (run_id, no)
);

create unique index inbox_event on inbox (run_id, event_id);
create index inbox_buffered on inbox (run_id, name, no) where wait_no is null;

create table child (
    run_id bigint not null,
    child_id bigint not null,
    idx integer not null,
    on_close text collate "C" not null,
    wait_no integer not null,
    state text collate "C" not null,
    outcome text collate "C",
    primary key (run_id, child_id),
    constraint child_on_close_known check (on_close in ('cancel', 'leave', 'wait'))
);

create index child_open on child (run_id, child_id) where state = 'open';

-- -------------------------------------------------------------------------- history, payloads, outbox

create table payload (
    run_id bigint not null,
    ref integer not null,
    salt bytea not null,
    body bytea not null,
    primary key (run_id, ref)
);

create table event (
    run_id bigint not null,
    seq counter not null,
    kind text collate "C" not null,
    at bigint not null,
    actor text collate "C" not null,
    initiator text collate "C" not null,
    cause text collate "C" not null,
    body bytea not null,
    hash bytea not null,
    primary key (run_id, seq)
);

create table outbox (
    run_id bigint not null,
    seq integer not null,
    part integer not null,
    topic text collate "C" not null,
    target_id bigint,
    body bytea not null,
    created_at bigint not null,
    primary key (run_id, seq, part)
);

create index outbox_oldest on outbox (created_at);

create table stale_message (
    run_id bigint not null,
    idx integer not null,
    n integer not null,
    message text collate "C" not null,
    seq integer not null,
    owner text collate "C" not null,
    at bigint not null,
    primary key (run_id, idx, n, message)
);

-- ----------------------------------------------------------------------------------- tenants and keys

create table cap (
    tenant text collate "C" not null,
    scope text collate "C" not null,
    weight integer not null,
    max_concurrency integer,
    max_runs_per_min integer,
    max_writes_per_run integer,
    primary key (tenant, scope),
    constraint cap_limits check (weight >= 1 and max_concurrency >= 0 and max_runs_per_min >= 0 and max_writes_per_run >= 0)
);

create table idempotency (
    tenant text collate "C" not null,
    source text collate "C" not null,
    name text collate "C" not null,
    run_id bigint,
    status idempotency_status not null,
    request_hash bytea not null,
    response bytea,
    error text collate "C",
    created_at bigint not null,
    updated_at bigint not null,
    expires_at bigint not null,
    lock_expires_at bigint,
    attempts integer not null,
    holder text collate "C",
    primary key (tenant, source, name),
    constraint idempotency_counters check (attempts >= 1)
);

create index idempotency_expiry on idempotency (status, expires_at);

-- ----------------------------------------------------------------------------------------- wire types
--
-- A save sends the rows of a table as one array of a composite type: one function scan on the server
-- instead of one per column, and half the encoding. The types are copies of the tables' columns and not
-- the tables' own row types, so that a process of the previous version can keep running while a later
-- migration adds a column: that migration creates a new type and keeps the old one.

do $$
declare
    t record;
begin
    for t in
        select c.relname as name, string_agg(
            format('%I %s', a.attname, format_type(coalesce(nullif(y.typbasetype, 0), y.oid), a.atttypmod)), ', '
            order by a.attnum) as columns
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
        join pg_type y on y.oid = a.atttypid
        where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' and c.relname <> 'schema_version'
        group by c.relname
    loop
        execute format('create type %I as (%s)', t.name || '_in', t.columns);
        if t.name = 'run' then
            -- The expected version of a run that changes, and the columns that can change: status and those after it.
            execute format('create type run_change_in as (id bigint, expected integer, expected_head bytea, valid_until bigint, %s)',
                           substring(t.columns from 'status text.*'));
        end if;
    end loop;
end
$$;

create type expect_in as (id bigint, version integer, head bytea, valid_until bigint);
create type run_light_in as (
    id bigint, expected integer, expected_head bytea, valid_until bigint, version integer, head bytea, event_at bigint,
    steps_done integer, checkpoints integer, next_ref integer);
create type outbox_key_in as (run_id bigint, seq integer, part integer);

-- Called by a save that notices after its writes that it waited too long (saves.sql): the error undoes the statement.
create function refuse_late_save() returns boolean language plpgsql as $$
begin
    raise exception 'the save waited for locks until its estimate of the time was wrong' using errcode = 'TN001';
end
$$;
