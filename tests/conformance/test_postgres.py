"""Only on PostgreSQL: row locks, lost connections, ambiguous commits, LISTEN, and the server's clock."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tenure.clock import SECOND_US
from tenure.errors import TenureError
from tenure.kernel.act_rows import CostLineRow, RunSpendRow
from tenure.kernel.run_rows import ROWS, Row, RunRow, StaleMessageRow
from tenure.kernel.server_rows import RemoteLeaseRow
from tenure.store.port import AmbiguousCommit, DataRejected, Query, Save, Saved, Transaction, WriteConflict
from tenure.store.postgres import PostgresStore
from tenure.store.postgres.connection import STATEMENTS_MAX
from tenure.store.postgres.statements import SQL, TABLES, compose_save, pack_save
from tests.conformance.samples import (
    DONE,
    a_checkpoint,
    a_child,
    a_message,
    a_payload,
    a_ready_step,
    a_receipt,
    a_run,
    a_spec,
    a_verdict,
    a_wait,
    an_approval,
    an_attempt,
    an_event,
    an_idempotency_record,
    an_outbox_row,
)
from tests.conformance.stores import ask, create, save, sizes
from tests.conformance.tcp_proxy import TcpProxy
from tools.postgres_server import QUICK_SETTINGS, PrivatePostgres

FOREVER_US = 1 << 62


@asynccontextmanager
async def opened(dsn: str, **how: Any) -> AsyncIterator[PostgresStore]:
    """A migrated, open store."""
    store = PostgresStore(dsn, **how)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def connect_directly(dsn: str) -> AsyncIterator[Any]:
    """A separate connection that sees our tables."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "tenure"})
    try:
        yield connection
    finally:
        await connection.close()


def change(run_id: int, version: int, *, until: int | None = None, **given: Any) -> Save:
    """A save that takes a run from one version to the next, with an event."""
    return Save(
        expect=[(run_id, version, until)],
        runs=[a_run(run_id, version=version + 1, **given)],
        rows={"event": [an_event(run_id, version + 1)]},
    )


async def make_runs(store: PostgresStore, *run_ids: int, **given: Any) -> None:
    runs = [a_run(run_id, **given) for run_id in run_ids]
    await save(store, Save(new_runs=runs, new_specs=[a_spec(run_id) for run_id in run_ids]))


async def versions(store: PostgresStore, *run_ids: int) -> list[int]:
    return [(await store.read("get_run", run_id))[0].version for run_id in run_ids]


async def blocked_backend(connection: Any) -> int:
    """Wait until one of the store's backends waits for a lock; its process id."""
    return await backend_in(connection, "Lock")


async def backend_in(connection: Any, event_type: str) -> int:
    """Wait until one of the store's backends waits for something of this type; its process id.

    Within a transaction, pg_stat_activity is a snapshot, and stores connect lazily. Without clearing the snapshot, this
    would wait forever for a backend that connects later.
    """
    while True:
        await connection.execute("select pg_stat_clear_snapshot()")
        pid = await connection.fetchval(
            "select pid from pg_stat_activity where datname = current_database() and application_name = 'tenure'"
            " and wait_event_type = $1",
            event_type,
        )
        if pid is not None:
            return int(pid)
        await asyncio.sleep(0.005)


async def moments() -> AsyncIterator[None]:
    """Yield every few milliseconds, until the caller leaves the loop."""
    while True:
        yield
        await asyncio.sleep(0.005)


async def connections(connection: Any) -> list[int]:
    """The backend process ids of this database's stores."""
    found = await connection.fetch(
        "select pid from pg_stat_activity where datname = current_database() and application_name = 'tenure'"
    )
    return [row[0] for row in found]


async def end_backends(connection: Any) -> int:
    """Terminate all of the stores' backends; how many there were."""
    pids = await connections(connection)
    await connection.execute("select pg_terminate_backend(pid) from unnest($1::integer[]) pid", pids)
    return len(pids)


# ----------------------------------------------------------------------------------------------- locks


