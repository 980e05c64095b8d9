-- What CI jobs store: logs, uploads in parts, caches, test reports, and files that are to be deleted. The bytes are in the
-- artifact store.

create table log_chunk (
    run_id bigint not null,
    idx integer not null,
    n integer not null,
    seq integer not null,
    late boolean not null,
    first_byte bigint not null,
    size bigint not null,
    lines integer not null,
    digest text collate "C" not null,
    at bigint not null,
    events integer not null,
    primary key (run_id, idx, n, seq),
    constraint log_chunk_numbers check (seq >= 1 and first_byte >= 0 and size >= 1 and lines >= 0)
);

-- No two chunks begin at the same byte; and a reader finds the chunk of a byte.
create unique index log_chunk_bytes on log_chunk (run_id, idx, n, first_byte);

create table upload (
    run_id bigint not null,
    idx integer not null,
    n integer not null,
    kind text collate "C" not null,
    name text collate "C" not null,
    id text collate "C" not null,
    tenant text collate "C" not null,
    retention_us bigint,
    begun_at bigint not null,
    -- An attempt uploads a name once at a time.
    primary key (run_id, idx, n, kind, name),
    constraint upload_kind_known check (kind in ('artifact', 'cache'))
);

create table upload_part (
    run_id bigint not null,
    upload text collate "C" not null,
    no integer not null,
    size bigint not null,
    digest text collate "C" not null,
    primary key (run_id, upload, no),
    constraint upload_part_numbers check (no >= 1 and size >= 1)
);

create table cache_entry (
    tenant text collate "C" not null,
    scope text collate "C" not null,
    name text collate "C" not null,
    repository text collate "C" not null,
    trusted boolean not null,
    upload text collate "C" not null,
    parts text collate "C" not null,
    size bigint not null,
    digest text collate "C" not null,
    run_id bigint not null,
    created_at bigint not null,
    used_at bigint not null,
    -- A key (`name`) has one cache: the first that was complete.
    primary key (tenant, scope, name)
);

create index cache_entry_used on cache_entry (tenant, repository, used_at, size);

create table test_report (
    run_id bigint not null,
    idx integer not null,
    n integer not null,
    late boolean not null,
    digest text collate "C" not null,
    body bytea not null,
    at bigint not null,
    primary key (run_id, idx, n)
);

create table test_history (
    tenant text collate "C" not null,
    scope text collate "C" not null,
    test text collate "C" not null,
    failed integer not null,
    passed integer not null,
    changes integer not null,
    same_commit integer not null,
    last_failed boolean not null,
    last_commit text collate "C" not null,
    last_job text collate "C" not null,
    last_failed_at bigint not null,
    last_passed_at bigint,
    primary key (tenant, scope, test),
    constraint test_history_numbers check (failed >= 1)
);

create index test_history_age on test_history (tenant, scope, last_failed_at);

create table file_deletion (
    path text collate "C" not null,
    run_id bigint,
    asked_at bigint not null,
    due_at bigint not null,
    tries integer not null,
    primary key (path)
);

create index file_deletion_due on file_deletion (due_at);
create index artifact_expires on artifact (expires_at) where expires_at is not null and deleted_at is null;
