"""Which PostgreSQL server a store connects to: hosts, standbys, servers that are not ready, poolers, and roles without rights."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import pytest

from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.store.port import Saved
from tenure.store.postgres import PostgresStore
from tenure.store.postgres import connection as link
from tenure.store.postgres.connection import LANE_SETTINGS, split_hosts, use_schema
from tenure.store.postgres.statements import SQL
from tests.conformance.samples import a_run, a_spec, an_event
from tests.conformance.stores import create, save
from tests.conformance.test_postgres import change, moments, opened, versions
from tools.postgres_server import QUICK_SETTINGS, PrivatePostgres


@asynccontextmanager
async def connect_directly(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@contextmanager
def a_server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres({**QUICK_SETTINGS, "shared_buffers": "16MB", "max_connections": "40"}) as server:
        yield server


def demote(server: PrivatePostgres) -> None:
    """Restart a server as a standby, like an old primary after a failover."""
    server.stop()
    signal = server.directory / "data" / "standby.signal"
    signal.touch()
    owner = (server.directory / "data").stat()
    shutil.chown(signal, owner.st_uid, owner.st_gid)
    server.start()


async def promote(server: PrivatePostgres) -> None:
    async with connect_directly(server.dsn()) as connection:
        await connection.execute("select pg_promote()")


class Refusals:
    """Counts refused connection attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        connect = link.PostgresTarget.connect

        async def counting(*what: Any, **how: Any) -> Any:
            try:
                return await connect(*what, **how)
            except Exception:
                self.count += 1
                raise

        monkeypatch.setattr(link.PostgresTarget, "connect", counting)

    async def one_more(self, *waiting: asyncio.Task[Any]) -> None:
        """Wait until one more connection attempt is refused, while these tasks still wait."""
        before = self.count
        async for _ in moments():
            assert not any(task.done() for task in waiting), "the task did not wait"
            if self.count > before:
                break


async def code_of(work: Any) -> str:
    with pytest.raises(TenureError) as refused:
        await work
    return refused.value.code