async def test_a_transaction_that_waited_for_a_run_sees_its_changed_step(
    postgres_dsn: str,
) -> None:
    """Lock, then load: the load is a statement of its own, so its snapshot is taken after the lock."""

    def lock_and_load() -> Transaction[tuple[RunRow, Row]]:
        runs = yield Query("lock_runs", [(1,)])
        steps = yield Query("load_steps", [(1, 0)])
        return runs[0], steps[0]

    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await create(store, a_run(1), a_spec(1), a_ready_step(1, 0))
        async with other.transaction():
            await other.execute("select from run where id = 1 for update")
            waiting = asyncio.create_task(store.transact(lock_and_load))
            await blocked_backend(other)
            await other.execute(
                "update run set version = 7; update step set state = 'running', claimable = false"
            )
        run, step = await waiting
        assert (run.version, step.state) == (7, "running")  # type: ignore[attr-defined]  # it is a step


@pytest.mark.parametrize("changing", [True, False])
async def test_a_save_that_waited_for_a_run_checks_its_version_again(
    postgres_dsn: str, changing: bool
) -> None:
    """Whether the save changes the run or only expects its version."""
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1, 2)
        both = change(1, 0)
        both.expect.append((2, 0, None))
        if changing:
            both.runs.append(a_run(2, version=1))
        async with other.transaction():
            await other.execute("update run set version = 7 where id = 1")
            waiting = asyncio.create_task(save(store, both, single=True))
            await blocked_backend(other)
        assert (await waiting).ids == {2}
        assert await versions(store, 1, 2) == [7, int(changing)]
        assert await store.read("events_of", 1) == []


async def test_a_deadlock_is_a_conflict_that_wrote_nothing(postgres_dsn: str) -> None:
    """The store always locks in order; other clients may not."""

    def one_then_two() -> Transaction[Saved]:
        saved: Saved = yield change(1, 0)
        yield Query("lock_runs", [(2,)])
        return saved

    async with connect_directly(postgres_dsn) as other:
        name = await other.fetchval("select current_database()")
        # The session that detects a deadlock is rolled back. Only the store's session may detect it, after the other one waits too.
        await other.execute(f"alter database {name} set deadlock_timeout = '500ms'")
        await other.execute("set deadlock_timeout = '1h'")
        async with opened(postgres_dsn) as store:
            await make_runs(store, 1, 2)
            async with other.transaction():
                await other.execute("select from run where id = 2 for update")
                waiting = asyncio.create_task(store.transact(one_then_two))
                await blocked_backend(other)
                await other.execute("select from run where id = 1 for update")
                with pytest.raises(WriteConflict):
                    await waiting
            assert await versions(store, 1) == [0]
            assert (await store.transact(one_then_two)).ids == {1}


async def test_saves_of_the_same_runs_on_many_lanes_never_deadlock(postgres_dsn: str) -> None:
    """Rows are locked in id order whatever the order of the save. A lost race is a missing id, not an error."""
    chance = random.Random(7450)
    run_ids = list(range(1, 31))

    async def hammer(store: PostgresStore, lane: int) -> int:
        wrote = 0
        for _ in range(60):
            mine = chance.sample(run_ids, 12)
            known = {
                run.id: run.version
                for run in await store.read("lock_runs", rows=[(run_id,) for run_id in mine])
            }
            batch = Save(
                expect=[(run_id, known[run_id], None) for run_id in mine],
                runs=[a_run(run_id, version=known[run_id] + 1) for run_id in mine],
                rows={"event": [an_event(run_id, known[run_id] + 1) for run_id in mine]},
            )
            if chance.random() < 0.2:
                batch.runs = batch.runs[:6]  # now the locks need their own step
                batch.rows = {}
            saved = await save_on(store, lane, batch)
            wrote += len(saved.ids & {run.id for run in batch.runs})
        return wrote

    async def save_on(store: PostgresStore, lane: int, batch: Save) -> Saved:
        def one() -> Transaction[Saved]:
            saved: Saved = yield batch
            return saved

        return await store.transact(one, lane=lane, single=True)

    async with opened(postgres_dsn) as store:
        await make_runs(store, *run_ids)
        wrote = await asyncio.gather(*(hammer(store, lane) for lane in range(4)))
        assert sum(wrote) == sum(await versions(store, *run_ids))


async def test_locking_free_runs_skips_locked_runs(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1, 2, 3)
        async with other.transaction():
            await other.execute("select from run where id = 2 for update")
            for query in ("lock_free_runs", "lock_free_heads"):
                free = await ask(store, query, [(3,), (2,), (1,)])
                assert [run.id for run in free] == [1, 3]


