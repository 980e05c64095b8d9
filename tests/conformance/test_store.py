"""Saves, locks, errors and time, on every store."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.kernel.act_rows import CostLineRow, ReceiptRow, RunSpendRow, VerdictRow
from tenure.kernel.machines import APPROVAL, ATTEMPT, IDEMPOTENCY, LEASE, RUN, STEP
from tenure.kernel.run_rows import (
    LIGHT_COLUMNS,
    ROWS,
    ApprovalRow,
    AttemptRow,
    Cap,
    CheckpointRow,
    ChildRow,
    EventRow,
    IdempotencyRow,
    InboxRow,
    OutboxRow,
    PayloadRow,
    Row,
    RunRow,
    RunSpecRow,
    StaleMessageRow,
    StepRow,
    WaitRow,
)
from tenure.store.port import LEAVE_EVENT_LOOP, DataRejected, ExtendedLease, Query, Save, Store, Transaction
from tests.conformance.samples import (
    DONE,
    ENDED,
    a_checkpoint,
    a_child,
    a_message,
    a_payload,
    a_ready_step,
    a_run,
    a_spec,
    a_step,
    a_wait,
    an_approval,
    an_attempt,
    an_event,
    an_idempotency_record,
    an_outbox_row,
    filled,
)
from tests.conformance.stores import KINDS, ask, create, open_store, save, sizes, tables

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens stores of one kind. All stores of a test share one database."""
    dsn = request.getfixturevalue("migrated_dsn") if request.param == "postgres" else ""
    return partial(open_store, request.param, tmp_path, dsn)


async def get_run(store: Store, run_id: int) -> RunRow:
    [run] = await store.read("get_run", run_id)
    assert isinstance(run, RunRow)
    return run


async def now_us(store: Store) -> int:
    [moment] = await store.read("now")
    return int(moment.now_us)


# ----------------------------------------------------------------------------------------- round trips

READ_BACK: dict[type[Row], str] = {
    RunRow: "get_run",
    RunSpecRow: "get_spec",
    StepRow: "steps_of",
    AttemptRow: "attempts_of",
    CheckpointRow: "checkpoints_of",
    WaitRow: "waits_of",
    ApprovalRow: "approvals_of",
    InboxRow: "inbox_of",
    ChildRow: "children_of",
    PayloadRow: "payloads_of",
    EventRow: "events_of",
    OutboxRow: "outbox_of",
    VerdictRow: "verdicts_of",
    ReceiptRow: "receipts_of",
    RunSpendRow: "run_spends_of",
    CostLineRow: "cost_lines_of",
}


def columns(row: type[Row], first: str) -> tuple[str, ...]:
    return row.__struct_fields__[row.__struct_fields__.index(first) :]


CHANGING: dict[type[Row], tuple[str, ...]] = {
    # AddSteps: a new step may need an existing one. A step of a workflow file gets its input when it is resolved.
    StepRow: (
        "dependents",
        "input_ref",
        "idempotency_key",
        *(name for name in columns(StepRow, "state") if name not in ("template_ref", "condition", "reuse")),
    ),
    AttemptRow: tuple(name for name in columns(AttemptRow, "timeout_at") if name != "session"),
    CheckpointRow: columns(CheckpointRow, "no"),
    WaitRow: ("name", *columns(WaitRow, "expires_at")),
    ApprovalRow: columns(ApprovalRow, "tier"),
    InboxRow: ("wait_no",),
    ChildRow: columns(ChildRow, "state"),
    ReceiptRow: ("n", "call_by", *columns(ReceiptRow, "state")[:-2]),
    RunSpendRow: ("spent", "writes"),
    CostLineRow: columns(CostLineRow, "calls"),
}
"""The columns of an existing row that may change."""


def test_every_row_survives_a_round_trip() -> None:
    assert {*READ_BACK, StaleMessageRow, Cap, IdempotencyRow} == set(ROWS.values())


@pytest.mark.parametrize(
    "row", [row for row in READ_BACK if row not in (RunRow, RunSpecRow)], ids=lambda r: r.table
)
async def test_a_row_with_every_column_set_survives_a_round_trip(opened: OpenStore, row: type[Row]) -> None:
    given = filled(row, run_id=7)
    async with opened() as store:
        await create(store, a_run(7), a_spec(7), given)
        assert repr(await store.read(READ_BACK[row], 7)) == repr([given])


@pytest.mark.parametrize("row", CHANGING, ids=lambda r: r.table)
async def test_only_columns_that_may_change_are_updated(opened: OpenStore, row: type[Row]) -> None:
    given, later = filled(row, run_id=7), filled(row, start=5000, run_id=7)
    for name in row.key:
        setattr(later, name, getattr(given, name))
    expected = replace(given, **{name: getattr(later, name) for name in CHANGING[row]})
    async with opened() as store:
        await create(store, a_run(7), a_spec(7), given)
        await save(store, Save(expect=[(7, 0, None)], rows=tables([later])))
        assert repr(await store.read(READ_BACK[row], 7)) == repr([expected])


