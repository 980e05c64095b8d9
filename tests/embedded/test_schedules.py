"""Schedules from Python, on both stores: made, changed, paused, triggered, and refused where they make no sense."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.clock import us
from tenure.embedded import Engine, Schedules, StepSpec, Worker
from tenure.errors import TenureError
from tenure.orchestrator.schedules import Scheduler
from tests.embedded.stage import Stage, stage


async def refused(code: str, call: Any) -> TenureError:
    with pytest.raises(TenureError) as caught:
        await call
    assert caught.value.code == code
    return caught.value


async def look(engine: Stage) -> int:
    return await Scheduler(engine.orchestrator).look()


async def go_to(engine: Stage, moment: datetime) -> None:
    """A second after a moment."""
    now: int = (await engine.store.read("now"))[0].now_us
    await engine.later((us(moment.timestamp()) - now) / 1e6 + 1)


async def test_a_schedule_from_its_making_to_its_runs(url: str) -> None:
    async with stage(url, actor="u_ada") as engine:
        schedules = Schedules(engine)
        made = await schedules.create("tick", "report", " */10  * * * * ", input={"a": 1}, pass_slot=True)
        assert (made.cron, made.owner, made.catch_up, made.revision) == ("*/10 * * * *", "u_ada", "skip", 1)
        assert made.next_at is not None
        assert made.next_at.minute % 10 == 0
        assert await schedules.next("tick", 1) == [made.next_at]
        assert await schedules.list() == [made] == [await schedules.show("tick")]
        await go_to(engine, made.next_at)
        assert await look(engine) == 1
        [line] = await engine.runs()
        run = await engine.get(line.id)
        slot = f"{made.next_at:%Y-%m-%dT%H:%M:%SZ}"
        assert run.input == {"a": 1, "slot": slot}
        after = await schedules.show("tick")
        assert after.last_slot == made.next_at
        assert after.revision == 1, "time is no change"


async def test_a_change_looks_ahead_and_keeps_the_rest(url: str) -> None:
    async with stage(url) as engine:
        schedules = Schedules(engine)
        made = await schedules.create("s", "report", "0 0 1 1 *", zone="Asia/Tokyo", labels={"team": "a"})
        changed = await schedules.edit("s", cron="* * * * *", input=[1], plan=[StepSpec(name="build")])
        assert (changed.zone, changed.labels, changed.input) == ("Asia/Tokyo", {"team": "a"}, [1])
        assert changed.plan is not None
        assert changed.plan[0]["name"] == "build"
        assert (changed.revision, changed.created_at) == (2, made.created_at)
        assert changed.next_at is not None
        assert made.next_at is not None
        assert changed.next_at < made.next_at
        await refused("SCHEDULE_INVALID", schedules.edit("s", paused=True))
        await refused("SCHEDULE_INVALID", schedules.edit("s", cron="x"))
        await refused("SCHEDULE_NOT_FOUND", schedules.edit("nobody", cron="* * * * *"))
        assert await schedules.show("s") == changed


async def test_paused_slots_are_nobodys_and_a_trigger_works_all_the_same(url: str) -> None:
    async with stage(url) as engine:
        schedules = Schedules(engine)
        await schedules.create("s", "report", "*/5 * * * *", catch_up="all", catch_up_max=100)
        paused = await schedules.pause("s")
        assert (paused.paused, paused.next_at) == (True, None)
        assert await schedules.pause("s") == paused
        await engine.later(7200)
        assert await look(engine) == 0
        runs = {await schedules.trigger("s", actor="u_bob") for _ in range(3)}
        assert len(runs) == 3, "every trigger is its own run"
        assert (await engine.get(runs.pop())).workflow == "report"
        going = await schedules.unpause("s")
        assert await schedules.unpause("s") == going
        assert await look(engine) == 0
        assert len(await engine.runs()) == 3
        await schedules.delete("s")
        await refused("SCHEDULE_NOT_FOUND", schedules.delete("s"))


async def test_two_people_who_change_the_same_text_do_not_overwrite_each_other(url: str) -> None:
    async with stage(url) as engine:
        schedules = Schedules(engine)
        await schedules.create("s", "report", "0 * * * *")
        old = await schedules._row("s")
        await schedules.edit("s", cron="5 * * * *")
        await refused("SCHEDULE_CHANGED", schedules._change(old, cron="10 * * * *"))
        assert (await schedules.show("s")).cron == "5 * * * *"


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"cron": "* * * *"}, "cron"),
        ({"zone": "nowhere"}, "zone"),
        ({"catch_up": "some"}, "catch_up"),
        ({"catch_up_max": 0}, "catch_up_max"),
        ({"catch_up_max": 101}, "catch_up_max"),
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"workflow": "a\nb"}, "workflow"),
        ({"input": [1], "pass_slot": True}, "input"),
        ({"input": "x" * 300_000}, "input"),
        ({"profile": "waterfall"}, "profile"),
    ],
)
async def test_a_schedule_that_makes_no_sense_is_refused_when_it_is_made(
    url: str, given: dict[str, Any], place: str
) -> None:
    async with stage(url) as engine:
        asked = {"name": "s", "workflow": "report", "cron": "0 * * * *", **given}
        error = await refused("SCHEDULE_INVALID", Schedules(engine).create(**asked))
        assert [detail.path for detail in error.details] == [place]
        await refused(
            "PLAN_INVALID",
            Schedules(engine).create("s", "w", "0 * * * *", plan=[{"name": "a"}, {"name": "a"}]),
        )
        assert await Schedules(engine).list() == []


async def test_tenants_do_not_see_each_others_schedules(url: str) -> None:
    async with stage(url) as engine, Engine(url, tenant="other", sweep=False) as other:
        await Schedules(engine).create("s", "report", "0 * * * *")
        assert await Schedules(other).list() == []
        await refused("SCHEDULE_NOT_FOUND", Schedules(other).delete("s"))
        await Schedules(other).create("s", "theirs", "0 * * * *")
        assert (await Schedules(engine).show("s")).workflow == "report"


async def test_who_may_only_read_changes_no_schedule(url: str) -> None:
    async with stage(url) as engine:
        await Schedules(engine).create("s", "report", "0 * * * *")
    async with Engine(url, only_reads=True) as reader:
        assert (await Schedules(reader).show("s")).name == "s"
        assert len(await Schedules(reader).next("s", 3)) == 3
        for call in (
            Schedules(reader).pause("s"),
            Schedules(reader).delete("s"),
            Schedules(reader).trigger("s"),
        ):
            await refused("STORE_READ_ONLY", call)


async def test_times_are_shown_in_utc(url: str) -> None:
    async with stage(url) as engine:
        made = await Schedules(engine).create("s", "report", "0 12 * * *", zone="Asia/Kathmandu")
        assert made.next_at is not None
        assert (made.next_at.tzinfo, made.next_at.hour, made.next_at.minute) == (UTC, 6, 15)


def registered(engine: Stage, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a worker has said that it is there."""
    said, put = asyncio.Event(), engine.store.put_worker

    async def watched(*what: Any) -> None:
        await put(*what)
        said.set()

    monkeypatch.setattr(engine.store, "put_worker", watched)
    return said


async def test_a_worker_is_known_from_its_start_to_its_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(url) as engine:
        said = registered(engine, monkeypatch)
        async with Worker(engine, {}, name="w1", queues=["a", "b"], slots=3):
            await said.wait()
            seen = await engine.store.read("workers_seen_since", 0)
            assert [(w.name, w.queues, w.slots) for w in seen] == [("w1", '["a","b"]', 3)]
        assert await engine.store.read("workers_seen_since", 0) == []


async def test_a_worker_that_dies_says_no_goodbye(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(url) as engine:
        said = registered(engine, monkeypatch)
        async with Worker(engine, {}, name="w1") as worker:
            await said.wait()
            worker.kill()
        assert [w.name for w in await engine.store.read("workers_seen_since", 0)] == ["w1"]