async def test_a_tenant_lock_lasts_until_the_commit(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        query = "select pg_advisory_xact_lock(hashtextextended('acme', 7450))"
        async with other.transaction():
            await other.execute(query)
            waiting = asyncio.create_task(ask(store, "lock_tenants", [("zoo",), ("acme",), ("acme",)]))
            assert await ask_on(store, 1, "lock_tenants", [("emca",)]) == []
            await blocked_backend(other)
        assert await waiting == []


async def ask_on(store: PostgresStore, lane: int, name: str, rows: list[tuple[Any, ...]]) -> list[Any]:
    def transaction() -> Transaction[list[Any]]:
        answer: list[Any] = yield Query(name, rows)
        return answer

    return await store.transact(transaction, lane=lane)


async def test_a_lock_that_is_never_released_is_reported_as_a_busy_store(postgres_dsn: str) -> None:
    async with opened(postgres_dsn, patience_seconds=0.2) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1)
        async with other.transaction():
            await other.execute("select from run where id = 1 for update")
            for single in (True, False):
                with pytest.raises(TenureError) as refused:
                    await save(store, change(1, 0), single=single)
                assert refused.value.code == "STORE_BUSY"
        assert (await save(store, change(1, 0))).ids == {1}


async def test_an_interrupted_transaction_releases_its_locks(postgres_dsn: str) -> None:
    def lock_both() -> Transaction[list[RunRow]]:
        yield Query("lock_runs", [(1,)])
        runs: list[RunRow] = yield Query("lock_runs", [(2,)])
        return runs

    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1, 2)
        async with other.transaction():
            await other.execute("select from run where id = 2 for update")
            waiting = asyncio.create_task(store.transact(lock_both))
            await blocked_backend(other)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await other.execute("select from run where id = 1 for update")  # the lock is free
        assert (await save(store, change(1, 0))).ids == {1}


# ----------------------------------------------------------------------------------- lost connections


async def test_idle_connections_that_were_closed_are_replaced_silently(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1)
        assert await versions(store, 1) == [0]
        assert await end_backends(other) >= 2
        await asyncio.sleep(0.05)
        assert (await save(store, change(1, 0))).ids == {1}
        assert await versions(store, 1) == [1]


async def test_a_transaction_cut_before_its_commit_is_repeated(postgres_dsn: str) -> None:
    makes = 0

    def twice() -> Transaction[Saved]:
        nonlocal makes
        makes += 1
        yield Query("lock_runs", [(1,)])
        yield Query("lock_runs", [(2,)])
        saved: Saved = yield change(1, 0)
        return saved

    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1, 2)
        async with other.transaction():
            await other.execute("select from run where id = 2 for update")
            waiting = asyncio.create_task(store.transact(twice))
            await other.execute("select pg_terminate_backend($1)", await blocked_backend(other))
        assert (await waiting).ids == {1}
        assert makes == 2
        assert await versions(store, 1) == [1]


async def test_a_single_save_that_is_cut_is_ambiguous(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1)
        async with other.transaction():
            await other.execute("select from run where id = 1 for update")
            waiting = asyncio.create_task(save(store, change(1, 0), single=True))
            await other.execute("select pg_terminate_backend($1)", await blocked_backend(other))
            with pytest.raises(AmbiguousCommit):
                await waiting
        assert await ask(store, "load_event_hashes", [(1, 1)]) == []  # the save was not committed
        assert (await save(store, change(1, 0), single=True)).ids == {1}


async def test_a_commit_that_is_cut_is_ambiguous(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1)
        await other.execute("""
            create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(30); return new; end';
            create constraint trigger slow after insert on event deferrable initially deferred
                for each row execute function slow();
        """)
        waiting = asyncio.create_task(save(store, change(1, 0)))
        await other.execute("select pg_terminate_backend($1)", await backend_in(other, "Timeout"))
        with pytest.raises(AmbiguousCommit):
            await waiting
        assert await versions(store, 1) == [0]


