-- The server: identity, hooks and their deliveries, the feed and webhooks, leases and artifacts of remote runners. Names and
-- columns are those of tenure.kernel.identity_rows and tenure.kernel.server_rows, in the same order.

-- -------------------------------------------------------------------------------------------- identity

create table tenant (
    id text collate "C" not null,
    name text collate "C" not null,
    settings text collate "C" not null,
    created_at bigint not null,
    closed_at bigint,
    primary key (id)
);

create table client (
    tenant text collate "C" not null,
    id text collate "C" not null,
    name text collate "C" not null,
    roles text collate "C" not null,
    owner text collate "C",
    created_at bigint not null,
    closed_at bigint,
    revision integer not null,
    unconfirmed text collate "C" not null,
    primary key (tenant, id)
);

create table person (
    tenant text collate "C" not null,
    id text collate "C" not null,
    name text collate "C" not null,
    roles text collate "C" not null,
    groups text collate "C" not null,
    slack text collate "C",
    enrol_hash bytea,
    enrol_until bigint,
    created_at bigint not null,
    closed_at bigint,
    github text collate "C",
    revision integer not null,
    unconfirmed text collate "C" not null,
    enrol_by text collate "C" not null,
    primary key (tenant, id),
    constraint person_code_ends check ((enrol_hash is null) = (enrol_until is null))
);

create unique index person_slack on person (tenant, slack) where slack is not null;
create unique index person_github on person (tenant, github) where github is not null;
create index person_unconfirmed on person (tenant, id) where unconfirmed <> '';
create unique index person_enrolling on person (enrol_hash) where enrol_hash is not null;

create table api_key (
    id text collate "C" not null,
    tenant text collate "C" not null,
    owner_kind text collate "C" not null,
    owner_id text collate "C" not null,
    name text collate "C" not null,
    hash bytea not null,
    roles text collate "C",
    created_by text collate "C" not null,
    created_at bigint not null,
    expires_at bigint,
    revoked_at bigint,
    used_at bigint,
    replaced_until bigint,
    unconfirmed text collate "C" not null,
    primary key (id),
    constraint api_key_owner_known check (owner_kind in ('client', 'person', 'operator')),
    constraint api_key_operator_has_no_tenant check ((owner_kind = 'operator') = (tenant = ''))
);

create index api_key_owner on api_key (tenant, owner_kind, owner_id);

create table session (
    hash bytea not null,
    key_id text collate "C" not null,
    tenant text collate "C" not null,
    created_at bigint not null,
    expires_at bigint not null,
    primary key (hash)
);

create index session_expiry on session (expires_at);
create index session_of_key on session (key_id);

create table slack_code (
    hash bytea not null,
    tenant text collate "C" not null,
    slack text collate "C" not null,
    expires_at bigint not null,
    primary key (hash)
);

create table account_link (
    tenant text collate "C" not null,
    account text collate "C" not null,
    person text collate "C" not null,
    linked_at bigint not null,
    primary key (tenant, account, person)
);

create table slack_app (
    tenant text collate "C" not null,
    team text collate "C" not null,
    secrets text collate "C" not null,
    registered_by text collate "C" not null,
    registered_at bigint not null,
    primary key (tenant, team)
);

create table admin_event (
    tenant text collate "C" not null,
    seq integer not null,
    kind text collate "C" not null,
    at bigint not null,
    actor text collate "C" not null,
    body bytea not null,
    hash bytea not null,
    primary key (tenant, seq),
    constraint admin_event_numbers check (seq >= 1)
);

create index admin_event_at on admin_event (at);

-- ----------------------------------------------------------------------------------------------- hooks

create table hook (
    id text collate "C" not null,
    tenant text collate "C" not null,
    workspace text collate "C" not null,
    kind text collate "C" not null,
    name text collate "C" not null,
    secrets text collate "C" not null,
    rules text collate "C" not null,
    owner text collate "C" not null,
    settings text collate "C" not null,
    created_at bigint not null,
    updated_at bigint not null,
    revision integer not null,
    disabled boolean not null,
    unconfirmed text collate "C" not null,
    primary key (id),
    constraint hook_kind_known check (kind in ('github', 'slack', 'generic', 'servicenow')),
    constraint hook_revision check (revision >= 1)
);

create index hook_of on hook (tenant, created_at);

create table delivery (
    hook_id text collate "C" not null,
    id text collate "C" not null,
    tenant text collate "C" not null,
    name text collate "C" not null,
    event text collate "C" not null,
    digest bytea not null,
    fingerprint text collate "C",
    headers text collate "C" not null,
    body bytea not null,
    received_at bigint not null,
    status text collate "C" not null,
    run_id bigint,
    note text collate "C" not null,
    replays integer not null,
    tries integer not null,
    replayed_by text collate "C" not null,
    primary key (hook_id, id),
    constraint delivery_status_known
        check (status in ('received', 'done', 'ignored', 'duplicate', 'failed', 'set_aside'))
);

