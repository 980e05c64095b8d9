"""Only on SQLite: a file that is missing, foreign, locked, full or read-only, and the host's clock."""

import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from tenure.clock import SECOND_US, ManualClock
from tenure.errors import TenureError
from tenure.kernel.run_rows import PayloadRow
from tenure.store.migrations import checksum
from tenure.store.port import Query, Save, Transaction
from tenure.store.sqlite import SqliteStore, migrator
from tenure.store.sqlite import store as store_module
from tests.conformance.samples import a_ready_step, a_run, a_spec, an_event
from tests.conformance.stores import ask, create, save, sizes, tables
from tools.sql_schemas import SQLITE_FILE, sqlite_schema

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 8


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **options)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def code_of(attempt: Any) -> str:
    """The error code that a call raises."""
    with pytest.raises(TenureError) as refused:
        await attempt
    return refused.value.code


async def run_processes(task: str, path: Path, count: int = 0) -> list[dict[str, Any]]:
    """Run eight processes at once; the results that they print."""

    async def one(number: int) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.conformance.sqlite_writer", task, str(path), str(number), str(count),
            cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        result: dict[str, Any] = json.loads(out)
        return result

    return list(await asyncio.gather(*(one(n) for n in range(1, PROCESSES + 1))))


# ------------------------------------------------------------------------------------------ the schema


def test_the_schema_file_equals_the_result_of_the_migrations() -> None:
    assert SQLITE_FILE.read_text() == sqlite_schema(), "run `make docs`"


async def test_a_migration_is_recorded_with_its_checksum(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "t.db")
    assert await store.migrate() == [name for _, name, _ in migrator.MIGRATIONS]
    assert await store.migrate() == []
    with contextlib.closing(apsw.Connection(str(tmp_path / "t.db"))) as connection:
        recorded = list(connection.execute("select number, name, checksum from schema_version"))
    assert recorded == [(n, name, checksum(text)) for n, name, text in migrator.MIGRATIONS]


async def test_migrations_are_applied_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older file gets exactly the missing migrations, and nothing of a migration that fails."""
    store = SqliteStore(tmp_path / "t.db")
    await store.migrate()
    known = list(migrator.MIGRATIONS)
    broken = [
        *known,
        (len(known) + 1, "0099_broken.sql", "create table extra (x text) strict; create nonsense"),
    ]
    monkeypatch.setattr(migrator, "MIGRATIONS", broken)
    assert await code_of(store.open()) == "STORE_NOT_MIGRATED"
    with pytest.raises(apsw.SQLError):
        await store.migrate()
    whole = [*known, (len(known) + 1, "0099_whole.sql", "create table extra (x text) strict;")]
    monkeypatch.setattr(migrator, "MIGRATIONS", whole)
    assert await store.migrate() == ["0099_whole.sql"]
    await store.open()
    await store.close()
    monkeypatch.setattr(migrator, "MIGRATIONS", known)
    assert await code_of(store.open()) == "STORE_TOO_NEW"
    assert await code_of(store.migrate()) == "STORE_TOO_NEW"


async def test_a_migration_that_changed_after_it_was_applied_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "t.db")
    await store.migrate()
    number, name, text = migrator.MIGRATIONS[0]
    monkeypatch.setattr(migrator, "MIGRATIONS", [(number, name, text + "\n"), *migrator.MIGRATIONS[1:]])
    assert await code_of(store.open()) == "STORE_NOT_A_DATABASE"


async def test_one_of_eight_concurrent_processes_applies_the_migrations(tmp_path: Path) -> None:
    results = await run_processes("migrate", tmp_path / "t.db")
    applied = [one["applied"] for one in results if one["applied"]]
    assert applied == [[name for _, name, _ in migrator.MIGRATIONS]]
    async with opened(tmp_path / "t.db") as store:
        assert await sizes(store) == {}


# ---------------------------------------------------------------------------------- files of every kind


async def test_a_missing_or_empty_file_is_reported_as_not_migrated(tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    assert await code_of(SqliteStore(missing).open()) == "STORE_NOT_MIGRATED"
    assert not missing.exists(), "opening creates no file"
    (tmp_path / "empty.db").touch()
    assert await code_of(SqliteStore(tmp_path / "empty.db").open()) == "STORE_NOT_MIGRATED"
    assert await code_of(SqliteStore(tmp_path / "no" / "folder.db").migrate()) == "STORE_READ_ONLY"


async def test_a_foreign_file_is_not_touched(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("Dear diary, this is not a database at all. " * 100)
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(apsw.Connection(str(foreign))) as connection:
        connection.execute("create table schema_version (note); create table song (title)")
    for path in (text, foreign):
        before = path.read_bytes()
        store = SqliteStore(path)
        assert await code_of(store.open()) == "STORE_NOT_A_DATABASE"
        assert await code_of(store.migrate()) == "STORE_NOT_A_DATABASE"
        assert path.read_bytes() == before


@contextmanager
def without_privileges() -> Iterator[None]:
    """Drop root's privileges for a while, because root may write read-only files."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Make a file and its folder read-only."""
    path.chmod(0o444)
    path.parent.chmod(0o555)
    yield
    path.parent.chmod(0o700)


