-- Tables that belong to no run: schedules, workers, workflows and log lines. Names and columns are those of
-- tenure.kernel.registry_rows, in the same order.

create table schedule (
    tenant text not null,
    name text not null,
    workspace text not null,
    workflow text not null,
    code_version text not null,
    profile text not null,
    queue text not null,
    plan text,
    input blob,
    cron text not null,
    zone text not null,
    catch_up text not null check (catch_up in ('skip', 'last', 'all')),
    catch_up_max integer not null check (catch_up_max >= 1),
    pass_slot integer not null check (pass_slot in (0, 1)),
    owner text not null,
    labels text not null,
    created_at integer not null,
    updated_at integer not null,
    revision integer not null check (revision >= 1),
    paused integer not null check (paused in (0, 1)),
    next_at integer,
    last_slot integer,
    unconfirmed text not null,
    primary key (tenant, name),
    -- A paused schedule has no next slot: slots that pass meanwhile start no runs.
    constraint schedule_paused_has_no_slot check (paused = 0 or next_at is null)
) strict, without rowid;

create index schedule_due on schedule (next_at) where next_at is not null;

create table worker (
    name text not null,
    queues text not null,
    slots integer not null check (slots >= 1),
    version text not null,
    started_at integer not null,
    seen_at integer not null,
    primary key (name),
    constraint worker_times_in_order check (seen_at >= started_at)
) strict, without rowid;

create index worker_seen on worker (seen_at);

-- The process of a session of leases, so that its death can be proven.
create table worker_process (
    session integer not null,
    tenant text not null,
    name text not null,
    boot_id text not null,
    namespaces text not null,
    pid integer not null check (pid >= 1),
    start_ticks integer not null check (start_ticks >= 0),
    seen_at integer not null,
    primary key (session)
) strict;

create index worker_process_host on worker_process (boot_id, namespaces);

create table workflow (
    tenant text not null,
    name text not null,
    version text not null,
    kind text not null check (kind in ('code', 'declared')),
    definition text not null,
    digest text not null,
    registered_at integer not null,
    registered_by text not null,
    unconfirmed text not null,
    primary key (tenant, name, version)
) strict, without rowid;

create table log_line (
    run_id integer not null,
    no integer not null check (no >= 1),
    at integer not null,
    step text not null,
    level text not null,
    text text not null,
    fields text not null,
    primary key (run_id, no)
) strict, without rowid;