@pytest.mark.parametrize(
    "end",
    [
        {},
        {
            "status": "failed",
            "finished_at": 9000,
            "duration_us": 1,
            "reason": "x",
            "wake_at": None,
            "sealed_at": 9500,
        },
    ],
    ids=["open", "finished"],
)
async def test_a_run_with_every_column_set_survives_a_round_trip(
    opened: OpenStore, end: dict[str, Any]
) -> None:
    run, spec = filled(RunRow, id=7, **end), filled(RunSpecRow, run_id=7)
    async with opened() as store:
        await create(store, run, spec)
        assert repr(await store.read("get_run", 7)) == repr([run])
        assert repr(await store.read("get_spec", 7)) == repr([spec])
        later = filled(RunRow, start=5000, id=7, **end, **{n: getattr(run, n) for n in NEVER})
        changed = replace(spec, labels="new", metadata="newer")
        await save(store, Save(expect=[(7, run.version, None)], runs=[later], rows={"run_spec": [changed]}))
        assert repr(await store.read("get_run", 7)) == repr([later])
        assert repr(await store.read("get_spec", 7)) == repr([changed])


NEVER = RunRow.__struct_fields__[1 : RunRow.__struct_fields__.index("status")]
"""Columns of a run that never change."""
TOGETHER = {"finished_at", "duration_us", "reason", "sealed_at"}
"""Columns that the schema allows to change only together. The test above covers them."""


async def test_each_column_of_a_run_can_change_alone(opened: OpenStore) -> None:
    run = filled(RunRow, id=7)
    async with opened() as store:
        await create(store, run, a_spec(7))
        other = filled(RunRow, start=5000, id=7, status="waiting_external", planned=False, paused=False)
        for name in RunRow.__struct_fields__[len(NEVER) + 1 :]:
            if name in TOGETHER:
                continue
            changed = replace(run, **{name: getattr(other, name)})
            saved = await save(store, Save(expect=[(7, run.version, None)], runs=[changed]))
            assert saved.ids == {7}
            run = changed
            assert repr(await get_run(store, 7)) == repr(run), name
        assert (run.status, run.version, run.wake_at) == ("waiting_external", other.version, other.wake_at)


async def test_caps_are_inserted_or_replaced(opened: OpenStore) -> None:
    async with opened() as store:
        await store.put_caps([Cap("acme", "", 1, 5, 60), Cap("acme", "wf:build")])
        await store.put_caps([Cap("acme", "", 4)])
        assert await store.read("all_caps") == [Cap("acme", "", 4, None, None), Cap("acme", "wf:build")]


async def test_a_key_that_is_taken_refuses_the_whole_save(opened: OpenStore) -> None:
    async with opened() as store:
        record = filled(IdempotencyRow, run_id=7)
        key = (record.tenant, record.source, record.name)
        first = Save(new_runs=[a_run(7)], new_specs=[a_spec(7)], rows={"idempotency": [record]})
        assert (await save(store, first)).ids == {7}
        assert await store.read("key_record", *key) == [record]
        second = Save(
            new_runs=[a_run(8)], new_specs=[a_spec(8)], rows={"idempotency": [replace(record, run_id=8)]}
        )
        with pytest.raises(DataRejected):
            await save(store, second)
        assert await store.read("key_record", *key) == [record]
        assert await store.read("get_run", 8) == []


async def test_the_record_of_a_request_is_skipped_with_its_run(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(7), a_spec(7))
        stale = Save(expect=[(7, 4, None)], rows={"idempotency": [an_idempotency_record("k", run_id=7)]})
        await save(store, stale)
        assert "idempotency" not in await sizes(store)


async def test_a_stale_message_is_recorded_once_per_lease_and_type(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(7), a_spec(7), StaleMessageRow(7, 0, 1, "complete", 4, "worker-1", 1000))
        again = [
            StaleMessageRow(7, 0, 1, "complete", 9, "worker-1", 2000),
            StaleMessageRow(7, 0, 1, "fail", 5, "worker-1", 2000),
        ]
        assert (await save(store, Save(expect=[(7, 0, None)], rows={"stale_message": list(again)}))).ids == {
            7
        }
        assert (await sizes(store))["stale_message"] == 2


# ---------------------------------------------------------------------------------------------- the save


@pytest.mark.parametrize("single", [True, False], ids=["single", "whole"])
async def test_a_save_skips_a_changed_run_and_all_of_its_rows(opened: OpenStore, single: bool) -> None:
    async with opened() as store:
        for run_id in (1, 2):
            await create(store, a_run(run_id, version=5), a_spec(run_id), a_ready_step(run_id, 0))
        step = a_step(2, 0, state="running")
        both = Save(
            expect=[(1, 5, None), (2, 4, None)],
            runs=[a_run(1, version=6, status="running"), a_run(2, version=5, status="running")],
            rows=tables([step, an_event(1, 6), an_event(2, 5), a_payload(2, 1), an_attempt(2, 0, 1)]),
        )
        saved = await save(store, both, single=single)
        assert saved.ids == {1}
        assert (await get_run(store, 1)).status == "running"
        assert await get_run(store, 2) == a_run(2, version=5)
        assert await store.read("steps_of", 2) == [a_ready_step(2, 0)]
        assert await sizes(store) == {"run": 2, "run_spec": 2, "step": 2, "event": 1}


