-- What CI jobs store: logs, uploads in parts, caches, test reports, and files that are to be deleted. The bytes are in the
-- artifact store.

create table log_chunk (
    run_id integer not null,
    idx integer not null,
    n integer not null,
    seq integer not null check (seq >= 1),
    late integer not null check (late in (0, 1)),
    first_byte integer not null check (first_byte >= 0),
    size integer not null check (size >= 1),
    lines integer not null check (lines >= 0),
    digest text not null,
    at integer not null,
    events integer not null,
    primary key (run_id, idx, n, seq)
) strict, without rowid;

-- No two chunks begin at the same byte; and a reader finds the chunk of a byte.
create unique index log_chunk_bytes on log_chunk (run_id, idx, n, first_byte);

create table upload (
    run_id integer not null,
    idx integer not null,
    n integer not null,
    kind text not null check (kind in ('artifact', 'cache')),
    name text not null,
    id text not null,
    tenant text not null,
    retention_us integer,
    begun_at integer not null,
    -- An attempt uploads a name once at a time.
    primary key (run_id, idx, n, kind, name)
) strict, without rowid;

create table upload_part (
    run_id integer not null,
    upload text not null,
    no integer not null check (no >= 1),
    size integer not null check (size >= 1),
    digest text not null,
    primary key (run_id, upload, no)
) strict, without rowid;

create table cache_entry (
    tenant text not null,
    scope text not null,
    name text not null,
    repository text not null,
    trusted integer not null check (trusted in (0, 1)),
    upload text not null,
    parts text not null,
    size integer not null,
    digest text not null,
    run_id integer not null,
    created_at integer not null,
    used_at integer not null,
    -- A key (`name`) has one cache: the first that was complete.
    primary key (tenant, scope, name)
) strict, without rowid;

create index cache_entry_used on cache_entry (tenant, repository, used_at, size);

create table test_report (
    run_id integer not null,
    idx integer not null,
    n integer not null,
    late integer not null check (late in (0, 1)),
    digest text not null,
    body blob not null,
    at integer not null,
    primary key (run_id, idx, n)
) strict, without rowid;

create table test_history (
    tenant text not null,
    scope text not null,
    test text not null,
    failed integer not null check (failed >= 1),
    passed integer not null,
    changes integer not null,
    same_commit integer not null,
    last_failed integer not null check (last_failed in (0, 1)),
    last_commit text not null,
    last_job text not null,
    last_failed_at integer not null,
    last_passed_at integer,
    primary key (tenant, scope, test)
) strict, without rowid;

create index test_history_age on test_history (tenant, scope, last_failed_at);

create table file_deletion (
    path text not null,
    run_id integer,
    asked_at integer not null,
    due_at integer not null,
    tries integer not null,
    primary key (path)
) strict, without rowid;

create index file_deletion_due on file_deletion (due_at);
create index artifact_expires on artifact (expires_at) where expires_at is not null and deleted_at is null;
