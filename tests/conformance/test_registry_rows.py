"""Tables that belong to no run (schedules, workers, workflows) and log lines, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure import limits
from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.registry_rows import LogLineRow, ScheduleRow
from tenure.store import query_registry
from tenure.store.log_lines import append_log_lines
from tenure.store.port import Save, Store
from tenure.store.query_registry import read_named_queries
from tenure.store.schedules import advance_schedule, delete_schedule, save_schedule
from tenure.store.workers import delete_worker, register_worker
from tenure.store.workflows import save_workflow
from tests.conformance.samples import DONE, a_run, a_spec
from tests.conformance.stores import KINDS, create, open_store, save, sizes

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens stores of one kind. All stores of a test share one database."""
    dsn = request.getfixturevalue("migrated_dsn") if request.param == "postgres" else ""
    return partial(open_store, request.param, tmp_path, dsn)


def a_schedule(name: str = "nightly", **given: Any) -> ScheduleRow:
    return ScheduleRow(**{
        "tenant": "acme", "name": name, "workspace": "main", "workflow": "report", "code_version": "1",
        "profile": "agent-runs", "queue": "default", "plan": None, "input": b'{"n": 1}', "cron": "0 3 * * *",
        "zone": "UTC", "catch_up": "last", "catch_up_max": 1, "pass_slot": True, "owner": "person_1",
        "labels": "{}", "next_at": 5_000, **given,
    })  # fmt: skip


def changed(schedule: ScheduleRow, **given: Any) -> ScheduleRow:
    return msgspec.structs.replace(schedule, revision=schedule.revision + 1, **given)


async def current_row(store: Store) -> int:
    found: int = (await store.read("now"))[0].now_us
    return found


# ------------------------------------------------------------------------------------------- schedules


async def test_a_schedule_is_read_back_unchanged(opened: OpenStore) -> None:
    async with opened() as store:
        before = await current_row(store)
        made = await save_schedule(store, a_schedule(paused=True, next_at=None))
        assert made is not None
        assert before <= made.created_at == made.updated_at <= await current_row(store)
        expected = a_schedule(
            paused=True, next_at=None, created_at=made.created_at, updated_at=made.created_at
        )
        assert repr(await store.read("schedule_named", "acme", "nightly")) == repr([expected])
        assert repr(made) == repr(expected)
        assert await store.read("schedule_named", "beta", "nightly") == []


async def test_a_schedule_name_is_unique_and_an_update_names_its_version(opened: OpenStore) -> None:
    async with opened() as store:
        first = await save_schedule(store, a_schedule())
        assert first is not None
        assert await save_schedule(store, a_schedule(cron="* * * * *")) is None
        second = await save_schedule(store, changed(first, cron="0 4 * * *"))
        assert second is not None
        assert (second.cron, second.revision, second.created_at) == ("0 4 * * *", 2, first.created_at)
        assert await save_schedule(store, changed(first, cron="0 5 * * *")) is None, (
            "the update is based on an old revision"
        )
        assert await delete_schedule(store, "acme", "nightly")
        assert not await delete_schedule(store, "acme", "nightly")
        assert await save_schedule(store, changed(second)) is None, (
            "an update does not recreate a deleted schedule"
        )
        assert await sizes(store) == {}


async def test_concurrent_schedulers_advance_a_schedule_once(opened: OpenStore) -> None:
    async with opened() as store:
        made = await save_schedule(store, a_schedule())
        assert made is not None
        went = await asyncio.gather(*(advance_schedule(store, made, 6_000, 5_000) for _ in range(8)))
        assert sorted(went) == [False] * 7 + [True]
        [now] = await store.read("schedule_named", "acme", "nightly")
        assert (now.next_at, now.last_slot, now.revision) == (6_000, 5_000, 1)
        assert await save_schedule(store, changed(now, cron="0 4 * * *")) is not None
        assert not await advance_schedule(store, now, 7_000, 6_000), "the schedule has a newer revision"
        [now] = await store.read("schedule_named", "acme", "nightly")
        assert await advance_schedule(store, now, None, None)
        [last] = await store.read("schedule_named", "acme", "nightly")
        assert (last.next_at, last.last_slot) == (None, 5_000)


async def test_due_schedules_are_ordered_by_time_and_a_tenants_schedules_by_name(opened: OpenStore) -> None:
    async with opened() as store:
        for name, next_at, tenant in (
            ("c", 3, "acme"),
            ("a", 9, "acme"),
            ("b", None, "acme"),
            ("d", 1, "beta"),
        ):
            assert await save_schedule(store, a_schedule(name, next_at=next_at, tenant=tenant)) is not None
        assert [s.name for s in await store.read("schedules_due", 9, 10)] == ["d", "c", "a"]
        assert [s.name for s in await store.read("schedules_due", 9, 1)] == ["d"]
        assert [s.name for s in await store.read("schedules_due", 2, 10)] == ["d"]
        assert [s.name for s in await store.read("schedules_of", "acme", "", 10)] == ["a", "b", "c"]
        assert [s.name for s in await store.read("schedules_of", "acme", "a", 1)] == ["b"]