async def test_a_read_only_file_is_refused_immediately() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.db"
        await SqliteStore(path).migrate()
        with read_only(path), without_privileges():
            assert await code_of(SqliteStore(path).open()) == "STORE_READ_ONLY"
            assert await code_of(SqliteStore(path).migrate()) == "STORE_READ_ONLY"


async def test_a_file_that_becomes_read_only_refuses_writes_and_answers_reads(tmp_path: Path) -> None:
    async with opened(tmp_path / "t.db") as store:
        await create(store, a_run(1), a_spec(1))
        assert store._connection is not None
        store._connection.pragma("query_only", True)
        assert await code_of(create(store, a_run(2), a_spec(2))) == "STORE_READ_ONLY"
        assert await sizes(store) == {"run": 1, "run_spec": 1}
        store._connection.pragma("query_only", False)
        await create(store, a_run(2), a_spec(2))


# ------------------------------------------------------------------------------------------ full, broken


async def test_a_full_disk_refuses_a_save_as_a_whole(tmp_path: Path) -> None:
    """Failure 29: the save is refused, and the store works afterwards."""
    big = Save(
        new_runs=[a_run(2)], new_specs=[a_spec(2)],
        rows={"event": [an_event(2, 1)], "payload": [PayloadRow(2, ref, b"", b"x" * 100_000) for ref in range(20)]},
    )  # fmt: skip
    async with opened(tmp_path / "t.db") as store:
        await create(store, a_run(1), a_spec(1))
        before = await sizes(store)
        assert store._connection is not None
        pages = store._connection.pragma("page_count")
        store._connection.pragma("max_page_count", pages + 20)
        assert await code_of(save(store, big)) == "STORE_FULL"
        assert await sizes(store) == before
        await create(store, a_run(3), a_spec(3))
        store._connection.pragma("max_page_count", 1_000_000)
        assert (await save(store, big)).ids == {2}
        assert list(store._connection.execute("pragma integrity_check")) == [("ok",)]


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_write_that_fails_during_the_commit_is_refused_and_rolled_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "t.db") as store:
        await create(store, a_run(1), a_spec(1))
        with no_file_grows_beyond((tmp_path / "t.db-wal").stat().st_size + 100):
            assert await code_of(create(store, a_run(2), a_spec(2))) == "STORE_UNAVAILABLE"
        assert await sizes(store) == {"run": 1, "run_spec": 1}
        await create(store, a_run(2), a_spec(2))
        assert await sizes(store) == {"run": 2, "run_spec": 2}


# ------------------------------------------------------------------------------------ several processes


async def test_the_store_waits_for_a_locked_file_until_the_deadline(tmp_path: Path) -> None:
    async with opened(tmp_path / "t.db", busy_seconds=0.2) as store:
        with contextlib.closing(apsw.Connection(str(tmp_path / "t.db"))) as other:
            other.execute("begin immediate")
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.01)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            assert await code_of(create(store, a_run(1), a_spec(1))) == "STORE_BUSY"
            ticking.cancel()
            assert ticks >= 5, "waiting does not block the event loop"
            assert await sizes(store) == {}, "reads still work"
            other.execute("rollback")
        await create(store, a_run(1), a_spec(1))


async def test_a_lock_that_is_released_in_time_causes_no_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "t.db") as store:
        with contextlib.closing(apsw.Connection(str(tmp_path / "t.db"))) as other:
            other.execute("begin immediate")
            creating = asyncio.create_task(create(store, a_run(1), a_spec(1)))
            await asyncio.sleep(0.05)
            assert not creating.done()
            other.execute("commit")
            await creating


@pytest.mark.guard_seconds(120)
async def test_eight_processes_write_to_one_file_without_lock_errors(tmp_path: Path) -> None:
    """Failure 25."""
    count = 40
    async with opened(tmp_path / "t.db") as store:
        results = await run_processes("write", tmp_path / "t.db", count)
        assert results == [{"written": count, "errors": [], "in_order": True}] * PROCESSES
        everything = PROCESSES * count
        assert await sizes(store) == {"run": everything, "run_spec": everything, "event": everything}


