-- The server: identity, hooks and their deliveries, the feed and webhooks, leases and artifacts of remote runners. Names and
-- columns are those of tenure.kernel.identity_rows and tenure.kernel.server_rows, in the same order.

-- -------------------------------------------------------------------------------------------- identity

create table tenant (
    id text not null,
    name text not null,
    settings text not null,
    created_at integer not null,
    closed_at integer,
    primary key (id)
) strict, without rowid;

create table client (
    tenant text not null,
    id text not null,
    name text not null,
    roles text not null,
    owner text,
    created_at integer not null,
    closed_at integer,
    revision integer not null,
    unconfirmed text not null,
    primary key (tenant, id)
) strict, without rowid;

create table person (
    tenant text not null,
    id text not null,
    name text not null,
    roles text not null,
    groups text not null,
    slack text,
    enrol_hash blob,
    enrol_until integer,
    created_at integer not null,
    closed_at integer,
    github text,
    revision integer not null,
    unconfirmed text not null,
    enrol_by text not null,
    primary key (tenant, id),
    constraint person_code_ends check ((enrol_hash is null) = (enrol_until is null))
) strict, without rowid;

create unique index person_slack on person (tenant, slack) where slack is not null;
create unique index person_github on person (tenant, github) where github is not null;
create index person_unconfirmed on person (tenant, id) where unconfirmed <> '';
create unique index person_enrolling on person (enrol_hash) where enrol_hash is not null;

create table api_key (
    id text not null,
    tenant text not null,
    owner_kind text not null,
    owner_id text not null,
    name text not null,
    hash blob not null,
    roles text,
    created_by text not null,
    created_at integer not null,
    expires_at integer,
    revoked_at integer,
    used_at integer,
    replaced_until integer,
    unconfirmed text not null,
    primary key (id),
    constraint api_key_owner_known check (owner_kind in ('client', 'person', 'operator')),
    constraint api_key_operator_has_no_tenant check ((owner_kind = 'operator') = (tenant = ''))
) strict, without rowid;

create index api_key_owner on api_key (tenant, owner_kind, owner_id);

create table session (
    hash blob not null,
    key_id text not null,
    tenant text not null,
    created_at integer not null,
    expires_at integer not null,
    primary key (hash)
) strict, without rowid;

create index session_expiry on session (expires_at);
create index session_of_key on session (key_id);

create table slack_code (
    hash blob not null,
    tenant text not null,
    slack text not null,
    expires_at integer not null,
    primary key (hash)
) strict, without rowid;

create table account_link (
    tenant text not null,
    account text not null,
    person text not null,
    linked_at integer not null,
    primary key (tenant, account, person)
) strict, without rowid;

create table slack_app (
    tenant text not null,
    team text not null,
    secrets text not null,
    registered_by text not null,
    registered_at integer not null,
    primary key (tenant, team)
) strict, without rowid;

create table admin_event (
    tenant text not null,
    seq integer not null,
    kind text not null,
    at integer not null,
    actor text not null,
    body blob not null,
    hash blob not null,
    primary key (tenant, seq),
    constraint admin_event_numbers check (seq >= 1)
) strict, without rowid;

create index admin_event_at on admin_event (at);

-- ----------------------------------------------------------------------------------------------- hooks

create table hook (
    id text not null,
    tenant text not null,
    workspace text not null,
    kind text not null,
    name text not null,
    secrets text not null,
    rules text not null,
    owner text not null,
    settings text not null,
    created_at integer not null,
    updated_at integer not null,
    revision integer not null,
    disabled integer not null check (disabled in (0, 1)),
    unconfirmed text not null,
    primary key (id),
    constraint hook_kind_known check (kind in ('github', 'slack', 'generic', 'servicenow')),
    constraint hook_revision check (revision >= 1)
) strict, without rowid;

create index hook_of on hook (tenant, created_at);

create table delivery (
    hook_id text not null,
    id text not null,
    tenant text not null,
    name text not null,
    event text not null,
    digest blob not null,
    fingerprint text,
    headers text not null,
    body blob not null,
    received_at integer not null,
    status text not null,
    run_id integer,
    note text not null,
    replays integer not null,
    tries integer not null,
    replayed_by text not null,
    primary key (hook_id, id),
    constraint delivery_status_known
        check (status in ('received', 'done', 'ignored', 'duplicate', 'failed', 'set_aside'))
) strict;