@pytest.mark.parametrize("single", [True, False])
async def test_a_commit_with_a_lost_answer_is_proven_by_its_event(postgres_dsn: str, single: bool) -> None:
    async with (
        TcpProxy(postgres_dsn).serve() as wire,
        opened(wire.dsn) as store,
        opened(postgres_dsn) as witness,
    ):
        await make_runs(store, 1)
        await save(store, change(1, 0), single=single)  # all statements are prepared now

        def save_then_cut() -> Transaction[Saved]:
            saved: Saved = yield change(1, 1)
            wire.cut_before_an_answer()
            return saved

        if single:
            wire.cut_before_an_answer()
        with pytest.raises(AmbiguousCommit):
            await (save(store, change(1, 1), single=True) if single else store.transact(save_then_cut))
        found: list[Any] = []
        async for _ in moments():
            if found := await ask(witness, "load_event_hashes", [(1, 2)]):
                break
        assert [(event.seq, event.hash) for event in found] == [(2, b"hash-2")]
        assert (await save(store, change(1, 1), single=single)).ids == set()
        assert (await save(store, change(1, 2), single=single)).ids == {1}


async def test_the_store_waits_for_a_server_that_restarts() -> None:
    with PrivatePostgres(QUICK_SETTINGS) as server:
        async with opened(server.dsn()) as store:
            await make_runs(store, 1)
            assert await versions(store, 1) == [0]
            server.stop()
            waiting = asyncio.create_task(save(store, change(1, 0)))
            reading = asyncio.create_task(versions(store, 1))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            assert not reading.done()
            await asyncio.to_thread(server.start)
            assert (await waiting).ids == {1}
            assert (await reading)[0] in (0, 1)
            assert await versions(store, 1) == [1]


async def test_a_server_that_does_not_come_back_is_unavailable() -> None:
    with PrivatePostgres(QUICK_SETTINGS) as server:
        async with opened(server.dsn(), patience_seconds=0.3) as store:
            await make_runs(store, 1)
            server.stop()
            for attempt in (
                save(store, change(1, 0)),
                save(store, change(1, 0), single=True),
                versions(store, 1),
            ):
                with pytest.raises(TenureError) as refused:
                    await attempt
                assert refused.value.code == "STORE_UNAVAILABLE"
                assert refused.value.retryable
            with pytest.raises(TenureError) as refused:
                await PostgresStore(server.dsn()).open()
            assert refused.value.code == "STORE_UNAVAILABLE"


async def test_the_store_reconnects_to_a_server_that_stopped_answering(postgres_dsn: str) -> None:
    """A half-open connection: no reset arrives. A running commit is ambiguous; anything else is repeated."""
    async with (
        TcpProxy(postgres_dsn).serve() as wire,
        opened(wire.dsn, patience_seconds=0.2, silence_seconds=0.1) as store,
    ):
        await make_runs(store, 1)
        await save(store, change(1, 0), single=True)
        wire.mute()
        with pytest.raises(AmbiguousCommit):
            await save(store, change(1, 1), single=True)
        with pytest.raises(TenureError) as refused:
            await save(store, change(1, 1))
        assert refused.value.code == "STORE_UNAVAILABLE"
        wire.unmute()
        assert (await save(store, change(1, 2))).ids == {1}  # the ambiguous save was committed


async def test_closing_a_store_finishes_running_work_and_refuses_new_work(
    postgres_dsn: str,
) -> None:
    async with connect_directly(postgres_dsn) as other:
        store = PostgresStore(postgres_dsn)
        await store.migrate()
        await store.open()
        await make_runs(store, 1, 2)
        async with other.transaction():
            await other.execute("select from run where id = 1 for update")
            under_way = asyncio.create_task(save(store, change(1, 0)))
            await blocked_backend(other)
            queued = asyncio.create_task(save(store, change(2, 0)))
            await asyncio.sleep(0)
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(0.02)
            assert not closing.done()
        assert (await under_way).ids == {1}
        await closing
        with pytest.raises(TenureError, match="closed"):
            await queued
        with pytest.raises(TenureError, match="closed"):
            await store.read("get_run", 1)
        async for _ in moments():
            if not await connections(other):
                break


async def test_a_changed_type_does_not_break_prepared_statements(postgres_dsn: str) -> None:
    """A later version's migration has changed the table."""
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1)
        for version, single in ((0, True), (1, False)):
            await save(store, change(1, version), single=single)
            await versions(store, 1)
            await other.execute('alter table run alter column parked type varchar(80) collate "C"')
            await other.execute("alter table run add column later text")
            assert await versions(store, 1) == [version + 1]
            await other.execute("alter table run drop column later")
        assert (await save(store, change(1, 2), single=True)).ids == {1}