# ---------------------------------------------------------------------------------- clock and inline commits


async def test_the_clock_never_goes_below_the_last_commit_of_any_process(tmp_path: Path) -> None:
    slow, fast = ManualClock(1_000_000), ManualClock(9_000_000)
    path = tmp_path / "t.db"
    async with opened(path, clock=slow) as late, opened(path, clock=fast) as early:
        assert (await ask(late, "now"))[0].now_us == 1_000_000
        saved = await save(early, Save(new_runs=[a_run(1)], new_specs=[a_spec(1)]))
        assert saved.now_us == 9_000_000
        assert (await ask(late, "now"))[0].now_us == 9_000_000
        assert (await late.read("now"))[0].now_us == 9_000_000
        assert (await save(late, Save(expect=[(1, 0, 9_000_000)]))).ids == set(), (
            "the lease has ended by the other process's time"
        )
        slow.advance(0.5)
        assert (await ask(late, "now"))[0].now_us == 9_500_000, "its time continues from there"
        assert late.estimate_us() == 9_500_000
        fast.advance(-3600)
        assert (await ask(early, "now"))[0].now_us == 9_000_000


class SteppingClock(ManualClock):
    """A wall clock that can be set, with a monotonic clock that cannot."""

    stepped_us = 0

    def monotonic_us(self) -> int:
        return self._now_us - self.stepped_us

    def step(self, seconds: float) -> None:
        self.stepped_us += round(seconds * SECOND_US)
        self.advance(seconds)


async def test_time_continues_when_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = SteppingClock(9_000_000_000)
    async with opened(tmp_path / "t.db", clock=clock) as store:
        await create(store, a_run(1), a_spec(1))
        clock.step(-3600)
        clock.advance(7)
        assert (await ask(store, "now"))[0].now_us == 9_007_000_000
        assert store.estimate_us() == (await store.read("now"))[0].now_us == 9_007_000_000
        assert (await save(store, Save(expect=[(1, 0, 9_007_000_000)]))).ids == set(), "leases end in time"
        clock.step(7200)
        assert store.estimate_us() == 9_007_000_000 + 3_600_000_000


async def test_after_a_clock_step_another_process_continues_from_the_last_commit(
    tmp_path: Path,
) -> None:
    clock = SteppingClock(9_000_000_000)
    async with opened(tmp_path / "t.db", clock=clock) as store:
        await create(store, a_run(1), a_spec(1))
    clock.step(-3600)
    async with opened(tmp_path / "t.db", clock=clock) as store:
        assert (await ask(store, "now"))[0].now_us == 9_000_000_000
        clock.advance(2.5)
        assert (await ask(store, "now"))[0].now_us == 9_002_500_000


async def test_the_clock_never_goes_below_the_newest_event_nor_below_a_commit_without_one(
    tmp_path: Path,
) -> None:
    clock = ManualClock(9_000_000)
    path = tmp_path / "t.db"

    async def time_in_another_process() -> int:
        async with opened(path, clock=ManualClock(1_000_000)) as other:
            found: int = (await ask(other, "now"))[0].now_us
            return found

    async with opened(path, clock=clock) as store:
        made = Save(new_runs=[a_run(1)], new_specs=[a_spec(1)], rows=tables([an_event(1, 1, at=9_000_000)]))
        await save(store, made)
        assert await time_in_another_process() == 9_000_000, "the event has the time"
        clock.advance(1)
        changed = Save(expect=[(1, 0, None)], runs=[a_run(1, version=1)])
        await save(store, changed)
        assert await time_in_another_process() == 10_000_000, (
            "without an event, the time is stored separately"
        )
        clock.advance(1)
        earlier = Save(
            expect=[(1, 1, None)], runs=[a_run(1, version=2)], rows=tables([an_event(1, 2, at=9_500_000)])
        )
        await save(store, earlier)
        assert await time_in_another_process() == 11_000_000, (
            "an event that was decided earlier does not set the time back"
        )


async def test_the_clock_never_goes_below_an_event_decided_before_it_was_set_back(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "t.db", clock=ManualClock(9_000_000)) as store:
        event = an_event(1, 1, at=9_500_000)
        made = Save(estimate_us=9_500_000, new_runs=[a_run(1)], new_specs=[a_spec(1)], rows=tables([event]))
        assert (await save(store, made)).ids == {1}
        assert (await ask(store, "now"))[0].now_us == 9_500_000


