"""The doctor on real databases: clean, damaged, and changing while it reads."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenure.doctor import INVARIANTS, RunDump, examination
from tenure.doctor.examination import examine_database, load_run_dump, run_inline
from tenure.kernel.run_rows import Cap
from tenure.store.factory import open_store
from tenure.store.port import Store
from tenure.store.sqlite import SqliteStore
from tests.doctor import healthy_runs
from tests.doctor.saved_stories import put
from tests.kernel.story import RUN_ID, Story


def all_stories() -> list[Story]:
    """One healthy run of each kind, with unique ids."""
    stories = []
    for number, make in enumerate(healthy_runs.ALL):
        story = make(run_id=RUN_ID + number)
        stories.append(story)
    return stories


@asynccontextmanager
async def opened(store: Any) -> AsyncIterator[Store]:
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def damage(path: Path, statement: str, *values: Any) -> None:
    """Damage the file directly, without CHECK constraints."""
    connection = apsw.Connection(str(path))
    connection.pragma("ignore_check_constraints", True)
    connection.execute(statement, values)
    connection.close()


async def test_a_healthy_sqlite_database_is_clean(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    stories = all_stories()
    async with opened(SqliteStore(tmp_path / "t.db")) as store:
        await put(store, *stories)
        report = await examine_database(store, on_progress=lambda done, total: seen.append((done, total)))
        assert await load_run_dump(store, stories[0].run_id) == stories[0].bundle()
        assert await load_run_dump(store, 1) is None
    assert report.violations == []
    assert report.clean
    assert report.runs == len(stories)
    assert report.events == sum(len(story.events) for story in stories)
    assert seen == [(n, len(stories)) for n in range(1, len(stories) + 1)]


async def test_a_healthy_postgres_database_is_clean(postgres_dsn: str) -> None:
    stories = all_stories()
    async with opened(open_store(postgres_dsn)) as store:
        await put(store, *stories)
        report = await examine_database(store)
        for story in stories:
            assert await load_run_dump(store, story.run_id) == story.bundle()
    assert report.violations == []
    assert report.runs == len(stories)


def test_an_inline_store_is_examined_without_an_event_loop() -> None:
    store = SqliteStore(":memory:", inline=True)
    run_inline(store.migrate())
    run_inline(store.open())
    stories = all_stories()
    run_inline(put(store, *stories))
    for story in stories:
        assert run_inline(load_run_dump(store, story.run_id)) == story.bundle()
    assert run_inline(examine_database(store)).clean
    run_inline(store.close())


async def test_a_threaded_store_cannot_be_examined_synchronously(tmp_path: Path) -> None:
    async with opened(SqliteStore(tmp_path / "t.db")) as store:
        with pytest.raises(RuntimeError, match="inline"):
            run_inline(load_run_dump(store, 1))


@pytest.mark.parametrize(
    ("number", "statement"),
    [
        ("I1", "update run set status = 'asleep'"),
        ("I2", "update step set state = 'skipped'"),
        ("I3", "update step set max_attempts = 99"),
        ("I3", "delete from checkpoint"),
        ("I7", "delete from event where seq = 2"),
        ("I9", "update run set steps_open = 7"),
        ("I14", "update run set wake_at = 1"),
        ("I16", "delete from attempt where n = 1"),
        ("I30", "update attempt set tenant = 'umbrella'"),
        ("I51", "update event set actor = 'u_mallory' where seq = 1"),
        ("I50", "delete from run_spec"),
        ("I50", "update run_spec set tenant = 'umbrella'"),
        ("I50", "insert into inbox values (5, 1, 'x', 'y', '', null, 1, null, '')"),
    ],
)
async def test_manual_damage_is_found(tmp_path: Path, number: str, statement: str) -> None:
    path = tmp_path / "t.db"
    async with opened(SqliteStore(path)) as store:
        await put(store, healthy_runs.retried())
    damage(path, statement)
    async with opened(SqliteStore(path)) as store:
        report = await examine_database(store)
    assert number in report.found
    assert not report.clean
    assert {violation.number for violation in report.violations} == report.found.keys()


async def test_two_runs_with_one_idempotency_key_are_found(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with opened(SqliteStore(path)) as store:
        await put(store, healthy_runs.retried(), healthy_runs.failed(run_id=RUN_ID + 1))
    damage(path, "drop index run_spec_key")
    damage(path, "update run_spec set idempotency_key = 'push-1'")
    async with opened(SqliteStore(path)) as store:
        report = await examine_database(store)
    assert [(v.run_id, v.text) for v in report.violations if v.number == "I31"] == [
        (RUN_ID + 1, "shares the idempotency key 'push-1' with another run")
    ]


async def test_a_mismatched_idempotency_record_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with opened(SqliteStore(path)) as store:
        await put(store, healthy_runs.retried(), healthy_runs.failed(run_id=RUN_ID + 1))
    damage(path, "update run_spec set idempotency_key = 'k' || run_id, source = 'api'")
    for run_id, about, request in ((RUN_ID, RUN_ID, "x'00'"), (RUN_ID + 1, RUN_ID, "request_hash")):
        damage(
            path,
            f"insert into idempotency select tenant, 'api', idempotency_key, {about}, 'completed', {request}, x'00',"
            f" null, 1, 1, 2, null, 1, null from run_spec where run_id = {run_id}",
        )
    async with opened(SqliteStore(path)) as store:
        report = await examine_database(store)
    found = [(v.number, v.run_id) for v in report.violations if v.number in ("I32", "I33")]
    assert found == [("I32", RUN_ID), ("I33", RUN_ID + 1)]


async def test_leases_and_starts_over_a_cap_are_found(tmp_path: Path) -> None:
    async with opened(SqliteStore(tmp_path / "t.db")) as store:
        caps = (Cap("acme", "", 1, None, 1),)
        first, second = (Story(caps=caps, run_id=RUN_ID + n) for n in (1, 2))
        await put(store, first, second, healthy_runs.working())
        await store.put_caps([Cap("acme", "", 1, 1, 1)])
        report = await examine_database(store)
        later = await examine_database(store, rates_since=first.now + 1)
    assert [(v.number, v.row) for v in report.violations] == [
        ("I46", "cap acme/"),
        ("I46", f"run {second.run_id}"),
    ]
    assert [v.row for v in later.violations] == ["cap acme/"]


async def test_eventual_invariants_are_checked_only_on_request(tmp_path: Path) -> None:
    async with opened(SqliteStore(tmp_path / "t.db")) as store:
        await put(store, healthy_runs.working())
        now_and_then, in_the_end = await examine_database(store), await examine_database(store, settled=True)
    assert now_and_then.clean
    assert in_the_end.found.keys() == {"I29", "I49", "I55"}
    assert {"I29", "I49", "I55"} == set(in_the_end.checked) - set(now_and_then.checked)


async def test_the_report_lists_invariants_that_rows_cannot_show(tmp_path: Path) -> None:
    async with opened(SqliteStore(tmp_path / "t.db")) as store:
        report = await examine_database(store, settled=True)
    assert "rows cannot show" in report.elsewhere["I34"]
    assert len(report.checked) + len(report.elsewhere) == len(INVARIANTS)


async def test_two_holders_of_one_concurrency_key_are_found(tmp_path: Path) -> None:
    """I37. The index that forbids it is dropped first."""
    path = tmp_path / "t.db"
    async with opened(SqliteStore(path)) as store:
        await put(store, healthy_runs.acted(), healthy_runs.acted(RUN_ID + 1))
        assert (await examine_database(store)).clean
    damage(path, "drop index receipt_key")
    damage(path, "update receipt set name = 'mine' where state = 'succeeded' and label = 'b#1'")
    async with opened(SqliteStore(path)) as store:
        assert (await examine_database(store)).found["I37"] == 1


class ChangingRun:
    """A reader whose run changes at each of the first `times` reads."""

    def __init__(self, bundle: RunDump, times: int) -> None:
        self.bundle = bundle
        self.times = times

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        if name == "get_run":
            run = self.bundle.copied().run
            run.version += self.times
            self.times = max(0, self.times - 1)
            return [run]
        tables: dict[str, list[Any]] = {"get_spec": [self.bundle.spec], "events_of": self.bundle.events}
        return tables.get(name, [])


async def test_a_run_that_changed_while_it_was_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "TRY_AGAIN_SECONDS", 0)
    bundle = healthy_runs.planning().bundle()
    found = await load_run_dump(ChangingRun(bundle, times=6), bundle.run.id)
    assert found is not None
    assert found.run == bundle.run
    with pytest.raises(examination.RunKeptChanging):
        await load_run_dump(ChangingRun(bundle, times=10_000), bundle.run.id)