async def test_a_server_that_disappears_during_the_check_is_tried_again(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    look_at = link.PostgresTarget._inspect

    async def broken(*what: Any) -> Any:
        nonlocal looked
        looked += 1
        if looked % 2:
            raise asyncpg.InternalClientError(
                "cannot switch to state 11; another operation (2) is in progress"
            )
        return await look_at(*what)

    monkeypatch.setattr(link.PostgresTarget, "_inspect", broken)
    store = PostgresStore(postgres_dsn)
    await store.migrate()
    await store.open()
    await create(store, a_run(1), a_spec(1))
    await store.close()
    assert looked >= 4


async def test_an_engine_waits_for_a_database_that_disappears_again(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    migrate = PostgresStore.migrate

    async def gone(store: PostgresStore) -> list[str]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TenureError("STORE_UNAVAILABLE", "it was there a moment ago")
        return await migrate(store)

    monkeypatch.setattr(PostgresStore, "migrate", gone)
    async with Engine(postgres_dsn, wait_for_database=30):
        assert tries == 2
    tries = 0
    assert await code_of(Engine(postgres_dsn).__aenter__()) == "STORE_UNAVAILABLE"


# ------------------------------------------------------------------------------------------------ hosts


def test_every_host_of_a_dsn_is_tried_separately() -> None:
    assert split_hosts("postgresql://u:p@a:1,b:2/db?target_session_attrs=primary&sslmode=disable") == (
        ["postgresql://u:p@a:1/db?sslmode=disable", "postgresql://u:p@b:2/db?sslmode=disable"],
        "primary",
    )
    assert split_hosts("postgresql://u@/db?host=/a,/b&port=1,2")[0] == [
        "postgresql://u@/db?host=/a&port=1",
        "postgresql://u@/db?host=/b&port=2",
    ]
    for alone in (
        "postgresql://u:p%40x@h/db",
        "postgresql://",
        "postgresql:///db?host=/run",
        "postgres://[::1]:5/db",
    ):
        assert split_hosts(alone) == ([alone], None)


@pytest.mark.guard_seconds(120)
async def test_the_primary_is_found_among_standbys_and_after_a_promotion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One server plays both roles: it restarts as a standby, like an old primary, and is promoted again."""
    refusals = Refusals(monkeypatch)
    with a_server() as server, a_server() as second:
        both = f"postgresql://postgres@/postgres?host={server.directory},{second.directory}"
        async with opened(server.dsn()), opened(second.dsn()):
            pass
        demote(server)
        async with opened(both) as store:
            await create(store, a_run(1), a_spec(1))
            async with connect_directly(second.dsn()) as there:
                assert await there.fetchval("select count(*) from tenure.run") == 1
        # A lone standby is retried until the time is over.
        assert await code_of(PostgresStore(server.dsn(), patience_seconds=0.3).open()) == "STORE_READ_ONLY"
        reader = PostgresStore(server.dsn(), only_reads=True)
        await reader.open()
        assert await reader.read("get_run", 1) == []
        await reader.close()
        waiting = PostgresStore(server.dsn(), patience_seconds=60)
        opening = asyncio.create_task(waiting.open())
        await refusals.one_more(opening)
        await promote(server)
        await opening
        # The server of an open store comes back as a standby: queries wait for its promotion.
        await create(waiting, a_run(2), a_spec(2))
        await asyncio.to_thread(demote, server)
        saving = asyncio.create_task(save(waiting, change(2, 0), single=True))
        reading = asyncio.create_task(versions(waiting, 2))
        await refusals.one_more(saving)
        await promote(server)
        assert (await saving).ids == {2}
        assert (await reading)[0] in (0, 1)
        await waiting.close()


async def test_a_server_without_free_connections_is_tried_again(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = Refusals(monkeypatch)
    async with opened(postgres_dsn), connect_directly(postgres_dsn) as owner:
        role = "crowded_" + postgres_dsn.rsplit("tenure_test_", 1)[1].partition("?")[0]
        await owner.execute(f"create role {role} login superuser connection limit 0")
        try:
            await owner.execute(f"alter role {role} nosuperuser; grant usage on schema tenure to {role};"
                                f"grant all on all tables in schema tenure to {role}")  # fmt: skip
            dsn = postgres_dsn.replace("postgres@", f"{role}@", 1)
            assert await code_of(PostgresStore(dsn, patience_seconds=0.2).open()) == "STORE_UNAVAILABLE"
            store = PostgresStore(dsn)
            opening = asyncio.create_task(store.open())
            await refusals.one_more(opening)
            await owner.execute(f"alter role {role} connection limit -1")
            await opening
            await store.close()
        finally:
            await owner.execute(f"drop owned by {role}; drop role {role}")


# --------------------------------------------------------------------------------------------- waiting


async def test_the_store_waits_for_a_server_that_is_down_at_the_start() -> None:
    with a_server() as server:
        server.stop()
        messages: list[str] = []
        store = PostgresStore(server.dsn())
        assert await code_of(store.wait_until_reachable(0, messages.append)) == "STORE_UNAVAILABLE"
        assert messages == []
        waiting = asyncio.create_task(store.wait_until_reachable(60, messages.append))
        async for _ in moments():
            if messages:
                break
        assert "cannot be reached" in messages[0]
        await asyncio.to_thread(server.start)
        await waiting


# ---------------------------------------------------------------------------------------------- rights


async def test_the_error_for_a_role_names_its_missing_rights(postgres_dsn: str) -> None:
    async with connect_directly(postgres_dsn) as owner:
        role = "poor_" + postgres_dsn.rsplit("tenure_test_", 1)[1].partition("?")[0]
        await owner.execute(f"create role {role} login")
        dsn = postgres_dsn.replace("postgres@", f"{role}@", 1)
        poor = PostgresStore(dsn)

        async def permission_error(work: Any) -> str:
            with pytest.raises(TenureError) as refused:
                await work
            assert refused.value.code == "STORE_PERMISSION_DENIED", refused.value
            assert role in refused.value.message or "permission denied" in refused.value.message
            return refused.value.message

        try:
            assert "permission denied" in await permission_error(
                poor.migrate()
            )  # the role may not create a schema
            async with opened(postgres_dsn):
                assert "usage on schema tenure" in await permission_error(poor.open())
                assert "usage on schema tenure" in await permission_error(poor.migrate())
                await owner.execute(f"grant usage on schema tenure to {role}")
                assert "select on table tenure." in await permission_error(
                    PostgresStore(dsn, only_reads=True).open()
                )
                await owner.execute(f"grant select on all tables in schema tenure to {role}")
                assert "on table tenure." in await permission_error(poor.open())
                reader = PostgresStore(dsn, only_reads=True)
                await reader.open()
                assert await reader.read("get_run", 1) == []
                assert "permission denied" in await permission_error(create(reader, a_run(1), a_spec(1)))
                await reader.close()
                await owner.execute(f"grant all on all tables in schema tenure to {role}")
                await poor.open()
                await create(poor, a_run(1), a_spec(1))
                await poor.close()
        finally:
            await owner.execute(f"drop owned by {role}; drop role {role}")


# ---------------------------------------------------------------------------------------------- poolers


def test_a_statement_can_use_another_schema() -> None:
    assert SQL["hold_saves"].startswith("lock table tenure.run ")
    assert use_schema(SQL["hold_saves"], "s").startswith("lock table s.run ")


async def test_tables_are_created_in_the_schema_or_nowhere(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a pooler that loses the settings of a transaction. Regression: 46 tables were created in `public` without an error."""
    execute = asyncpg.Connection.execute

    async def forgetful(self: Any, text: str, *args: Any, **how: Any) -> str:
        done: str = "SET" if text.startswith("set local") else await execute(self, text, *args, **how)
        return done

    async with connect_directly(postgres_dsn) as owner:
        for path in ("public", "pg_catalog"):
            await owner.execute(f"alter role current_user in database {await owner.fetchval('select current_database()')}"
                                f" set search_path to {path}")  # fmt: skip
            monkeypatch.setitem(link._UNPOOLED_SESSION, "search_path", path)
            with monkeypatch.context() as later:
                later.setattr(asyncpg.Connection, "execute", forgetful)
                with pytest.raises(TenureError, match=r"STORE_NOT_A_DATABASE.*instead of tenure"):
                    await PostgresStore(postgres_dsn).migrate()
            assert (
                await owner.fetchval(
                    "select count(*) from pg_tables where schemaname in ('public', 'tenure')"
                )
                == 0
            )
        await PostgresStore(postgres_dsn).migrate()
        made = await owner.fetch("select schemaname from pg_tables where tablename = 'run'")
        assert [row[0] for row in made] == ["tenure"]


async def test_a_pooler_without_prepared_statements_is_refused(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session without our settings looks like one behind such a pooler."""
    with pytest.raises(TenureError, match=r"STORE_POOLER_REFUSED.*pgbouncer 1.21"):
        await _without_settings(postgres_dsn, monkeypatch).migrate()


def _without_settings(dsn: str, monkeypatch: pytest.MonkeyPatch) -> PostgresStore:
    """A store whose start-up settings were refused, as by pgbouncer."""
    store = PostgresStore(dsn)
    monkeypatch.setattr(store._target, "_bare", True)
    return store


@pytest.mark.parametrize("single", [True, False])
async def test_each_transaction_sets_the_settings_that_its_session_lacks(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, single: bool
) -> None:
    async def fine(_connection: Any) -> None: ...

    async with opened(postgres_dsn) as direct, connect_directly(postgres_dsn) as owner:
        await create(direct, a_run(1), a_spec(1))
        await owner.execute("""
            create table public.noted (name text, value text);
            create function public.note() returns trigger language plpgsql as $$ begin
                insert into public.noted select name, setting from pg_settings
                    where name = any(array['transaction_isolation', 'lock_timeout', 'enable_hashjoin', 'enable_mergejoin',
                        'enable_seqscan', 'idle_in_transaction_session_timeout', 'jit', 'plan_cache_mode']);
                return new; end $$;
            create trigger note before insert on tenure.event for each row execute function public.note();
        """)
        monkeypatch.setattr(link, "_check_pooler", fine)
        store = _without_settings(postgres_dsn, monkeypatch)
        await store.open()
        saved: Saved = await save(store, change(1, 0), single=single)
        assert saved.ids == {1}
        await store.close()
        found = dict(await owner.fetch("select name, value from public.noted"))
        wanted = {**LANE_SETTINGS, "lock_timeout": "30000", "transaction_isolation": "read committed"}
        del wanted["default_transaction_isolation"]
        assert found == wanted


async def test_settings_of_the_role_count_as_settings_of_the_session(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a single save stays one statement, even behind a pooler."""

    async def fine(_connection: Any) -> None: ...

    async with opened(postgres_dsn), connect_directly(postgres_dsn) as owner:
        monkeypatch.setattr(link, "_check_pooler", fine)
        for on_role in (False, True):
            if on_role:
                name = await owner.fetchval("select current_database()")
                for setting, value in {**LANE_SETTINGS, "lock_timeout": "30000"}.items():
                    await owner.execute(f"alter database {name} set {setting} = '{value}'")
            store = _without_settings(postgres_dsn, monkeypatch)
            await store.open()
            await save(store, change(1, 0))
            assert store._lanes[0].settled is on_role
            assert (store._lanes[0].begin == "begin") is on_role
            await store.close()


async def test_the_search_path_is_not_used_to_find_the_schema(postgres_dsn: str) -> None:
    """A table with the same name in an earlier schema of the search path changes nothing."""
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as owner:
        await owner.execute("create table public.run (id bigint, mine text)")
        await create(store, a_run(1), a_spec(1), an_event(1, 1))
        assert await versions(store, 1) == [0]