@pytest.mark.parametrize("bad", [{"catch_up": "never"}, {"catch_up_max": 0}, {"paused": True}], ids=str)
async def test_the_schema_refuses_an_invalid_schedule(opened: OpenStore, bad: dict[str, Any]) -> None:
    async with opened() as store:
        with pytest.raises(TenureError, match="INVALID_INPUT"):
            await save_schedule(store, a_schedule(**bad))


# --------------------------------------------------------------------------------------------- workers


async def test_a_worker_is_listed_until_it_stops_or_falls_silent(opened: OpenStore) -> None:
    async with opened() as store:
        await register_worker(store, "w1", ["b", "a", "a"], 4, "tenure 1")
        [seen] = await store.read("workers_seen_since", 0)
        assert (seen.name, seen.queues, seen.slots, seen.version) == ("w1", '["a","b"]', 4, "tenure 1")
        assert seen.started_at == seen.seen_at
        store.shift_clock(us(10))
        await register_worker(store, "w1", ["a"], 2, "tenure 1")
        [again] = await store.read("workers_seen_since", seen.seen_at + us(9))
        assert again.started_at == seen.started_at
        assert (again.queues, again.slots) == ('["a"]', 2)
        assert await store.read("workers_seen_since", again.seen_at + 1) == []
        await delete_worker(store, "w1")
        await delete_worker(store, "w1")
        assert await sizes(store) == {}


async def test_a_silent_worker_that_returns_counts_as_restarted(
    opened: OpenStore,
) -> None:
    async with opened() as store:
        await register_worker(store, "w1", ["a"], 1, "1")
        await register_worker(store, "w2", ["a"], 1, "1")
        store.shift_clock(us(limits.WORKER_SILENT_SECONDS + 1))
        await register_worker(store, "w1", ["a"], 1, "1")
        w1, w2 = await store.read("workers_seen_since", 0)
        assert w1.started_at == w1.seen_at > w2.seen_at
        store.shift_clock(us(limits.WORKER_FORGOTTEN_SECONDS + 30))
        await register_worker(store, "w3", ["a"], 1, "1")
        assert [w.name for w in await store.read("workers_seen_since", 0)] == ["w1", "w3"]


async def test_a_worker_has_a_name(opened: OpenStore) -> None:
    async with opened() as store:
        for name in ("", "a\nb", "x" * (limits.NAME_CHARS_MAX + 1)):
            with pytest.raises(TenureError, match="INVALID_INPUT"):
                await register_worker(store, name, [], 1, "1")


# ------------------------------------------------------------------------------------------- workflows


async def test_a_declared_version_never_changes(opened: OpenStore) -> None:
    async with opened() as store:
        made = await save_workflow(store, "acme", "build", "1", "declared", "steps: []", "d1")
        assert await save_workflow(store, "acme", "build", "1", "declared", "steps: []", "d1") == made
        for kind, digest in (("declared", "d2"), ("code", "d1"), ("code", "d2")):
            with pytest.raises(TenureError, match="WORKFLOW_CHANGED"):
                await save_workflow(store, "acme", "build", "1", kind, "other", digest)
        await save_workflow(store, "acme", "build", "2", "declared", "other", "d2")
        await save_workflow(store, "beta", "build", "1", "declared", "theirs", "d3")
        found = await store.read("workflow_named", "acme", "build")
        assert [(w.version, w.definition) for w in found] == [("2", "other"), ("1", "steps: []")]


async def test_the_registration_of_code_is_refreshed(opened: OpenStore) -> None:
    async with opened() as store:
        made = await save_workflow(store, "acme", "report", "1", "code", '{"doc": "a"}', "d1")
        store.shift_clock(us(1))
        assert await save_workflow(store, "acme", "report", "1", "code", '{"doc": "a"}', "d1") == made
        renewed = await save_workflow(store, "acme", "report", "1", "code", '{"doc": "b"}', "d2")
        assert renewed.definition == '{"doc": "b"}'
        assert renewed.registered_at > made.registered_at
        with pytest.raises(TenureError, match="WORKFLOW_CHANGED"):
            await save_workflow(store, "acme", "report", "1", "declared", "x", "d2")
        await save_workflow(store, "acme", "build", "1", "declared", "x", "d")
        assert [w.name for w in await store.read("workflows_of", "acme", "", 10)] == ["build", "report"]
        assert [w.name for w in await store.read("workflows_of", "acme", "build", 10)] == ["report"]
        with pytest.raises(TenureError, match="PAYLOAD_TOO_LARGE"):
            await save_workflow(store, "acme", "x", "1", "code", "x" * (limits.PAYLOAD_BYTES_MAX + 1), "d")