# ------------------------------------------------------------------------------------------- refusals


async def test_a_refusal_of_the_server_has_a_code_and_leaves_the_lane_usable(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1)
        await other.execute(
            "create function refuse() returns trigger language plpgsql as"
            " 'begin raise exception ''no'' using errcode = tg_argv[0]; end'"
        )
        for single in (True, False):
            for state, expected in (
                ("53100", "STORE_FULL"),
                ("25006", "STORE_READ_ONLY"),
                ("40001", WriteConflict),
            ):
                await other.execute(
                    f"create trigger refuse before insert on event for each row execute function refuse('{state}')"
                )
                with pytest.raises(TenureError if isinstance(expected, str) else expected) as refused:
                    await save(store, change(1, 0), single=single)
                if isinstance(refused.value, TenureError):
                    assert refused.value.code == expected
                await other.execute("drop trigger refuse on event")
            with pytest.raises(DataRejected):
                await save(store, change(1, 0, status="dreaming"), single=single)
            with pytest.raises(DataRejected):
                await save(store, change(1, 0, parked="\0"), single=single)
            with pytest.raises(DataRejected):
                await save(store, change(1, 0, steps_total=1 << 40), single=single)
            with pytest.raises(DataRejected):
                await save(store, change(1, 0, steps_total=-1), single=single)
            twice = change(1, 0)
            twice.rows["step"] = [a_ready_step(1, 0), a_ready_step(1, 0)]
            with pytest.raises(DataRejected):
                await save(store, twice, single=single)
        assert (await save(store, change(1, 0))).ids == {1}


async def test_a_read_only_database_is_reported(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1)
        name = await other.fetchval("select current_database()")
        await other.execute(f"alter database {name} set default_transaction_read_only = on")
        await end_backends(other)
        with pytest.raises(TenureError) as refused:
            await save(store, change(1, 0))
        assert refused.value.code == "STORE_READ_ONLY"
        assert await versions(store, 1) == [0]


async def test_connection_errors_never_show_the_password(postgres_dsn: str) -> None:
    for dsn in (
        "postgresql://u:secret@127.0.0.1:1/x",
        "postgresql://u:secret@/x?host=/nowhere",
        "postgres:secret@@",
    ):
        with pytest.raises(TenureError) as refused:
            await PostgresStore(dsn).open()
        assert refused.value.code in ("STORE_UNAVAILABLE", "STORE_NOT_A_DATABASE")
        assert "secret" not in str(refused.value)


# ---------------------------------------------------------------------------------------------- saves


def _rows_of(run_id: int) -> dict[str, Row]:
    """One row of every table that a save may write."""
    rows: list[Row] = [
        a_spec(run_id, labels='{"new": true}'),
        a_ready_step(run_id, 0),
        an_attempt(run_id, 0, 1),
        a_checkpoint(run_id, 0, "c", 1),
        a_wait(run_id, 1),
        an_approval(run_id, 1),
        a_message(run_id, 1, "e"),
        a_child(run_id, run_id + 1),
        a_payload(run_id, 1),
        an_event(run_id, 1),
        an_outbox_row(run_id, 1),
        a_verdict(run_id, 1),
        a_receipt(run_id, 2),
        RunSpendRow(run_id, 5, 1),
        CostLineRow(run_id, 3, "acme", "build", 20_000, "a provider", "a model", "USD"),
        StaleMessageRow(run_id, 0, 1, "complete", 3, "worker-1", 1000),
        an_idempotency_record(f"key-{run_id}", run_id=run_id),
        RemoteLeaseRow(run_id, 0, 1, "acme", "key/claim", bytes(32)),
    ]
    return {row.table: row for row in rows}


def test_the_samples_cover_every_table() -> None:
    assert set(_rows_of(1)) == set(TABLES) == (set(ROWS) - {"run", "cap"}) | {"remote_lease"}


