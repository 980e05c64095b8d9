-- Governed actions: verdicts, receipts, costs and spending; policies, freezes, evidence and the ledger. Names and columns are
-- those of tenure.kernel.act_rows and tenure.kernel.governance_rows, in the same order.

create table verdict (
    run_id bigint not null,
    no integer not null,
    tenant text collate "C" not null,
    idx integer not null,
    label text collate "C" not null,
    connector text collate "C" not null,
    operation text collate "C" not null,
    digest bytea not null,
    version integer not null,
    outcome text collate "C" not null,
    rules text collate "C" not null,
    at bigint not null,
    tier text collate "C" not null,
    people integer not null,
    people_in text collate "C" not null,
    within_us bigint,
    error text collate "C",
    request_ref integer,
    name text collate "C" not null,
    act_tier text collate "C" not null,
    relied text collate "C",
    primary key (run_id, no),
    constraint verdict_outcome_known check (outcome in ('allow', 'deny', 'needs_approval'))
);

create table receipt (
    run_id bigint not null,
    no integer not null,
    tenant text collate "C" not null,
    idx integer not null,
    label text collate "C" not null,
    try_no integer not null,
    connector text collate "C" not null,
    operation text collate "C" not null,
    tier text collate "C" not null,
    name text collate "C" not null,
    digest bytea not null,
    repeats text collate "C" not null,
    reversible boolean not null,
    verdict_no integer not null,
    approval_no integer,
    n integer not null,
    intent_at bigint not null,
    call_by bigint not null,
    request_ref integer,
    before_ref integer,
    reverses_run bigint,
    reverses_no integer,
    state text collate "C" not null,
    settled_at bigint,
    settled_by text collate "C",
    result_ref integer,
    error text collate "C",
    eligible_at bigint,
    wait_no integer,
    reversed_run bigint,
    reversed_no integer,
    source_run bigint,
    source_no integer,
    primary key (run_id, no),
    constraint receipt_state_known check (state in ('intent', 'unknown', 'succeeded', 'failed', 'reversed', 'reused')),
    constraint receipt_repeats_known check (repeats in ('native_key', 'sets_state', 'marker', 'none')),
    constraint receipt_settled_when_closed check ((state in ('intent', 'unknown')) = (settled_at is null))
);

create table run_spend (
    run_id bigint not null,
    spent bigint not null,
    writes integer not null,
    primary key (run_id),
    constraint run_spend_counters check (spent >= 0 and writes >= 0)
);

create table policy (
    tenant text collate "C" not null,
    version integer not null,
    text text collate "C" not null,
    digest bytea not null,
    author text collate "C" not null,
    created_at bigint not null,
    primary key (tenant, version)
);

create table governance (
    tenant text collate "C" not null,
    version integer not null,
    proposed integer,
    proposed_by text collate "C",
    frozen text collate "C" not null check (frozen like '{%'),
    thaw text collate "C" not null,
    revision integer not null,
    updated_at bigint not null,
    primary key (tenant)
);

create table signing_key (
    id text collate "C" not null,
    public bytea not null,
    endorsed_by text collate "C",
    endorsement bytea,
    created_at bigint not null,
    revoked_from bigint,
    primary key (id)
);

create table ledger_leaf (
    tenant text collate "C" not null,
    pos bigint not null,
    kind text collate "C" not null,
    run_id bigint,
    part integer not null,
    body bytea not null,
    at bigint not null,
    primary key (tenant, pos),
    constraint ledger_leaf_kind_known check (kind in ('created', 'sealed', 'supplement', 'admin', 'key'))
);

create table ledger_node (
    tenant text collate "C" not null,
    level integer not null,
    pos bigint not null,
    hash bytea not null,
    primary key (tenant, level, pos)
);

create table ledger_checkpoint (
    tenant text collate "C" not null,
    size bigint not null,
    root bytea not null,
    note text collate "C" not null,
    key_id text collate "C" not null,
    at bigint not null,
    primary key (tenant, size)
);