async def test_rows_of_a_run_without_an_expected_version_are_not_written(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        await create(store, a_run(2), a_spec(2))
        saved = await save(
            store, Save(expect=[(1, 0, None)], runs=[a_run(2, version=1)], rows=tables([an_event(2, 1)]))
        )
        assert saved.ids == {1}
        assert (await get_run(store, 2)).version == 0
        assert "event" not in await sizes(store)


async def test_the_version_of_an_unchanged_run_is_checked_too(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(1, version=5), a_spec(1))
        for version in (4, 6):
            assert (
                await save(store, Save(expect=[(1, version, None)], rows=tables([an_event(1, 1)])))
            ).ids == set()
        assert (await save(store, Save(expect=[(1, 5, None)], rows=tables([an_event(1, 1)])))).ids == {1}
        assert (await save(store, Save(expect=[(9, 0, None)]))).ids == set()


async def test_a_second_save_under_one_lock_expects_the_first_ones_version(opened: OpenStore) -> None:
    def transaction() -> Transaction[list[set[int]]]:
        [run] = yield Query("lock_runs", [(1,)])
        first = yield Save(expect=[(1, run.version, None)], runs=[replace(run, version=1)])
        outdated = yield Save(expect=[(1, run.version, None)], runs=[replace(run, version=9)])
        second = yield Save(expect=[(1, 1, None)], runs=[replace(run, version=2, status="running")])
        return [first.ids, outdated.ids, second.ids]

    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        assert await store.transact(transaction) == [{1}, set(), {1}]
        assert await get_run(store, 1) == a_run(1, version=2, status="running")


async def test_a_save_is_written_only_before_its_lease_ends(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        now = await now_us(store)
        late = await save(
            store, Save(expect=[(1, 0, now)], runs=[a_run(1, version=1)], rows=tables([an_event(1, 1)]))
        )
        assert late.ids == set()
        assert late.now_us >= now
        assert (await get_run(store, 1)).version == 0
        in_time = Save(
            expect=[(1, 0, now + HOUR_US)], runs=[a_run(1, version=1)], rows=tables([an_event(1, 1)])
        )
        assert (await save(store, in_time)).ids == {1}


@pytest.mark.parametrize("single", [True, False], ids=["single", "whole"])
@pytest.mark.parametrize("off_us", [-2 * SECOND_US, 2 * SECOND_US, -SECOND_US // 2, SECOND_US // 2])
async def test_a_save_with_a_wrong_time_estimate_is_not_written(
    opened: OpenStore, off_us: int, single: bool
) -> None:
    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        estimate = await now_us(store) + off_us
        decided = Save(
            expect=[(1, 0, None)], runs=[a_run(1, version=1)], new_runs=[a_run(2)], new_specs=[a_spec(2)],
            rows=tables([an_event(1, 1), an_event(2, 1)]), estimate_us=estimate,
        )  # fmt: skip
        saved = await save(store, decided, single=single)
        fine = abs(off_us) < SECOND_US
        assert saved.ids == ({1, 2} if fine else set())
        assert (await sizes(store)).get("event", 0) == (2 if fine else 0)


@pytest.mark.parametrize("single", [True, False], ids=["single", "whole"])
@pytest.mark.parametrize("runs", [1, 3])
async def test_a_light_save_writes_only_the_light_columns(opened: OpenStore, runs: int, single: bool) -> None:
    ids = range(1, runs + 1)
    async with opened() as store:
        for run_id in ids:
            await create(store, a_run(run_id), a_spec(run_id))
        light = {
            "version": 1,
            "head": b"next",
            "event_at": 2000,
            "steps_done": 3,
            "checkpoints": 4,
            "next_ref": 5,
        }
        assert light.keys() == set(LIGHT_COLUMNS)
        changed = Save(
            expect=[(run_id, 0, None) for run_id in ids],
            runs=[a_run(run_id, **light, cancel_reason="not written") for run_id in ids],
            rows=tables([an_event(run_id, 1) for run_id in ids]),
            light=set(ids),
        )
        assert (await save(store, changed, single=single)).ids == set(ids)
        for run_id in ids:
            assert await get_run(store, run_id) == a_run(run_id, **light)
            assert len(await store.read("events_of", run_id)) == 1
        assert (await save(store, changed, single=single)).ids == set(), "the runs have newer versions"


async def test_light_and_full_changes_share_a_save(opened: OpenStore) -> None:
    async with opened() as store:
        for run_id in (1, 2):
            await create(store, a_run(run_id), a_spec(run_id))
        runs = [a_run(1, version=1, steps_done=1), a_run(2, version=1, steps_done=2, started_at=1500)]
        changed = Save(
            expect=[(1, 0, None), (2, 0, None)], runs=runs, new_runs=[a_run(3)], new_specs=[a_spec(3)],
            light={1},
        )  # fmt: skip
        assert (await save(store, changed)).ids == {1, 2, 3}
        assert [await get_run(store, run_id) for run_id in (1, 2)] == runs


@pytest.mark.parametrize("single", [True, False], ids=["single", "whole"])
async def test_a_save_of_one_row_per_table_survives_a_round_trip(opened: OpenStore, single: bool) -> None:
    """PostgreSQL receives single rows in another format than many rows."""
    run, spec = filled(RunRow, id=1), filled(RunSpecRow, run_id=1)
    rows = [a_step(1, 0), an_attempt(1, 0, 1), a_checkpoint(1, 0, "one", 1), a_payload(1, 1), an_event(1, 1)]
    async with opened() as store:
        made = Save(new_runs=[run], new_specs=[spec], rows=tables(rows))
        assert (await save(store, made, single=single)).ids == {1}
        assert await get_run(store, 1) == run
        assert await store.read("get_spec", 1) == [spec]
        again = tables([a_step(1, 0, recorded=True), an_attempt(1, 0, 1, seq=4), an_event(1, 2)])
        changed = replace(run, version=run.version + 1, steps_done=7)
        for version, ids in ((run.version + 5, set[int]()), (run.version, {1})):
            saved = await save(
                store, Save(expect=[(1, version, None)], runs=[changed], rows=again), single=single
            )
            assert saved.ids == ids
            assert (await get_run(store, 1) == changed) == bool(ids)
            assert len(await store.read("events_of", 1)) == 1 + len(ids), (
                "a skipped run is skipped with all of its rows"
            )
        assert [step.recorded for step in await store.read("steps_of", 1)] == [True]
        assert [attempt.seq for attempt in await store.read("attempts_of", 1)] == [4]


async def test_a_new_run_whose_id_exists_is_skipped(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        other = Save(
            new_runs=[a_run(1, workflow="other"), a_run(2)], new_specs=[a_spec(1, requester="x"), a_spec(2)],
            rows=tables([an_event(1, 1), an_event(2, 1)]),
        )  # fmt: skip
        assert (await save(store, other)).ids == {2}
        assert await get_run(store, 1) == a_run(1)
        assert await store.read("events_of", 1) == []


async def test_one_of_many_runs_with_one_idempotency_key_is_created(opened: OpenStore) -> None:
    def delivery(run_id: int) -> Save:
        spec = a_spec(run_id, source="github_webhook", idempotency_key="delivery-1")
        return Save(new_runs=[a_run(run_id)], new_specs=[spec], rows=tables([an_event(run_id, 1)]))

    async with opened() as store:
        saved = await asyncio.gather(*(save(store, delivery(n), single=n % 2 == 0) for n in range(1, 21)))
        made = set.union(*(one.ids for one in saved))
        assert len(made) == 1
        assert await sizes(store) == {"run": 1, "run_spec": 1, "event": 1}
        [found] = await ask(store, "find_keys", [("acme", "github_webhook", "delivery-1")])
        assert found.run_id in made


async def test_a_key_belongs_to_its_tenant_and_source(opened: OpenStore) -> None:
    specs = [
        a_spec(1, idempotency_key="k"),
        a_spec(2, idempotency_key="k", source="slack"),
        a_spec(3, idempotency_key="k", tenant="beta"),
        a_spec(4, idempotency_key="k"),
        a_spec(5),
        a_spec(6),
    ]
    runs = [a_run(spec.run_id, tenant=spec.tenant) for spec in specs]
    async with opened() as store:
        assert (await save(store, Save(new_runs=runs, new_specs=specs))).ids == {1, 2, 3, 5, 6}


# ----------------------------------------------------------------------------------- constraints of the schema


async def assert_refused(store: Store, one: Save) -> None:
    """The database refuses a save, writes nothing of it, and stays usable."""
    before = await sizes(store)
    with pytest.raises(DataRejected):
        await save(store, one)
    assert await sizes(store) == before
    assert (await save(store, Save(expect=[(7, 0, None)]))).ids == {7}


def save_under_run_7(*rows: Row) -> Save:
    return Save(expect=[(7, 0, None)], rows={"event": [an_event(7, 99)], **tables(rows)})


async def test_a_step_has_at_most_one_live_lease(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(7), a_spec(7), an_attempt(7, 0, 1), an_attempt(7, 1, 1, lease="granted"))
        await assert_refused(store, save_under_run_7(an_attempt(7, 0, 2)))
        await assert_refused(store, save_under_run_7(an_attempt(7, 1, 2, lease="granted")))
        handed_on = [an_attempt(7, 0, 2), an_attempt(7, 0, 1, **ENDED)]
        assert (await save(store, save_under_run_7(*handed_on))).ids == {7}
        assert [a.lease for a in await store.read("attempts_of", 7)] == ["completed", "active", "granted"]


async def test_a_concurrency_key_has_at_most_one_holder(opened: OpenStore) -> None:
    holder = a_run(7, concurrency_key="deploy", admitted_at=1000)
    async with opened() as store:
        await create(store, holder, a_spec(7))
        await create(store, a_run(8, concurrency_key="deploy"), a_spec(8))
        await create(
            store,
            a_run(9, concurrency_key="deploy", admitted_at=1000, tenant="beta"),
            a_spec(9, tenant="beta"),
        )
        admitted = a_run(8, concurrency_key="deploy", admitted_at=2000, version=1)
        await assert_refused(store, Save(expect=[(8, 0, None)], runs=[admitted]))
        newcomer = a_run(10, concurrency_key="deploy", admitted_at=2000)
        await assert_refused(store, Save(new_runs=[newcomer], new_specs=[a_spec(10)]))
        done = replace(holder, **DONE, version=1)
        handed_on = Save(expect=[(8, 0, None), (7, 0, None)], runs=[admitted, done])
        assert (await save(store, handed_on)).ids == {7, 8}
        assert await store.read("key_holders_twice") == []


@pytest.mark.parametrize(
    "twice",
    [
        [a_message(7, 1, "e"), a_message(7, 2, "e")],
        [a_step(7, 0, name="build"), a_step(7, 1, name="build")],
        [an_event(7, 1), an_event(7, 1)],
        [a_payload(7, 1), a_payload(7, 1)],
        [an_outbox_row(7, 1), an_outbox_row(7, 1)],
    ],
    ids=lambda rows: rows[0].table,
)
async def test_duplicates_of_unique_rows_are_refused(opened: OpenStore, twice: list[Row]) -> None:
    async with opened() as store:
        await create(store, a_run(7), a_spec(7), twice[0])
        await assert_refused(store, save_under_run_7(twice[1]))


BAD_RUNS: dict[str, dict[str, Any]] = {
    "unknown status": {"status": "sleeping"},
    "finished without a time": {**DONE, "finished_at": None},
    "finished without a reason": {**DONE, "reason": None},
    "finished without a duration": {**DONE, "duration_us": None},
    "a finish time while running": {**DONE, "status": "running"},
    "a reason while running": {"status": "running", "reason": "done"},
    "a timer after the end": {**DONE, "wake_at": 9000},
    "started before it was created": {"started_at": 999},
    "finished before it was started": {**DONE, "started_at": 4001},
    "sealed while running": {"sealed_at": 5000},
    "a counter below zero": {"steps_open": -1},
    "a version below zero": {"version": -1},
}


@pytest.mark.parametrize("change", BAD_RUNS.values(), ids=BAD_RUNS)
async def test_the_schema_refuses_an_impossible_run(opened: OpenStore, change: dict[str, Any]) -> None:
    async with opened() as store:
        await create(store, a_run(7), a_spec(7))
        await assert_refused(
            store, Save(expect=[(7, 0, None)], runs=[a_run(7, **change)], rows=tables([an_event(7, 1)]))
        )
        await assert_refused(store, Save(new_runs=[a_run(8, **change)], new_specs=[a_spec(8)]))


CLOSED = {"state": "succeeded", "finished_at": 2000, "reason": "done"}
BAD_ROWS: dict[str, Row] = {
    "step: unknown state": a_step(7, 0, state="sleeping"),
    "step: unknown kind": a_step(7, 0, kind="thing"),
    "step: closed without a time": a_step(7, 0, **{**CLOSED, "finished_at": None}),
    "step: closed without a reason": a_step(7, 0, **{**CLOSED, "reason": None}),
    "step: a finish time while open": a_step(7, 0, **{**CLOSED, "state": "running"}),
    "step: a timer after the end": a_step(7, 0, **CLOSED, wake_at=3000),
    "step: finished before it was created": a_step(7, 0, **{**CLOSED, "finished_at": 999}),
    "step: a gate that can be claimed": a_ready_step(7, 0, kind="approval"),
    "step: claimable in a backoff": a_ready_step(7, 0, state="retry_wait"),
    "step: claimable without a time": a_ready_step(7, 0, ready_at=None),
    "step: a counter below zero": a_step(7, 0, needs_left=-1),
    "attempt: unknown state": an_attempt(7, 0, 1, state="sleeping"),
    "attempt: unknown lease": an_attempt(7, 0, 1, lease="lost"),
    "attempt: an end while live": an_attempt(7, 0, 1, ended_at=2000),
    "attempt: ended without a time": an_attempt(7, 0, 1, **{**ENDED, "ended_at": None}),
    "attempt: a live lease of an ended attempt": an_attempt(7, 0, 1, **{**ENDED, "lease": "active"}),
    "attempt: numbered zero": an_attempt(7, 0, 0),
    "attempt: expired before it was granted": an_attempt(7, 0, 1, expires_at=999),
    "checkpoint: unknown state": filled(CheckpointRow, run_id=7, state="maybe"),
    "wait: unknown state": a_wait(7, 1, state="maybe"),
    "wait: settled without an outcome": a_wait(7, 1, state="settled", settled_at=2000),
    "wait: an outcome while open": a_wait(7, 1, outcome="received"),
    "wait: a timer after the end": a_wait(7, 1, state="closed", wake_at=3000),
    "approval: unknown status": an_approval(7, 1, status="maybe"),
    "approval: approved without a decider": an_approval(7, 1, status="approved", decided_at=2000),
    "approval: a vote of the requester": an_approval(7, 1, requester="u_al", votes="u_bo u_al"),
    "approval: decided by the requester": an_approval(
        7, 1, status="rejected", decided_at=2000, requester="u_al", decided_by="u_al"
    ),
    "approval: used with too few votes": an_approval(
        7, 1, status="approved", decided_at=2000, decided_by="u_bo", people=2, votes="u_bo", used_no=3
    ),
    "approval: decided while requested": an_approval(7, 1, decided_at=2000),
    "child: unknown rule": a_child(7, 8, on_close="adopt"),
    "event: numbered below zero": an_event(7, -1),
    "idempotency: unknown status": an_idempotency_record("k", run_id=7, status="maybe"),
    "text that is not Unicode": an_event(7, 1, actor="\ud800"),
    "a number over 63 bits": an_event(7, 1, at=2**63),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
async def test_the_schema_refuses_an_impossible_row(opened: OpenStore, bad: Row) -> None:
    async with opened() as store:
        await create(store, a_run(7), a_spec(7))
        await assert_refused(store, save_under_run_7(bad))


async def test_the_schema_accepts_every_state(opened: OpenStore) -> None:
    """Each state of each machine can be stored, with the columns that it requires."""
    runs = [
        a_run(n, **(DONE if s in RUN.terminal else {}) | {"status": s})
        for n, s in enumerate(sorted(RUN.states), 10)
    ]
    steps = [
        a_step(7, n, **(CLOSED if s in STEP.terminal else {}) | {"state": s})
        for n, s in enumerate(sorted(STEP.states))
    ]
    attempts = [
        an_attempt(7, n, 1, **(ENDED if s in ATTEMPT.terminal else {}) | {"state": s})
        for n, s in enumerate(sorted(ATTEMPT.states))
    ]
    leases = [
        an_attempt(7, 100 + n, 1, **(ENDED if s in LEASE.terminal else {}) | {"lease": s})
        for n, s in enumerate(sorted(LEASE.states))
    ]
    decided = {"decided_at": 2000, "decided_by": "person_2"}
    approvals = [
        an_approval(7, n, **(decided if s in APPROVAL.terminal else {}) | {"status": s})
        for n, s in enumerate(sorted(APPROVAL.states))
    ]
    records = [
        an_idempotency_record(s, status=s) for s in sorted({*IDEMPOTENCY.states} - IDEMPOTENCY.terminal)
    ]
    async with opened() as store:
        await create(store, a_run(7), a_spec(7), *steps, *attempts, *leases, *approvals, *records)
        saved = await save(store, Save(new_runs=runs, new_specs=[a_spec(run.id) for run in runs]))
        assert len(saved.ids) == len(RUN.states)


# -------------------------------------------------------------------------------------------- heartbeats


async def beat(
    store: Store, *beats: tuple[int, int, int, int, int, str], now: int = 2000
) -> list[ExtendedLease]:
    return await ask(store, "beat", beats, now)


async def test_a_heartbeat_changes_only_its_lease(opened: OpenStore) -> None:
    lease = an_attempt(7, 0, 1, expires_at=5000, seq=3, last_message="ack", answer=b"ok")
    async with opened() as store:
        await create(store, a_run(7, version=4), a_spec(7), lease, an_attempt(7, 1, 1))
        found = await beat(store, (7, 0, 1, 4, 6000, "half"), (7, 1, 1, 1, 6000, ""))
        assert sorted(found, key=lambda key: key.idx) == [
            ExtendedLease(7, 0, 1, "running"),
            ExtendedLease(7, 1, 1, "running"),
        ]
        [first, _] = await store.read("attempts_of", 7)
        assert first == replace(lease, beat_at=2000, expires_at=6000, seq=4, progress="half")
        assert (await get_run(store, 7)).version == 4


async def test_a_heartbeat_learns_of_a_cancel(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(7), a_spec(7), an_attempt(7, 0, 1, state="canceling"))
        assert await beat(store, (7, 0, 1, 1, 6000, "")) == [ExtendedLease(7, 0, 1, "canceling")]


LATE_BEATS: dict[str, tuple[AttemptRow, int]] = {
    "not acknowledged": (an_attempt(7, 0, 1, lease="granted", state="leased"), 2000),
    "ended": (an_attempt(7, 0, 1, **ENDED), 2000),
    "expired": (an_attempt(7, 0, 1), 5000),
    "older than the last message": (an_attempt(7, 0, 1, seq=4), 2000),
    "a shorter lease": (an_attempt(7, 0, 1, expires_at=6001), 2000),
    "another attempt": (an_attempt(7, 0, 2), 2000),
}


@pytest.mark.parametrize(("lease", "now"), LATE_BEATS.values(), ids=LATE_BEATS)
async def test_a_stale_heartbeat_changes_nothing(opened: OpenStore, lease: AttemptRow, now: int) -> None:
    async with opened() as store:
        await create(store, a_run(7), a_spec(7), lease)
        assert await beat(store, (7, 0, 1, 4, 6000, ""), now=now) == []
        assert await store.read("attempts_of", 7) == [lease]


@pytest.mark.parametrize("end", [{}, ENDED], ids=["continues", "ends"])
async def test_a_save_does_not_undo_a_heartbeat(opened: OpenStore, end: dict[str, Any]) -> None:
    decided = an_attempt(7, 0, 1, seq=1, last_message="checkpoint", answer=b"ok", **end)
    async with opened() as store:
        await create(store, a_run(7), a_spec(7), an_attempt(7, 0, 1))
        await beat(store, (7, 0, 1, 9, 8000, ""))
        await save(store, Save(expect=[(7, 0, None)], rows=tables([decided])))
        [lease] = await store.read("attempts_of", 7)
        assert (lease.expires_at, lease.seq, lease.last_message) == (8000, 9, "checkpoint")


# ------------------------------------------------------------------------------------ outbox and retention


async def test_a_delivered_outbox_row_is_deleted(opened: OpenStore) -> None:
    owed = [an_outbox_row(7, 1, 0, target_id=8), an_outbox_row(7, 1, 1, target_id=9), an_outbox_row(7, 2)]
    async with opened() as store:
        for run_id in (8, 9):
            await create(store, a_run(run_id), a_spec(run_id))
        await create(store, a_run(7), a_spec(7), *owed)
        # Run 8 takes its delivery. Run 9 has another version, so its row stays. A row without a target is deleted.
        delivery = Save(
            expect=[(8, 0, None), (9, 5, None)], runs=[a_run(8, version=1), a_run(9, version=6)],
            delivered=[(7, 1, 0), (7, 1, 1), (7, 2, 0), (7, 3, 0)],
        )  # fmt: skip
        assert (await save(store, delivery)).ids == {8}
        assert await store.read("outbox_of", 7) == [owed[1]]
        await save(store, Save(delivered=[(7, 1, 1)]))
        assert await store.read("outbox_of", 7) == []


async def test_a_finished_run_is_deleted_with_all_of_its_rows(opened: OpenStore) -> None:
    """Undelivered outbox rows stay, and an idempotency key stays with the run that it created."""
    rows_of_7 = [filled(row, run_id=7) for row in READ_BACK if row not in (RunRow, RunSpecRow)]
    rows_of_7 += [StaleMessageRow(7, 0, 1, "fail", 1, "worker-1", 1000)]
    async with opened() as store:
        await create(store, a_run(7, **DONE), a_spec(7, idempotency_key="k"), *rows_of_7)
        await create(store, a_run(8), a_spec(8), an_event(8, 1))
        gone = await save(store, Save(expect=[(7, 0, None)], delete_runs=[7]))
        assert gone.ids == {7}
        assert await sizes(store) == {"run": 1, "run_spec": 2, "event": 1, "outbox": 1}
        assert [row.run_id for row in await ask(store, "find_keys", [("acme", "api", "k")])] == [7]
        assert await store.read("orphan_rows") == []


async def test_an_open_or_changed_run_is_not_deleted(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(7, version=2), a_spec(7), an_event(7, 1))
        await create(store, a_run(8, **DONE, version=2), a_spec(8), an_event(8, 1))
        await save(store, Save(expect=[(7, 2, None), (8, 1, None)], delete_runs=[7, 8]))
        assert await sizes(store) == {"run": 2, "run_spec": 2, "event": 2}


async def test_the_doctor_finds_rows_without_a_run(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(7, tenant="beta"), a_spec(7, tenant="acme"))
        assert [found.run_id for found in await store.read("lost_specs")] == [7]


# ------------------------------------------------------------------------- transactions, errors, the clock


async def test_an_error_in_a_transaction_rolls_it_back(opened: OpenStore) -> None:
    class Mistake(Exception):
        pass

    def transaction() -> Transaction[None]:
        yield Save(new_runs=[a_run(1)], new_specs=[a_spec(1)])
        [run] = yield Query("lock_runs", [(1,)])
        assert run.id == 1, "a transaction sees its own writes"
        raise Mistake

    async with opened() as store:
        with pytest.raises(Mistake):
            await store.transact(transaction)
        assert await sizes(store) == {}
        await create(store, a_run(1), a_spec(1))


async def test_a_long_transaction_does_not_block_the_event_loop(opened: OpenStore) -> None:
    threads: list[int] = []

    def transaction() -> Transaction[set[int]]:
        runs = yield Query("lock_runs", [(1,), (2,)])
        threads.append(threading.get_ident())
        yield LEAVE_EVENT_LOOP
        threads.append(threading.get_ident())
        assert [run.id for run in runs] == [1, 2]
        steps = [
            a_step(run_id, idx) for run_id, count in ((1, 2_500), (2, 20), (3, 30)) for idx in range(count)
        ]
        saved = yield Save(
            expect=[(1, 0, None), (2, 7, None)], runs=[a_run(1, version=1), a_run(2, version=8)],
            new_runs=[a_run(3)], new_specs=[a_spec(3)],
            rows=tables(steps) | tables([an_event(1, 1), an_event(2, 8), an_event(3, 1)]),
        )  # fmt: skip
        threads.append(threading.get_ident())
        again = yield Save(expect=[(1, 1, None)], runs=[a_run(1, version=2)])
        assert again.ids == {1}
        yield LEAVE_EVENT_LOOP  # the transaction has left the loop already
        ids: set[int] = saved.ids
        return ids

    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        await create(store, a_run(2), a_spec(2))
        assert await store.transact(transaction) == {1, 3}, "run 2 has another version"
        here = threading.get_ident()
        assert [thread == here for thread in threads] == [True, False, False]
        found = await sizes(store)
        assert (found["step"], found["event"]) == (2_530, 2)
        assert (await get_run(store, 1)).version == 2
        assert (await get_run(store, 2)).version == 0


async def test_an_error_in_a_long_transaction_rolls_it_back(opened: OpenStore) -> None:
    class Mistake(Exception):
        pass

    def broken() -> Transaction[None]:
        yield LEAVE_EVENT_LOOP
        yield Save(new_runs=[a_run(1)], new_specs=[a_spec(1)])
        raise Mistake

    def refused() -> Transaction[None]:
        yield LEAVE_EVENT_LOOP
        yield Save(new_runs=[a_run(1, status="nonsense")], new_specs=[a_spec(1)])

    async with opened() as store:
        with pytest.raises(Mistake):
            await store.transact(broken)
        with pytest.raises(DataRejected):
            await store.transact(refused)
        assert await sizes(store) == {}
        await create(store, a_run(1), a_spec(1))


async def test_canceling_a_long_transaction_leaves_the_store_usable(
    opened: OpenStore,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def transaction() -> Transaction[None]:
        yield LEAVE_EVENT_LOOP
        begun.set()
        assert go_on.wait(20)
        yield Save(new_runs=[a_run(1)], new_specs=[a_spec(1)])

    async with opened() as store:
        caller = asyncio.create_task(store.transact(transaction))
        assert await asyncio.to_thread(begun.wait, 20)
        caller.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await create(store, a_run(2), a_spec(2))


async def test_a_hundred_concurrent_transactions_on_one_run_lose_nothing(opened: OpenStore) -> None:
    def bump() -> Transaction[int]:
        [run] = yield Query("lock_runs", [(1,)])
        version: int = run.version + 1
        saved = yield Save(
            expect=[(1, run.version, None)],
            runs=[replace(run, version=version)],
            rows=tables([an_event(1, version)]),
        )
        assert saved.ids == {1}
        return version

    async with opened() as first, opened() as second:
        await create(first, a_run(1), a_spec(1))
        stores = (first, second)
        versions = await asyncio.gather(*(stores[n % 2].transact(bump, lane=n % 5) for n in range(100)))
        assert sorted(versions) == list(range(1, 101))
        assert (await get_run(first, 1)).version == 100
        assert (await sizes(second))["event"] == 100


async def test_canceling_a_transaction_leaves_the_store_usable(opened: OpenStore) -> None:
    async with opened() as store:
        for n in range(1, 11):
            task = asyncio.create_task(create(store, a_run(n), a_spec(n), an_event(n, 1)))
            await asyncio.sleep(0.0005 * n)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        found = await sizes(store)
        assert found.get("run", 0) == found.get("run_spec", 0) == found.get("event", 0)
        await create(store, a_run(99), a_spec(99))


async def test_the_clock_can_be_shifted(opened: OpenStore) -> None:
    async with opened() as store:
        before = await now_us(store)
        store.shift_clock(HOUR_US)
        later = await now_us(store)
        assert HOUR_US <= later - before < HOUR_US + 60 * SECOND_US
        [moment] = await ask(store, "now")
        assert moment.now_us >= later
        saved = await save(store, Save(new_runs=[a_run(1)], new_specs=[a_spec(1)]))
        assert saved.now_us >= moment.now_us
        estimate = store.estimate_us()
        assert estimate is None or abs(estimate - saved.now_us) < 10 * SECOND_US


async def test_migrating_twice_changes_nothing(opened: OpenStore) -> None:
    async with opened() as store:
        await create(store, a_run(1), a_spec(1))
        assert await store.migrate() == []  # type: ignore[attr-defined]  # both have it; the port leaves it out
        assert await sizes(store) == {"run": 1, "run_spec": 1}


async def test_work_in_another_process_is_noticed(opened: OpenStore) -> None:
    async with opened() as here, opened() as there:
        while await here.wait_for_work(0.2):
            pass  # ignore earlier wake-ups
        waiting = asyncio.create_task(here.wait_for_work(30.0))
        await asyncio.sleep(0.01)
        await create(there, a_run(1), a_spec(1), a_ready_step(1, 0))
        await there.notify_work()
        assert await waiting is True


async def test_waiting_for_work_ends_at_the_timeout(opened: OpenStore) -> None:
    async with opened() as store, asyncio.timeout(10):
        for seconds in (0.05, 0.0):
            while await store.wait_for_work(seconds):
                pass  # a spurious wake-up is allowed, such as one at connection time