create index delivery_newest on delivery (hook_id, received_at);
create index delivery_content on delivery (hook_id, digest);
create index delivery_fingerprint on delivery (hook_id, fingerprint) where fingerprint is not null;
create index delivery_open on delivery (received_at) where status = 'received';
create index delivery_set_aside on delivery (hook_id, received_at) where status = 'set_aside';

-- ----------------------------------------------------------------------------------- feed and webhooks

create table feed_key (
    id integer primary key check (id = 1),
    key bytea not null check (length(key) = 32)
);

create table feed (
    pos bigint not null,
    at bigint not null,
    body bytea not null,
    primary key (pos)
);

create table subscription (
    tenant text collate "C" not null,
    id text collate "C" not null,
    url text collate "C" not null,
    secret text collate "C" not null,
    types text collate "C" not null,
    workflow text collate "C",
    owner text collate "C" not null,
    pos bigint not null,
    created_at bigint not null,
    updated_at bigint not null,
    revision integer not null,
    disabled boolean not null,
    primary key (tenant, id),
    constraint subscription_revision check (revision >= 1)
);

create table notice (
    tenant text collate "C" not null,
    subscription text collate "C" not null,
    pos bigint not null,
    part integer not null,
    run_id bigint not null,
    type text collate "C" not null,
    body bytea not null,
    created_at bigint not null,
    due_at bigint,
    tries integer not null,
    error text collate "C",
    primary key (tenant, subscription, pos, part)
);

create index notice_due on notice (due_at) where due_at is not null;
create index notice_of_run on notice (tenant, subscription, run_id, pos, part);

-- --------------------------------------------------------------------------------- published documents

create table publication (
    id text collate "C" not null,
    holder text collate "C" not null,
    fence bigint not null,
    until bigint not null,
    pos bigint not null,
    primary key (id),
    constraint publication_fence check (fence >= 1)
);

create table publication_deletion (
    publication text collate "C" not null,
    run_id bigint not null,
    tenant text collate "C" not null,
    due_at bigint not null,
    rounds integer not null,
    tries integer not null,
    error text collate "C",
    primary key (publication, run_id)
);

create index publication_deletion_due on publication_deletion (publication, due_at);

-- Whoever deletes a run owes the deletion of its documents in every publication. A trigger, so that no way of deleting forgets it.
create function delete_from_publications() returns trigger language plpgsql as $$
begin
    insert into tenure.publication_deletion select id, old.id, old.tenant, 0, 0, 0, null from tenure.publication
    on conflict do nothing;
    return null;
end
$$;

create trigger run_deleted_from_publications after delete on run for each row when (old.profile = 'agent-runs')
    execute function delete_from_publications();

-- -------------------------------------------------------------------------------------- remote runners

create table remote_lease (
    run_id bigint not null,
    idx integer not null,
    n integer not null,
    tenant text collate "C" not null,
    claim text collate "C" not null,
    token_hash bytea not null,
    primary key (run_id, idx, n)
);

create index remote_lease_claim on remote_lease (claim);

create table artifact (
    run_id bigint not null,
    name text collate "C" not null,
    idx integer not null,
    n integer not null,
    late boolean not null,
    tenant text collate "C" not null,
    step text collate "C" not null,
    worker text collate "C" not null,
    size bigint not null,
    digest text collate "C" not null,
    content_type text collate "C" not null,
    at bigint not null,
    events integer not null,
    upload text collate "C" not null,
    expires_at bigint,
    deleted_at bigint,
    -- I56: a late file never replaces a file that came in time, and attempts never replace each other's files.
    primary key (run_id, name, idx, n, late)
);

-- ----------------------------------------------------------------------------------------- VCS reports

create table vcs_report (
    run_id bigint primary key,
    tenant text collate "C" not null,
    subject text collate "C" not null,
    state text collate "C" not null check (state in ('open', 'reported', 'refused')),
    seen integer not null,
    fence bigint not null,
    due_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    holder text collate "C" not null,
    tries integer not null,
    error text collate "C",
    check ((state = 'open') = (due_at is not null))
);

create index vcs_report_due on vcs_report (due_at) where due_at is not null;
create index vcs_report_subject on vcs_report (subject, run_id);
create index vcs_report_newest on vcs_report (tenant, run_id);
create index run_spec_vcs on run_spec (run_id) where vcs_target is not null;

create table vcs_check (
    run_id bigint not null,
    part text collate "C" not null,
    check_id bigint,
    phase integer not null check (phase between 0 and 2),
    digest bytea not null,
    primary key (run_id, part)
);

-- Rows that are written in a save need a wire type; see the end of the first migration.
create type feed_in as (run_id bigint, body bytea);
create type remote_lease_in as (run_id bigint, idx integer, n integer, tenant text, claim text, token_hash bytea);