create table evidence (
    run_id bigint not null,
    no integer not null,
    tenant text collate "C" not null,
    sha256 bytea not null,
    size bigint not null,
    head bytea not null,
    events integer not null,
    key_id text collate "C",
    reference bytea not null,
    envelope bytea not null,
    at bigint not null,
    primary key (run_id, no)
);

create table slack_card (
    run_id bigint not null,
    no integer not null,
    tenant text collate "C" not null,
    hook_id text collate "C" not null,
    channel text collate "C" not null,
    ts text collate "C",
    shown text collate "C" not null,
    due_at bigint,
    tries integer not null,
    reminded boolean not null,
    error text collate "C",
    primary key (run_id, no)
);

create table cost_line (
    run_id bigint not null,
    no integer not null,
    tenant text collate "C" not null,
    workflow text collate "C" not null,
    day integer not null,
    provider text collate "C" not null,
    model text collate "C" not null,
    currency text collate "C" not null,
    calls bigint not null,
    tokens_in bigint not null,
    tokens_out bigint not null,
    micros bigint not null,
    primary key (run_id, no),
    constraint cost_line_counters check (calls >= 0 and tokens_in >= 0 and tokens_out >= 0 and micros >= 0)
);

-- I37: at most one receipt of a tenant holds a key. A receipt that failed or was reversed holds no key.
create unique index receipt_key on receipt (tenant, name) where state in ('intent', 'unknown', 'succeeded');
-- An approval is valid for one action (I42). The tries of that action share it.
create unique index receipt_approval on receipt (run_id, approval_no)
    where approval_no is not null and state in ('intent', 'unknown', 'succeeded');
create index receipt_act on receipt (run_id, idx, label, no);
create index receipt_open on receipt (run_id, no) where state in ('intent', 'unknown');
create index receipt_unknown on receipt (tenant, intent_at) where state = 'unknown';
create index verdict_time on verdict (tenant, at);
-- The ledger has one leaf for the creation of a run, one for its seal, one for each supplement, and one for each line of an
-- admin chain.
create unique index ledger_leaf_run on ledger_leaf (tenant, run_id, kind, part) where run_id is not null;
create unique index ledger_leaf_admin on ledger_leaf (tenant, part) where kind = 'admin';
create index cost_line_time on cost_line (tenant, day);
create index slack_card_due on slack_card (due_at) where due_at is not null;
create index evidence_newest on evidence (tenant, at, run_id) where no = 0;
create index run_spec_undo on run_spec (undo_of) where undo_of is not null;
-- Finished runs that are not sealed yet.
create index run_unsealed on run (finished_at, id) where finished_at is not null and sealed_at is null;

-- Rows that are written in a save need a wire type; see the end of the first migration.
create type verdict_in as (
    run_id bigint, no integer, tenant text, idx integer, label text, connector text, operation text, digest
    bytea, version integer, outcome text, rules text, at bigint, tier text, people integer, people_in text,
    within_us bigint, error text, request_ref integer, name text, act_tier text, relied text);
create type receipt_in as (
    run_id bigint, no integer, tenant text, idx integer, label text, try_no integer, connector text, operation
    text, tier text, name text, digest bytea, repeats text, reversible boolean, verdict_no integer,
    approval_no integer, n integer, intent_at bigint, call_by bigint, request_ref integer, before_ref integer,
    reverses_run bigint, reverses_no integer, state text, settled_at bigint, settled_by text, result_ref
    integer, error text, eligible_at bigint, wait_no integer, reversed_run bigint, reversed_no integer,
    source_run bigint, source_no integer);
create type run_spend_in as (
    run_id bigint, spent bigint, writes integer);
create type cost_line_in as (
    run_id bigint, no integer, tenant text, workflow text, day integer, provider text, model text, currency text,
    calls bigint, tokens_in bigint, tokens_out bigint, micros bigint);
