"""Databases on the test's PostgreSQL: empty ones for one test each, and migrated ones that tests use one after another.

Law: a test that borrows a migrated database gets it without rows and with the migrated schema. Emptying a database takes
a few milliseconds, creating one two hundred. A database whose schema was changed by a test is dropped. The planner's statistics are kept.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from tenure.store.postgres import PostgresStore
from tools.postgres_server import ExternalPostgres, PrivatePostgres

_TABLES = "select relname from pg_class where relnamespace = 'tenure'::regnamespace and relkind = 'r'"
_SCHEMA = """
select md5(string_agg(line, ',' order by line)) from (
    select nspname::text from pg_namespace where nspname !~ '^pg_'
    union all select concat(setconfig) from pg_db_role_setting
        where setdatabase = (select oid from pg_database where datname = current_database())
    union all select concat(relname, relacl, reloptions) from pg_class where relnamespace = 'tenure'::regnamespace
    union all select concat(attrelid::regclass, attname, atttypid, attnotnull)
        from pg_attribute join pg_class on pg_class.oid = attrelid where relnamespace = 'tenure'::regnamespace
    union all select indexdef from pg_indexes where schemaname = 'tenure'
    union all select concat(adrelid::regclass, adnum, pg_get_expr(adbin, adrelid))
        from pg_attrdef join pg_class on pg_class.oid = adrelid where relnamespace = 'tenure'::regnamespace
    union all select concat(conname, pg_get_constraintdef(oid)) from pg_constraint
        where connamespace = 'tenure'::regnamespace
    union all select concat(tgname, tgenabled, pg_get_triggerdef(oid)) from pg_trigger where not tgisinternal
    union all select concat(proname, prosrc) from pg_proc where pronamespace = 'tenure'::regnamespace
    union all select schema_version::text from tenure.schema_version
) as lines(line)
"""


class Databases:
    """The databases of one test process."""

    def __init__(self, server: ExternalPostgres | PrivatePostgres) -> None:
        self._server = server
        self._runner = asyncio.Runner()
        self._owner: asyncpg.Connection[asyncpg.Record] = self._runner.run(asyncpg.connect(server.dsn()))
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        self._schema = ""
        self._empty = ""

    def close(self) -> None:
        """Drop the databases that are left."""
        for name in self._free:
            self._drop(name)
        self._runner.run(self._owner.close())
        self._runner.close()

    @contextmanager
    def empty(self) -> Iterator[str]:
        """The address of an empty database."""
        name = self._make()
        yield self._server.dsn(name)
        self._drop(name)

    @contextmanager
    def migrated(self) -> Iterator[str]:
        """The address of a migrated database without rows."""
        name = self._free.pop() if self._free else self._migrated()
        yield self._server.dsn(name)
        if self._runner.run(self._reset(name)):
            self._free.append(name)
        else:
            self._drop(name)

    def _make(self) -> str:
        name = f"tenure_test_{os.getpid()}_{next(self._numbers)}"
        self._execute(f"create database {name}")
        return name

    def _drop(self, name: str) -> None:
        self._execute(f"drop database {name} with (force)")

    def _migrated(self) -> str:
        name = self._make()
        self._runner.run(PostgresStore(self._server.dsn(name)).migrate())
        self._runner.run(self._record_schema(name))
        return name

    async def _record_schema(self, name: str) -> None:
        """Record the schema of a migrated database, and the statement that empties it."""
        connection = await asyncpg.connect(self._server.dsn(name))
        tables = sorted({row[0] for row in await connection.fetch(_TABLES)} - {"schema_version"})
        self._empty = ";".join(f"delete from tenure.{table}" for table in tables)
        self._schema = await connection.fetchval(_SCHEMA)
        await connection.close()

    async def _reset(self, name: str) -> bool:
        """Close all connections and delete every row. The result is whether the schema is unchanged."""
        await self._owner.execute(
            f"select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '{name}'"
        )
        try:
            connection = await asyncpg.connect(self._server.dsn(name))
            try:
                await connection.execute(self._empty)
                return bool(await connection.fetchval(_SCHEMA) == self._schema)
            finally:
                await connection.close()
        except (asyncpg.PostgresError, OSError):
            return False

    def _execute(self, statement: str) -> None:
        self._runner.run(self._owner.execute(statement))