create index delivery_newest on delivery (hook_id, received_at);
create index delivery_content on delivery (hook_id, digest);
create index delivery_fingerprint on delivery (hook_id, fingerprint) where fingerprint is not null;
create index delivery_open on delivery (received_at) where status = 'received';
create index delivery_set_aside on delivery (hook_id, received_at) where status = 'set_aside';

-- ----------------------------------------------------------------------------------- feed and webhooks

create table feed_key (
    id integer primary key check (id = 1),
    key blob not null check (length(key) = 32)
) strict;

create table feed (
    pos integer primary key,
    at integer not null,
    body blob not null
) strict;

create table subscription (
    tenant text not null,
    id text not null,
    url text not null,
    secret text not null,
    types text not null,
    workflow text,
    owner text not null,
    pos integer not null,
    created_at integer not null,
    updated_at integer not null,
    revision integer not null,
    disabled integer not null check (disabled in (0, 1)),
    primary key (tenant, id),
    constraint subscription_revision check (revision >= 1)
) strict, without rowid;

create table notice (
    tenant text not null,
    subscription text not null,
    pos integer not null,
    part integer not null,
    run_id integer not null,
    type text not null,
    body blob not null,
    created_at integer not null,
    due_at integer,
    tries integer not null,
    error text,
    primary key (tenant, subscription, pos, part)
) strict;

create index notice_due on notice (due_at) where due_at is not null;
create index notice_of_run on notice (tenant, subscription, run_id, pos, part);

-- --------------------------------------------------------------------------------- published documents

create table publication (
    id text not null,
    holder text not null,
    fence integer not null,
    until integer not null,
    pos integer not null,
    primary key (id),
    constraint publication_fence check (fence >= 1)
) strict, without rowid;

create table publication_deletion (
    publication text not null,
    run_id integer not null,
    tenant text not null,
    due_at integer not null,
    rounds integer not null,
    tries integer not null,
    error text,
    primary key (publication, run_id)
) strict, without rowid;

create index publication_deletion_due on publication_deletion (publication, due_at);

-- Whoever deletes a run owes the deletion of its documents in every publication. A trigger, so that no way of deleting forgets it.
create trigger run_deleted_from_publications after delete on run when old.profile = 'agent-runs'
begin
    insert into publication_deletion select id, old.id, old.tenant, 0, 0, 0, null from publication where true
    on conflict do nothing;
end;

-- -------------------------------------------------------------------------------------- remote runners

create table remote_lease (
    run_id integer not null,
    idx integer not null,
    n integer not null,
    tenant text not null,
    claim text not null,
    token_hash blob not null,
    primary key (run_id, idx, n)
) strict, without rowid;

create index remote_lease_claim on remote_lease (claim);

create table artifact (
    run_id integer not null,
    name text not null,
    idx integer not null,
    n integer not null,
    late integer not null check (late in (0, 1)),
    tenant text not null,
    step text not null,
    worker text not null,
    size integer not null,
    digest text not null,
    content_type text not null,
    at integer not null,
    events integer not null,
    upload text not null,
    expires_at integer,
    deleted_at integer,
    -- I56: a late file never replaces a file that came in time, and attempts never replace each other's files.
    primary key (run_id, name, idx, n, late)
) strict, without rowid;

-- ----------------------------------------------------------------------------------------- VCS reports

create table vcs_report (
    run_id integer primary key,
    tenant text not null,
    subject text not null,
    state text not null check (state in ('open', 'reported', 'refused')),
    seen integer not null,
    fence integer not null,
    due_at integer,
    created_at integer not null,
    updated_at integer not null,
    holder text not null,
    tries integer not null,
    error text,
    check ((state = 'open') = (due_at is not null))
) strict;

create index vcs_report_due on vcs_report (due_at) where due_at is not null;
create index vcs_report_subject on vcs_report (subject, run_id);
create index vcs_report_newest on vcs_report (tenant, run_id);
create index run_spec_vcs on run_spec (run_id) where vcs_target is not null;

create table vcs_check (
    run_id integer not null,
    part text not null,
    check_id integer,
    phase integer not null check (phase between 0 and 2),
    digest blob not null,
    primary key (run_id, part)
) strict, without rowid;
