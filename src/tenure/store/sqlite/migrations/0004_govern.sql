-- Governed actions: verdicts, receipts, costs and spending; policies, freezes, evidence and the ledger. Names and columns are
-- those of tenure.kernel.act_rows and tenure.kernel.governance_rows, in the same order.

create table verdict (
    run_id integer not null,
    no integer not null,
    tenant text not null,
    idx integer not null,
    label text not null,
    connector text not null,
    operation text not null,
    digest blob not null,
    version integer not null,
    outcome text not null,
    rules text not null,
    at integer not null,
    tier text not null,
    people integer not null,
    people_in text not null,
    within_us integer,
    error text,
    request_ref integer,
    name text not null,
    act_tier text not null,
    relied text,
    primary key (run_id, no),
    constraint verdict_outcome_known check (outcome in ('allow', 'deny', 'needs_approval'))
) strict, without rowid;

create table receipt (
    run_id integer not null,
    no integer not null,
    tenant text not null,
    idx integer not null,
    label text not null,
    try_no integer not null,
    connector text not null,
    operation text not null,
    tier text not null,
    name text not null,
    digest blob not null,
    repeats text not null,
    reversible integer not null check (reversible in (0, 1)),
    verdict_no integer not null,
    approval_no integer,
    n integer not null,
    intent_at integer not null,
    call_by integer not null,
    request_ref integer,
    before_ref integer,
    reverses_run integer,
    reverses_no integer,
    state text not null,
    settled_at integer,
    settled_by text,
    result_ref integer,
    error text,
    eligible_at integer,
    wait_no integer,
    reversed_run integer,
    reversed_no integer,
    source_run integer,
    source_no integer,
    primary key (run_id, no),
    constraint receipt_state_known check (state in ('intent', 'unknown', 'succeeded', 'failed', 'reversed', 'reused')),
    constraint receipt_repeats_known check (repeats in ('native_key', 'sets_state', 'marker', 'none')),
    constraint receipt_settled_when_closed check ((state in ('intent', 'unknown')) = (settled_at is null))
) strict, without rowid;

create table run_spend (
    run_id integer not null,
    spent integer not null,
    writes integer not null,
    primary key (run_id),
    constraint run_spend_counters check (spent >= 0 and writes >= 0)
) strict, without rowid;

create table policy (
    tenant text not null,
    version integer not null,
    text text not null,
    digest blob not null,
    author text not null,
    created_at integer not null,
    primary key (tenant, version)
) strict, without rowid;

create table governance (
    tenant text not null,
    version integer not null,
    proposed integer,
    proposed_by text,
    frozen text not null check (frozen like '{%'),
    thaw text not null,
    revision integer not null,
    updated_at integer not null,
    primary key (tenant)
) strict, without rowid;

create table signing_key (
    id text not null,
    public blob not null,
    endorsed_by text,
    endorsement blob,
    created_at integer not null,
    revoked_from integer,
    primary key (id)
) strict, without rowid;

create table ledger_leaf (
    tenant text not null,
    pos integer not null,
    kind text not null,
    run_id integer,
    part integer not null,
    body blob not null,
    at integer not null,
    primary key (tenant, pos),
    constraint ledger_leaf_kind_known check (kind in ('created', 'sealed', 'supplement', 'admin', 'key'))
) strict, without rowid;

create table ledger_node (
    tenant text not null,
    level integer not null,
    pos integer not null,
    hash blob not null,
    primary key (tenant, level, pos)
) strict, without rowid;

create table ledger_checkpoint (
    tenant text not null,
    size integer not null,
    root blob not null,
    note text not null,
    key_id text not null,
    at integer not null,
    primary key (tenant, size)
) strict, without rowid;

create table evidence (
    run_id integer not null,
    no integer not null,
    tenant text not null,
    sha256 blob not null,
    size integer not null,
    head blob not null,
    events integer not null,
    key_id text,
    reference blob not null,
    envelope blob not null,
    at integer not null,
    primary key (run_id, no)
) strict, without rowid;

create table slack_card (
    run_id integer not null,
    no integer not null,
    tenant text not null,
    hook_id text not null,
    channel text not null,
    ts text,
    shown text not null,
    due_at integer,
    tries integer not null,
    reminded integer not null,
    error text,
    primary key (run_id, no)
) strict, without rowid;

create table cost_line (
    run_id integer not null,
    no integer not null,
    tenant text not null,
    workflow text not null,
    day integer not null,
    provider text not null,
    model text not null,
    currency text not null,
    calls integer not null,
    tokens_in integer not null,
    tokens_out integer not null,
    micros integer not null,
    primary key (run_id, no),
    constraint cost_line_counters check (calls >= 0 and tokens_in >= 0 and tokens_out >= 0 and micros >= 0)
) strict, without rowid;

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
