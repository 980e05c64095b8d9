"""The schema of a database: which migrations it has had, and how it gets the rest.

Laws:
1. All missing migrations are applied in one transaction, under an advisory lock: two processes never meet.
2. A migration that was applied is never changed; its checksum is kept and compared.
3. Everything lives in one schema, so that it can share a database with the user's own tables.
"""

from __future__ import annotations

import hashlib

import asyncpg

from tenure.errors import TenureError
from tenure.store.postgres.running import SQL
from tenure.store.sqlfile import migrations

MIGRATIONS = migrations("tenure.store.postgres")
_LOCK = "select pg_advisory_xact_lock(hashtextextended('tenure.migrate.' || $1, 7450))"


def checksum(text: str) -> str:
    """What is kept of a migration that was applied."""
    return hashlib.sha256(text.encode()).hexdigest()


async def missing(connection: asyncpg.Connection, schema: str) -> list[tuple[int, str, str]]:
    """The migrations a schema has not had. Refuses schemas of others, and those newer than this code."""
    tables = await connection.fetch("select tablename from pg_tables where schemaname = $1", schema)
    names = {row[0] for row in tables}
    if not names:
        return MIGRATIONS
    if "schema_version" not in names:
        raise TenureError("STORE_NOT_A_DATABASE", f"the schema {schema} is not one of Tenure's")
    applied = await connection.fetch(SQL["schema_applied"])
    if len(applied) > len(MIGRATIONS):
        raise TenureError(
            "STORE_TOO_NEW",
            f"the database has migration {applied[-1][1]}; this Tenure knows {len(MIGRATIONS)} of them",
        )
    for (number, name, known), (_, _, text) in zip(applied, MIGRATIONS, strict=False):
        if known != checksum(text):
            raise TenureError(
                "STORE_NOT_A_DATABASE", f"migration {number} ({name}) is not the one this database has had"
            )
    return MIGRATIONS[len(applied) :]


async def bring_up(connection: asyncpg.Connection, schema: str) -> list[str]:
    """Apply what is missing; the names of what was applied."""
    async with connection.transaction():
        await connection.execute(_LOCK, schema)
        if not await connection.fetchval("select 1 from pg_namespace where nspname = $1", schema):
            await connection.execute(f"create schema {schema}")
        todo = await missing(connection, schema)
        for number, name, text in todo:
            await connection.execute(text)
            await connection.execute(SQL["schema_record"], 0, number, name, checksum(text))
    return [name for _, name, _ in todo]
