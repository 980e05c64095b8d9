"""The schema of a database: which migrations were applied, and how the missing ones are.

Laws:
1. One transaction applies all missing migrations, under an advisory lock: two processes cannot migrate at once.
2. A migration that was applied is never changed; its checksum is kept and compared.
3. Everything lives in one schema, so that it can share a database with the user's own tables. Migrations name no schema:
   the transaction that applies them sets `search_path`, and checks that it took effect.
"""

from __future__ import annotations

import asyncpg

from tenure.errors import TenureError
from tenure.store.migrations import Migration, checksum, read_migrations, select_missing
from tenure.store.postgres.connection import use_schema
from tenure.store.postgres.statements import SQL

MIGRATIONS = read_migrations("postgres")
_LOCK = "select pg_advisory_xact_lock(hashtextextended('tenure.migrate.' || $1, 7450))"

NOT_DURABLE_QUERY = """
select string_agg(name || '=' || setting, ', ' order by name) from pg_settings
where name in ('fsync', 'full_page_writes', 'synchronous_commit') and setting = 'off'
"""
_LACKING = """
select current_user, w.privilege, w.what from (
    select 0 as rank, 'usage' as privilege, format('schema %I', n.nspname) as what,
        has_schema_privilege(n.oid, 'usage') as held
    from pg_namespace n where n.nspname = $1
    union all
    select 1, p.privilege, format('table %I.%I', n.nspname, c.relname), has_table_privilege(c.oid, p.privilege)
    from pg_namespace n join pg_class c on c.relnamespace = n.oid and c.relkind in ('r', 'p')
    cross join unnest($2::text[]) p (privilege)
    where n.nspname = $1) w
where not w.held order by w.rank, w.what, w.privilege limit 1
"""


async def find_missing_migrations(connection: asyncpg.Connection, schema: str) -> list[Migration]:
    """The migrations that a schema lacks. Refuses schemas of other programs, and schemas newer than this code."""
    tables = "select tablename from pg_tables where schemaname = $1"
    names = {row[0] for row in await connection.fetch(tables, schema)}
    if not names:
        return MIGRATIONS
    if "schema_version" not in names:
        raise TenureError("STORE_NOT_A_DATABASE", f"the schema {schema} is not one of Tenure's")
    query = use_schema(SQL["schema_applied"], schema)
    return select_missing(MIGRATIONS, await connection.fetch(query), "the database")


async def check_rights(connection: asyncpg.Connection, schema: str, *, only_reads: bool = False) -> None:
    """Refuse a role that lacks a right to the schema or a table (STORE_PERMISSION_DENIED)."""
    wanted = ["select"] if only_reads else ["select", "insert", "update", "delete"]
    lacking = await connection.fetchrow(_LACKING, schema, wanted)
    if lacking is not None:
        role, right, what = lacking
        raise TenureError(
            "STORE_PERMISSION_DENIED",
            f"the role {role} lacks {right} on {what}: grant {right} on {what} to {role}, or connect as the role that ran"
            " `tenure migrate`",
        )


async def apply_migrations(connection: asyncpg.Connection, schema: str) -> list[str]:
    """Apply the missing migrations; their names."""
    async with connection.transaction():
        await connection.execute(_LOCK, schema)
        if not await connection.fetchval("select 1 from pg_namespace where nspname = $1", schema):
            await connection.execute(f"create schema {schema}")
        await check_rights(connection, schema)
        todo = await find_missing_migrations(connection, schema)
        await connection.execute(f"set local search_path to {schema}")
        for number, name, text in todo:
            await check_current_schema(connection, schema)
            await connection.execute(text)
            await connection.execute(
                use_schema(SQL["schema_record"], schema), 0, number, name, checksum(text)
            )
    return [name for _, name, _ in todo]


async def check_current_schema(connection: asyncpg.Connection, schema: str) -> None:
    """Refuse to create tables outside of the schema."""
    here = await connection.fetchval("select current_schema()")
    if here != schema:
        raise TenureError(
            "STORE_NOT_A_DATABASE",
            f"new tables would be created in the schema {here or '(none)'} instead of {schema}: nothing was changed;"
            " look for a pooler before PostgreSQL that runs each statement in another session (docs/operating.md)",
        )
