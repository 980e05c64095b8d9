"""Schedules: one run per slot, whatever the order of processes, crashes and changes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tenure.clock import SECOND_US
from tenure.doctor.examination import examine_database
from tenure.errors import TenureError
from tenure.kernel.cron import format_slot, parse_cron
from tenure.kernel.registry_rows import ScheduleRow
from tenure.kernel.run_rows import Cap, RunSpecRow
from tenure.limits import CATCH_UP_RUNS_MAX
from tenure.orchestrator.scheduler import Scheduler, build_scheduled_run, slots_to_run
from tenure.reads.explanation import explain_run
from tenure.store.schedules import advance_schedule, save_schedule
from tenure.store.workers import register_worker
from tests.conformance.world import BEGIN_US, Place, World

MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US


def hourly(**given: Any) -> ScheduleRow:
    """Every hour, from 11:00 on."""
    return ScheduleRow(**{
        "tenant": "acme", "name": "hourly", "workspace": "main", "workflow": "report", "code_version": "3",
        "profile": "agent-runs", "queue": "reports", "plan": None, "input": b'{"n":1}', "cron": "0 * * * *",
        "zone": "UTC", "catch_up": "skip", "catch_up_max": 10, "pass_slot": False, "owner": "u_alice",
        "labels": '{"team":"a"}', "next_at": BEGIN_US + HOUR_US, **given,
    })  # fmt: skip


async def put(w: World, schedule: ScheduleRow) -> ScheduleRow:
    made: ScheduleRow | None = await save_schedule(w.store, schedule)
    assert made is not None
    return made


async def row(w: World, name: str = "hourly") -> ScheduleRow:
    [found] = await w.store.read("schedule_named", "acme", name)
    assert isinstance(found, ScheduleRow)
    return found


async def specs(w: World) -> list[RunSpecRow]:
    """The specs of all runs, ordered by slot."""
    found = [(await w.store.read("get_spec", run_id))[0] for run_id in await w.run_ids()]
    return sorted(found, key=lambda spec: spec.trigger_ref or "")


async def slots(w: World) -> list[str]:
    """The slots that have a run, as hour and minute."""
    return [(spec.trigger_ref or "")[-9:-4] for spec in await specs(w)]


async def look(w: World) -> int:
    return await Scheduler(w.orchestrator).look()


# ------------------------------------------------------------------------------------------ a slot's run


@pytest.mark.clause("GWI-10")
async def test_a_slot_starts_a_run_with_the_slots_key(place: Place) -> None:
    async with World(place) as w:
        await put(w, hourly(pass_slot=True))
        assert await look(w.at("10:59:58")) == 0
        assert await w.run_ids() == []
        assert await look(w.at("11:00:01")) == 1
        [spec] = await specs(w)
        assert spec.idempotency_key == "scheduler:hourly:2026-01-05T11:00:00Z"
        assert (spec.source, spec.trigger_type, spec.requester) == ("scheduler", "scheduled", "u_alice")
        assert spec.trigger_ref == "hourly@2026-01-05T11:00:00Z"
        assert spec.labels == '{"team":"a"}'
        lease = await w.claim(queues=["reports"])
        assert (lease.kind, lease.workflow) == ("body", "report")
        assert msgspec.json.decode(lease.input or b"") == {"n": 1, "slot": "2026-01-05T11:00:00Z"}
        now = await row(w)
        assert (now.next_at, now.last_slot) == (BEGIN_US + 2 * HOUR_US, BEGIN_US + HOUR_US)
        assert await look(w) == 0


async def test_a_declared_plan_is_executed_as_written(place: Place) -> None:
    async with World(place) as w:
        await put(w, hourly(plan='[{"name":"build","queue":"ci"},{"name":"ship","queue":"ci"}]', input=None))
        await look(w.at("11:00:01"))
        [run] = await w.run_ids()
        assert await w.states(run) == {"build": "ready", "ship": "pending"}


@pytest.mark.clause("GWI-10")
@pytest.mark.guard_seconds(120)
async def test_eight_schedulers_start_one_run_per_slot(place: Place) -> None:
    async with World(place, orchestrators=8) as w:
        for name in ("a", "b", "c"):
            await put(w, hourly(name=name, cron="*/10 * * * *", next_at=BEGIN_US + 10 * MINUTE_US))
        for moment in ("10:10:01", "10:20:01", "10:30:01"):
            w.at(moment)
            await asyncio.gather(*(Scheduler(o).look() for o in w.orchestrators for _ in range(2)))
        keys = [spec.idempotency_key or "" for spec in await specs(w)]
        assert sorted(keys) == [
            f"scheduler:{name}:2026-01-05T10:{minute}:00Z" for name in "abc" for minute in (10, 20, 30)
        ]


@pytest.mark.clause("GWI-10")
async def test_a_crash_before_the_schedule_advances_creates_no_second_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(place) as w:
        await put(w, hourly())
        w.at("11:00:01")

        async def crash(*_: Any) -> bool:
            raise TenureError("STORE_UNAVAILABLE")

        with monkeypatch.context() as broken:
            broken.setattr("tenure.orchestrator.scheduler.advance_schedule", crash)
            assert await look(w) == 0
        assert len(await w.run_ids()) == 1
        assert (await row(w)).next_at == BEGIN_US + HOUR_US
        # The schedule's input changes before another scheduler handles the slot again.
        changed = await row(w)
        await put(w, msgspec.structs.replace(changed, revision=2, input=b'{"n":2}'))
        assert await look(await w.crash()) == 1
        assert len(await w.run_ids()) == 1


async def test_a_schedule_changed_during_a_slot_follows_the_change(place: Place) -> None:
    async with World(place) as w:
        old = await put(w, hourly())
        await put(w, msgspec.structs.replace(old, revision=2, cron="30 * * * *", next_at=old.next_at))
        w.at("11:00:01")
        assert not await advance_schedule(w.store, old, BEGIN_US + 2 * HOUR_US, old.next_at)
        assert await look(w) == 1
        assert (await row(w)).next_at == BEGIN_US + HOUR_US + 30 * MINUTE_US


async def test_a_tenant_over_its_rate_loses_no_slot(place: Place) -> None:
    async with World(place, caps=[Cap("acme", "", max_runs_per_min=1)]) as w:
        for name in ("a", "b", "c"):
            await put(w, hourly(name=name))
        await look(w.at("11:00:01"))
        runs = [await w.run(run_id) for run_id in await w.run_ids()]
        assert sorted(run.admitted_at is not None for run in runs) == [False, False, True]


async def test_a_schedule_that_fails_blocks_no_other(place: Place) -> None:
    async with World(place) as w:
        await put(w, hourly(name="zone", zone="Mars/Olympus"))
        await put(w, hourly(name="profile", profile="waterfall"))
        await put(w, hourly())
        await look(w.at("11:00:01"))
        assert await slots(w) == ["11:00"]
        aside = await row(w, "zone")
        assert (aside.paused, aside.next_at, aside.revision) == (True, None, 2)
        assert (
            await row(w, "profile")
        ).next_at == BEGIN_US + HOUR_US  # another process may have this profile


# --------------------------------------------------------------------------------------------- catching up


@pytest.mark.parametrize(
    ("policy", "at", "expected"),
    [
        ("skip", "17:00:30", ["17:00"]),
        ("skip", "17:20:00", []),
        ("last", "17:00:30", ["17:00"]),
        ("last", "17:20:00", ["17:00"]),
        ("all", "17:00:30", ["14:00", "15:00", "16:00", "17:00"]),
        ("all", "17:20:00", ["15:00", "16:00", "17:00"]),
    ],
)
@pytest.mark.guard_seconds(120)
async def test_after_six_hours_of_downtime_a_schedule_follows_its_catch_up_policy(
    place: Place, policy: str, at: str, expected: list[str]
) -> None:
    async with World(place, orchestrators=2) as w:
        await put(w, hourly(catch_up=policy, catch_up_max=3))
        w.at(at)
        await asyncio.gather(*(Scheduler(o).look() for o in w.orchestrators for _ in range(3)))
        assert await slots(w) == expected
        assert (await row(w)).next_at == BEGIN_US + 8 * HOUR_US
        assert await look(w) == 0


async def test_missed_slots_within_the_limit_are_all_caught_up(place: Place) -> None:
    async with World(place) as w:
        await put(w, hourly(catch_up="all", catch_up_max=100))
        await look(w.at("13:30:00"))
        assert await slots(w) == ["11:00", "12:00", "13:00"]


@pytest.mark.parametrize("policy", ["skip", "last", "all"])
def test_years_of_missed_minutes_cause_no_burst(policy: str) -> None:
    schedule = hourly(cron="* * * * *", catch_up=policy, catch_up_max=10**6, next_at=0)
    found = slots_to_run(schedule, parse_cron("* * * * *"), BEGIN_US + 30 * SECOND_US)
    assert len(found) <= CATCH_UP_RUNS_MAX + 2
    assert found == sorted(set(found))
    assert format_slot(found[-1]) == "2026-01-05T10:00:00Z"


async def test_slots_during_a_pause_start_no_runs(place: Place) -> None:
    async with World(place) as w:
        made = await put(w, hourly(catch_up="all"))
        await put(w, msgspec.structs.replace(made, revision=2, paused=True, next_at=None))
        assert await look(w.at("13:30:00")) == 0
        now = parse_cron(made.cron).after(w.now)
        await put(w, msgspec.structs.replace(made, revision=3, paused=False, next_at=now))
        assert await look(w) == 0
        assert await look(w.at("14:00:01")) == 1
        assert await slots(w) == ["14:00"]


# ---------------------------------------------------------------------------------------------- the doctor


async def test_the_doctor_finds_two_runs_for_one_slot(place: Place) -> None:
    async with World(place, examined=False) as w:
        schedule = await put(w, hourly())
        await look(w.at("11:00:01"))
        twice = build_scheduled_run(schedule, w.orchestrator.new_id("default"), BEGIN_US + HOUR_US)
        await w.do(msgspec.structs.replace(twice, idempotency_key="another"))
        report = await examine_database(w.store)
        assert set(report.found) == {"I35"}


# -------------------------------------------------------------------------------------------- why not yet


async def test_explain_distinguishes_a_missing_worker_from_a_queue(place: Place) -> None:
    async with World(place) as w:
        await put(w, hourly(queue="reports|flow:report@3"))
        await look(w.at("11:00:01"))
        [run_id] = await w.run_ids()

        async def reason() -> tuple[str, str]:
            found = await explain_run(
                w.store, await w.run(run_id), (await w.store.read("get_spec", run_id))[0]
            )
            return found.reason, found.text

        await register_worker(w.store, "other", ["reports", "reports|flow:report@2"], 1, "1")
        code, text = await reason()
        assert code == "worker"
        assert "'reports|flow:report@3'" in text
        assert "start one that has version 3 of workflow 'report', on the queue 'reports'" in text
        await register_worker(w.store, "w1", ["reports|flow:report@3"], 1, "1")
        assert await reason() == (
            "turn",
            "It is ready and waits for its turn: worker w1 serves the queue 'reports|flow:report@3'.",
        )
        w.later(60)
        assert (await reason())[0] == "worker", "the worker has been silent for too long"


async def test_a_scheduler_polls_and_continues_after_a_failure(place: Place) -> None:
    class Watched(Scheduler):
        looks = 0
        enough = asyncio.Event()

        async def look(self) -> int:
            self.looks += 1
            if self.looks == 1:
                raise TenureError("STORE_UNAVAILABLE")
            found = await super().look()
            self.enough.set()
            return found

    async with World(place) as w:
        await put(w, hourly())
        async with Watched(w.at("11:00:01").orchestrator, seconds=0.0) as scheduler:
            assert isinstance(scheduler, Watched)
            await scheduler.enough.wait()
        assert await slots(w) == ["11:00"]
