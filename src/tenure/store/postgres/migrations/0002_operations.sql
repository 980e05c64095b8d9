-- Tables that belong to no run: schedules, workers, workflows and log lines. Names and columns are those of
-- tenure.kernel.registry_rows, in the same order. They need no wire types: each column of their rows is sent as a parameter.

create table schedule (
    tenant text collate "C" not null,
    name text collate "C" not null,
    workspace text collate "C" not null,
    workflow text collate "C" not null,
    code_version text collate "C" not null,
    profile text collate "C" not null,
    queue text collate "C" not null,
    plan text collate "C",
    input bytea,
    cron text collate "C" not null,
    zone text collate "C" not null,
    catch_up text collate "C" not null,
    catch_up_max integer not null,
    pass_slot boolean not null,
    owner text collate "C" not null,
    labels text collate "C" not null,
    created_at bigint not null,
    updated_at bigint not null,
    revision integer not null,
    paused boolean not null,
    next_at bigint,
    last_slot bigint,
    unconfirmed text collate "C" not null,
    primary key (tenant, name),
    constraint schedule_catch_up_known check (catch_up in ('skip', 'last', 'all')),
    constraint schedule_counters check (catch_up_max >= 1 and revision >= 1),
    -- A paused schedule has no next slot: slots that pass meanwhile start no runs.
    constraint schedule_paused_has_no_slot check (not paused or next_at is null)
);

create index schedule_due on schedule (next_at) where next_at is not null;

create table worker (
    name text collate "C" not null,
    queues text collate "C" not null,
    slots integer not null,
    version text collate "C" not null,
    started_at bigint not null,
    seen_at bigint not null,
    primary key (name),
    constraint worker_slots check (slots >= 1),
    constraint worker_times_in_order check (seen_at >= started_at)
);

create index worker_seen on worker (seen_at);

-- The process of a session of leases, so that its death can be proven.
create table worker_process (
    session bigint not null,
    tenant text collate "C" not null,
    name text collate "C" not null,
    boot_id text collate "C" not null,
    namespaces text collate "C" not null,
    pid integer not null,
    start_ticks bigint not null,
    seen_at bigint not null,
    primary key (session),
    constraint worker_process_numbers check (pid >= 1 and start_ticks >= 0)
);

create index worker_process_host on worker_process (boot_id, namespaces);

create table workflow (
    tenant text collate "C" not null,
    name text collate "C" not null,
    version text collate "C" not null,
    kind text collate "C" not null,
    definition text collate "C" not null,
    digest text collate "C" not null,
    registered_at bigint not null,
    registered_by text collate "C" not null,
    unconfirmed text collate "C" not null,
    primary key (tenant, name, version),
    constraint workflow_kind_known check (kind in ('code', 'declared'))
);

create table log_line (
    run_id bigint not null,
    no integer not null,
    at bigint not null,
    step text collate "C" not null,
    level text collate "C" not null,
    text text collate "C" not null,
    fields text collate "C" not null,
    primary key (run_id, no),
    constraint log_line_numbers check (no >= 1)
);