@pytest.mark.parametrize("single", [True, False])
async def test_a_save_may_combine_any_parts(postgres_dsn: str, single: bool) -> None:
    """The statement contains only the given parts and leaves all other rows unchanged."""
    chance = random.Random(7450)
    count: dict[str, int] = {}
    async with opened(postgres_dsn) as store:
        for run_id in range(10, 70):
            is_new, changes = chance.random() < 0.4, chance.random() < 0.5
            size = chance.randrange(4) if chance.random() < 0.5 else chance.randrange(len(TABLES) + 1)
            tables = chance.sample(TABLES, size)
            batch = Save(rows={table: [_rows_of(run_id)[table]] for table in tables})
            if is_new:
                batch.new_runs, batch.new_specs = [a_run(run_id)], [a_spec(run_id)]
            else:
                await make_runs(store, run_id)
                batch.expect = [(run_id, 0, None)]
                batch.runs = [a_run(run_id, version=1)] if changes else []
            if chance.random() < 0.3:
                batch.delivered = [
                    (run_id, 1, 0)
                ]  # the row does not exist yet: a save does not delete its own rows
            saved = await save(store, batch, single=single)
            assert saved.ids == {run_id}, sorted(tables)
            for table in (
                "run",
                "run_spec",
                *(t for t in tables if t != "remote_lease"),
            ):  # which belongs to no run
                count[table] = count.get(table, 0) + (table != "run_spec" or "run_spec" not in tables)
            count["run_spec"] = count["run"]
            assert await sizes(store) == count, sorted(tables)
            (run,) = await store.read("get_run", run_id)
            (spec,) = await store.read("get_spec", run_id)
            assert run.version == int(changes and not is_new)
            assert spec.labels == ('{"new": true}' if "run_spec" in tables and not is_new else spec.labels)