# ------------------------------------------------------------------------------------------- log lines


async def test_log_lines_are_numbered_per_run_and_read_from_a_number(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        await create(store, a_run(2), a_spec(2))
        before = await current_row(store)
        await append_log_lines(store, [])
        await append_log_lines(
            store,
            [
                LogLineRow(2, text="first of 2"),
                LogLineRow(1, at=7, step="main", level="error", text="first of 1", fields='{"a":1}'),
                LogLineRow(99, text="of nobody"),
                LogLineRow(2, text="second of 2"),
            ],
        )
        await append_log_lines(store, [LogLineRow(2, text="third of 2")])
        assert await store.read("log_lines_of", 1, 0, 10) == [
            LogLineRow(1, 1, 7, "main", "error", "first of 1", '{"a":1}')
        ]
        lines = await store.read("log_lines_of", 2, 0, 10)
        assert [(line.no, line.text) for line in lines] == [
            (1, "first of 2"),
            (2, "second of 2"),
            (3, "third of 2"),
        ]
        after = await current_row(store)
        assert all(before <= line.at <= after for line in lines)
        assert [line.no for line in await store.read("log_lines_of", 2, 1, 1)] == [2]
        assert (await sizes(store))["log_line"] == 4
        assert await store.read("orphan_rows") == []


async def test_a_log_line_that_is_too_long_is_cut(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        long = "x" * (limits.LOG_TEXT_CHARS_MAX + 5)
        fields = msgspec.json.encode({"a": "y" * limits.LOG_FIELDS_BYTES_MAX}).decode()
        await append_log_lines(
            store, [LogLineRow(1, text=long, fields=fields), LogLineRow(1, text="a\0b\udc80c")]
        )
        first, second = await store.read("log_lines_of", 1, 0, 10)
        assert len(first.text) == limits.LOG_TEXT_CHARS_MAX
        assert first.text.endswith("x…")
        assert msgspec.json.decode(first.fields) == {"fields": "too large"}
        assert second.text == "ab?c"


async def test_the_oldest_lines_of_a_long_log_are_dropped(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.log_lines.LOG_LINES_PER_RUN_MAX", 5)
    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        await create(store, a_run(2), a_spec(2))
        for batch in range(4):
            await append_log_lines(store, [LogLineRow(1, text=f"{batch}.{i}") for i in range(2)])
        await append_log_lines(store, [LogLineRow(2, text="other")])
        lines = await store.read("log_lines_of", 1, 0, 100)
        assert [(line.no, line.text) for line in lines] == [
            (4, "1.1"), (5, "2.0"), (6, "2.1"), (7, "3.0"), (8, "3.1"),
        ]  # fmt: skip
        assert len(await store.read("log_lines_of", 2, 0, 100)) == 1


async def test_concurrent_writers_of_one_log_lose_nothing(opened: OpenStore) -> None:
    async with opened() as one, opened() as two:
        await create(one, a_run(1), a_spec(1))
        await asyncio.gather(
            *(
                append_log_lines(store, [LogLineRow(1, text="x")] * 3)
                for store in (one, two)
                for _ in range(10)
            )
        )
        assert [line.no for line in await one.read("log_lines_of", 1, 0, 100)] == list(range(1, 61))


async def test_retention_deletes_the_log_with_its_run(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(1, **DONE), a_spec(1))
        await create(store, a_run(2), a_spec(2))
        await append_log_lines(store, [LogLineRow(1, text="a"), LogLineRow(2, text="b")])
        assert (await save(store, Save(delete_runs=[1]))).ids == {1}
        assert await store.read("log_lines_of", 1, 0, 10) == []
        assert len(await store.read("log_lines_of", 2, 0, 10)) == 1
        assert await store.read("orphan_rows") == []


PARTS_OF_A_SAVE = {
    "log_lines": {"delete_log_line"},
    "feed": {"save_feed"},
    "remote_leases": {"delete_remote_lease", "save_remote_lease"},
    "artifacts": {"delete_artifact"},
    "log_chunks": {"delete_log_chunk"},
    "test_reports": {"delete_test_report"},
    "uploads": {"delete_upload", "delete_upload_part"},
}


@pytest.mark.parametrize("family", query_registry.QUERY_MODULES)
def test_both_dialects_have_every_registry_query(family: str) -> None:
    module = query_registry.QUERY_MODULES[family]
    for database in ("sqlite", "postgres"):
        texts = read_named_queries(database, f"{family}.sql")
        assert texts.keys() == {
            *module.READS,
            *getattr(module, "WRITES", ()),
            *PARTS_OF_A_SAVE.get(family, ()),
        }