async def test_a_reopened_store_forgets_its_old_connection(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    ahead = ManualClock(9_000_000)
    store, other = (SqliteStore(tmp_path / "t.db", clock=each) for each in (clock, ahead))
    await store.migrate()
    await store.open()
    await create(store, a_run(1), a_spec(1))
    await store.close()
    await store.open()
    await other.open()
    for n in range(2, 10):  # one of these brings the new connection's counter to the old one's last value
        ahead.advance(1)
        await create(other, a_run(n), a_spec(n))
        assert (await ask(store, "now"))[0].now_us == ahead.now_us()
    await store.close()
    await other.close()


def would_commit_inline(store: SqliteStore) -> bool:
    """Whether the store would commit inline on a fast disk."""
    store._commit_seconds = 0.0
    return store.commits_inline


async def test_nothing_is_committed_inline_while_other_processes_write(tmp_path: Path) -> None:
    clock = ManualClock(9_000_000)
    path = tmp_path / "t.db"
    async with opened(path, clock=clock) as store, opened(path, clock=clock) as other:
        await create(store, a_run(1), a_spec(1))
        await create(store, a_run(2), a_spec(2))
        seen = [would_commit_inline(store)]
        await create(other, a_run(3), a_spec(3))
        await create(store, a_run(4), a_spec(4))
        seen.append(would_commit_inline(store))
        clock.advance(0.2)
        assert [*seen, would_commit_inline(store)] == [True, False, True]


async def test_a_transaction_that_writes_nothing_does_not_move_the_clock(tmp_path: Path) -> None:
    ahead = ManualClock(9_000_000)
    async with opened(tmp_path / "t.db", clock=ahead) as store:
        assert (await ask(store, "now"))[0].now_us == 9_000_000
        ahead.advance(-5)
        assert (await ask(store, "now"))[0].now_us == 4_000_000


@pytest.mark.parametrize("rows", [1, 100], ids=["small", "large"])
async def test_the_write_ahead_log_stays_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(store_module, "WAL_PAGES_MAX_SMALL", 20)
    monkeypatch.setattr(store_module, "WAL_PAGES_MAX", 60)
    async with opened(tmp_path / "t.db") as store:
        await create(store, a_run(1), a_spec(1))
        for n in range(60):
            events = [an_event(1, n * rows + i, body=b"x" * 500) for i in range(1, rows + 1)]
            await save(
                store, Save(expect=[(1, n, None)], runs=[a_run(1, version=n + 1)], rows=tables(events))
            )
        pages = (tmp_path / "t.db-wal").stat().st_size // 4096
        assert pages < (40 if rows == 1 else 120), "each log starts again after its checkpoint"
        assert len(await store.read("events_of", 1)) == 60 * rows


async def test_every_commit_waits_for_the_disk(tmp_path: Path) -> None:
    async with opened(tmp_path / "t.db") as store:
        assert store._connection is not None
        assert store._connection.pragma("journal_mode") == "wal"
        assert store._connection.pragma("synchronous") == 2
        assert store._connection.pragma("foreign_keys") == 0


async def test_inline_stores_share_an_in_memory_database_without_threads() -> None:
    first = SqliteStore(":memory:", inline=True)
    await first.migrate()
    await first.open()
    second = SqliteStore(":memory:", inline=True, connection=first._connection)
    await second.open()
    await create(first, a_run(1), a_spec(1), a_ready_step(1, 0))

    def bump() -> Transaction[int]:
        [run] = yield Query("lock_runs", [(1,)])
        saved = yield Save(expect=[(1, run.version, None)], runs=[replace(run, version=run.version + 1)])
        return len(saved.ids)

    for store in (first, second, first):
        transacting = store.transact(bump)
        with pytest.raises(StopIteration) as finished:
            transacting.send(None)  # nothing is awaited, so one step runs the whole transaction
        assert finished.value.value == 1
    await second.close()
    assert (await first.read("get_run", 1))[0].version == 3
    await first.close()


async def test_an_in_memory_database_must_be_inline() -> None:
    with pytest.raises(ValueError, match="inline"):
        SqliteStore(":memory:")
    assert await code_of(SqliteStore(":memory:", inline=True).open()) == "STORE_NOT_MIGRATED"


async def test_closing_finishes_running_work(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "t.db")
    await store.migrate()
    await store.open()
    creating = [asyncio.create_task(create(store, a_run(n), a_spec(n))) for n in range(1, 6)]
    await asyncio.sleep(0)
    await store.close()
    ends = await asyncio.gather(*creating, return_exceptions=True)
    assert {end.code for end in ends if isinstance(end, TenureError)} <= {"STORE_UNAVAILABLE"}
    assert all(end is None or isinstance(end, TenureError) for end in ends)
    async with opened(tmp_path / "t.db") as again:
        found = await sizes(again)
        assert found["run"] == found["run_spec"] == ends.count(None) >= 1