async def test_an_empty_save_returns_the_time(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store:
        for single in (True, False):
            saved = await save(store, Save(), single=single)
            assert saved.ids == set()
            assert abs(saved.now_us - (await store.read("now"))[0].now_us) < 10 * SECOND_US


async def test_a_deletion_includes_all_rows_of_the_run(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store:
        for run_id in (1, 2, 3):
            await create(store, a_run(run_id, **DONE), a_spec(run_id), *_rows_of(run_id).values())
        batch = Save(
            expect=[(1, 0, None), (2, 5, None)],
            delete_runs=[1, 2],
            delivered=[(3, 1, 0)],
            new_runs=[a_run(4)],
            new_specs=[a_spec(4)],
        )
        assert (await save(store, batch, single=True)).ids == {1, 4}
        assert [row.run_id for row in await store.read("run_ids_after", 0, 10)] == [2, 3, 4]
        assert await store.read("orphan_rows") == []
        assert [len(await store.read("outbox_of", run_id)) for run_id in (1, 2, 3)] == [1, 1, 0]


def test_a_statement_is_composed_once_per_set_of_parts() -> None:
    one, two = change(1, 0), change(2, 5)
    assert compose_save(pack_save(one, 0)[0]) is compose_save(pack_save(two, 0)[0])
    assert "into step" not in compose_save(pack_save(one, 0)[0])


def test_a_composed_save_is_named_queries_joined_as_they_are() -> None:
    """Only the parameter numbers differ: every writing statement is in a .sql file."""
    texts = set(SQL.values())
    everything = frozenset({"run", "new_spec", "new_run", *TABLES, "feed", "delivered", "expected", "delete"})
    for parts in (
        everything,
        everything - {"expected", "delete"},
        frozenset({"one", "light_run", *TABLES, "feed"}),
    ):
        statement = re.sub(r"\$(?!1\b|2\b)\d+", "?", compose_save(parts))
        for text in sorted(texts, key=len, reverse=True):
            statement = statement.replace(f"as materialized ({text})", "").replace(text, "")
        assert re.fullmatch(r"with [\w ,]+", statement), statement
        assert compose_save.cache_info().maxsize == STATEMENTS_MAX


# ----------------------------------------------------------------------------------------------- time


async def test_time_comes_from_the_server_and_can_be_shifted_in_tests(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:

        async def server_us() -> int:
            return int(await other.fetchval("select extract(epoch from clock_timestamp()) * 1000000"))

        await make_runs(store, 1)
        for shift in (0, -3600 * SECOND_US, 86_400 * SECOND_US):
            store.shift_clock(shift)
            before = await server_us() + shift
            (moment,) = await ask(store, "now")
            saved = await save(store, Save())
            estimate = store.estimate_us()
            after = await server_us() + shift
            assert estimate is not None
            assert before <= moment.now_us <= saved.now_us <= after
            assert saved.now_us <= estimate <= after + SECOND_US // 10


async def test_a_save_is_refused_after_its_lease_has_expired_by_the_servers_clock(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as store:
        await make_runs(store, 1)
        now = (await store.read("now"))[0].now_us
        for single in (True, False):
            assert (await save(store, change(1, 0, until=now - 1), single=single)).ids == set()
        store.shift_clock(-10 * SECOND_US)
        assert (await save(store, change(1, 0, until=now - 1), single=True)).ids == {1}
        store.shift_clock(+10 * SECOND_US)
        assert (await save(store, change(1, 1, until=now + SECOND_US), single=True)).ids == set()


@pytest.mark.parametrize("by_seconds", [-1.1, 1.1, -0.9, 0.9])
async def test_an_estimated_time_may_be_off_by_a_second(postgres_dsn: str, by_seconds: float) -> None:
    async with opened(postgres_dsn) as store:
        await make_runs(store, 1)
        estimated = change(1, 0)
        estimated.estimate_us = (await store.read("now"))[0].now_us + int(by_seconds * SECOND_US)
        saved = await save(store, estimated, single=True)
        assert saved.ids == ({1} if abs(by_seconds) < 1 else set())


async def test_a_save_whose_estimate_became_wrong_is_rolled_back(
    postgres_dsn: str,
) -> None:
    async with opened(postgres_dsn) as store, connect_directly(postgres_dsn) as other:
        await make_runs(store, 1, 2)
        late = change(1, 0)
        late.expect.append((2, 0, None))
        late.runs.append(a_run(2, version=1))
        late.estimate_us = now = (await store.read("now"))[0].now_us
        async with other.transaction():
            await other.execute("select from run where id = 2 for update")
            waiting = asyncio.create_task(save(store, late, single=True))
            await blocked_backend(other)
            await asyncio.sleep(1.1)
        saved = await waiting
        assert saved.ids == set()
        assert saved.now_us > now + SECOND_US
        assert await versions(store, 1, 2) == [0, 0]


# ------------------------------------------------------------------------------------------- wake-ups


async def woken(store: PostgresStore, seconds: float = 5.0) -> bool:
    return await store.wait_for_work(seconds)


async def take_first_wake_up(store: PostgresStore) -> None:
    """Wait for the wake-up of a new connection, and check that it is the only one."""
    assert await woken(store)
    assert not await woken(store, 0.05)


async def test_new_work_notifies_other_processes_only(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as alice, opened(postgres_dsn) as bob:
        await take_first_wake_up(alice)
        await take_first_wake_up(bob)
        waiting = [asyncio.create_task(woken(bob)) for _ in range(2)]
        await asyncio.sleep(0)
        await alice.notify_work()
        assert [await waiter for waiter in waiting] == [True, True]
        assert not await woken(alice, 0.05)


async def test_notifications_within_milliseconds_are_merged(postgres_dsn: str) -> None:
    async with opened(postgres_dsn) as alice, connect_directly(postgres_dsn) as other:
        notes: list[Any] = []
        await take_first_wake_up(alice)
        await other.add_listener("tenure_work", lambda *note: notes.append(note))
        begin = time.monotonic()
        while time.monotonic() < begin + 0.1:
            await alice.notify_work()
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert 1 <= len(notes) <= 21


async def test_a_lost_listener_reconnects_and_polls_immediately(postgres_dsn: str) -> None:
    async with (
        opened(postgres_dsn) as alice,
        opened(postgres_dsn) as bob,
        connect_directly(postgres_dsn) as other,
    ):
        await take_first_wake_up(alice)
        await take_first_wake_up(bob)
        assert await end_backends(other) >= 2
        await take_first_wake_up(bob)  # a reconnect wakes, because notifications may have been missed
        await take_first_wake_up(alice)
        await alice.notify_work()
        assert await woken(bob)


async def test_a_half_open_listener_is_detected_and_replaced(postgres_dsn: str) -> None:
    async with (
        TcpProxy(postgres_dsn).serve() as wire,
        opened(wire.dsn, ping_seconds=0.1) as bob,
        opened(postgres_dsn) as alice,
    ):
        await take_first_wake_up(alice)
        await take_first_wake_up(bob)
        wire.mute()
        before = wire.connections
        async for _ in moments():
            if wire.connections > before:
                break
        wire.unmute()
        assert await woken(bob)
        await asyncio.sleep(0.1)
        await alice.notify_work()
        assert await woken(bob)
