"""Schedules from Python, on both stores: created, changed, paused, triggered, and refused if invalid."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.clock import us
from tenure.declared import load_workflow
from tenure.engine import Engine, StepSpec
from tenure.errors import TenureError
from tenure.orchestrator.scheduler import Scheduler
from tenure.sdk.definitions import Registry, Tool, Workflow
from tenure.testing import Lab
from tests.engine.stage import Stage, stage


async def report(a: int = 0, slot: str = "") -> str:
    """The scheduled workflow."""
    return f"{a} at {slot}"


REPORT = Workflow(report, version="2", queue="night", lease=40)
GREETING = """
name: greeting
inputs:
  name: {type: string, default: world}
steps:
  - id: say
    uses: scheduled.say
    with: {text: "${{ inputs.name }} at ${{ slot }}"}
"""


async def refused(code: str, call: Any) -> TenureError:
    with pytest.raises(TenureError) as caught:
        await call
    assert caught.value.code == code
    return caught.value


async def look(engine: Stage) -> int:
    return await Scheduler(engine.orchestrator).look()


async def go_to(engine: Stage, moment: datetime) -> None:
    """Move the clock to one second after a moment."""
    now: int = (await engine.store.read("now"))[0].now_us
    await engine.later((us(moment.timestamp()) - now) / 1e6 + 1)


async def test_a_schedule_starts_its_runs(url: str) -> None:
    async with stage(url, actor="u_ada") as engine:
        schedules = engine.schedules
        made = await schedules.create("tick", REPORT, " */10  * * * * ", input={"a": 1}, pass_slot=True)
        assert (made.cron, made.owner, made.catch_up, made.revision) == ("*/10 * * * *", "u_ada", "skip", 1)
        assert made.next_at is not None
        assert made.next_at.minute % 10 == 0
        assert await schedules.next("tick", 1) == [made.next_at]
        assert await schedules.list() == [made] == [await schedules.show("tick")]
        await go_to(engine, made.next_at)
        assert await look(engine) == 1
        [line] = await engine.runs.list()
        run = await engine.get(line.id)
        slot = f"{made.next_at:%Y-%m-%dT%H:%M:%SZ}"
        assert run.input == {"a": 1, "slot": slot}
        after = await schedules.show("tick")
        assert after.last_slot == made.next_at
        assert after.revision == 1, "a started slot is not an edit"


async def test_an_update_recomputes_the_next_slot_and_keeps_the_rest(url: str) -> None:
    async with stage(url) as engine:
        schedules = engine.schedules
        made = await schedules.create("s", REPORT, "0 0 1 1 *", zone="Asia/Tokyo", labels={"team": "a"})
        plan = [StepSpec(name="build")]
        changed = await schedules.edit("s", cron="* * * * *", workflow="build", input=[1], plan=plan)
        assert (changed.zone, changed.labels, changed.input) == ("Asia/Tokyo", {"team": "a"}, [1])
        assert changed.plan is not None
        assert changed.plan[0]["name"] == "build"
        assert (changed.revision, changed.created_at) == (2, made.created_at)
        assert changed.next_at is not None
        assert made.next_at is not None
        assert changed.next_at < made.next_at
        await refused("SCHEDULE_INVALID", schedules.edit("s", paused=True))
        await refused("SCHEDULE_INVALID", schedules.edit("s", cron="x"))
        alone = await refused("SCHEDULE_INVALID", schedules.edit("s", input=[2]))
        assert "together with `workflow`" in alone.message
        await refused("SCHEDULE_NOT_FOUND", schedules.edit("nobody", cron="* * * * *"))
        assert await schedules.show("s") == changed


async def test_slots_during_a_pause_start_no_runs_but_a_trigger_does(url: str) -> None:
    async with stage(url) as engine:
        schedules = engine.schedules
        await schedules.create("s", REPORT, "*/5 * * * *", catch_up="all", catch_up_max=100)
        paused = await schedules.pause("s")
        assert (paused.paused, paused.next_at) == (True, None)
        assert await schedules.pause("s") == paused
        await engine.later(7200)
        assert await look(engine) == 0
        runs = {await schedules.trigger("s", actor="u_bob") for _ in range(3)}
        assert len(runs) == 3, "every trigger starts its own run"
        assert (await engine.get(runs.pop())).workflow == "report"
        going = await schedules.unpause("s")
        assert await schedules.unpause("s") == going
        assert await look(engine) == 0
        assert len(await engine.runs.list()) == 3
        await schedules.delete("s")
        await refused("SCHEDULE_NOT_FOUND", schedules.delete("s"))


async def test_concurrent_updates_do_not_overwrite_each_other(url: str) -> None:
    async with stage(url) as engine:
        schedules = engine.schedules
        await schedules.create("s", REPORT, "0 * * * *")
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
async def test_an_invalid_schedule_is_refused_at_creation(
    url: str, given: dict[str, Any], place: str
) -> None:
    async with stage(url) as engine:
        plan = [StepSpec(name="build")]
        asked = {"name": "s", "workflow": "report", "cron": "0 * * * *", "plan": plan, **given}
        error = await refused("SCHEDULE_INVALID", engine.schedules.create(**asked))
        assert [detail.path for detail in error.details] == [place]
        await refused(
            "PLAN_INVALID",
            engine.schedules.create("s", "w", "0 * * * *", plan=[{"name": "a"}, {"name": "a"}]),
        )
        assert await engine.schedules.list() == []


@pytest.mark.parametrize(
    ("workflow", "how", "code", "message"),
    [
        ("nobody.has.it", {}, "SCHEDULE_INVALID", "import the module that defines it"),
        (
            REPORT,
            {"plan": [StepSpec(name="build")]},
            "SCHEDULE_INVALID",
            "workflow 'report' has a plan of its own",
        ),
        (REPORT, {"input": {"b": 1}}, "INVALID_INPUT", "b"),
        (REPORT, {"input": {"a": "x"}}, "INVALID_INPUT", "a"),
        (load_workflow(GREETING), {"input": {"nobody": 1}}, "INVALID_INPUT", "nobody"),
        (load_workflow(GREETING), {"pass_slot": True}, "SCHEDULE_INVALID", "${{ slot }}"),
    ],
)
async def test_an_input_that_does_not_match_the_workflow_is_refused_at_creation(
    tmp_path: Path, workflow: Any, how: dict[str, Any], code: str, message: str
) -> None:
    async with stage(f"sqlite:{tmp_path / 'runs.db'}") as engine:
        error = await refused(code, engine.schedules.create("s", workflow, "0 * * * *", **how))
        assert message in error.message
        assert await engine.schedules.list() == []


async def test_workers_run_scheduled_workflows() -> None:
    async with Lab(REPORT) as lab:
        made = await lab.engine.schedules.create("tick", REPORT, "0 * * * *", input={"a": 1}, pass_slot=True)
        assert (made.workflow, made.code_version, made.profile) == ("report", "2", "tenure")
        assert (made.queue, made.plan and made.plan[0]["lease_seconds"]) == ("night|flow:report@2", 40)
        await lab.jump("1h")
        (run,) = await lab.runs()
        assert await run.result() == "1 at 2026-01-05T11:00:00Z"
        by_hand = lab.run(await lab.engine.schedules.trigger("tick"), REPORT)
        assert await by_hand.result() == "1 at 2026-01-05T11:00:00Z"


async def test_a_workflow_is_scheduled_by_its_registered_name() -> None:
    @tenure.workflow(name="scheduled.by.name")
    async def by_name() -> str:
        return "found"

    async with Lab(by_name) as lab:
        await lab.schedule("tick", "scheduled.by.name", "0 * * * *")
        await lab.jump("1h")
        (run,) = await lab.runs()
        assert await run.result() == "found"


async def test_a_scheduled_workflow_file_gets_its_inputs_and_its_slot() -> None:
    texts: list[str] = []

    def say(text: str) -> None:
        texts.append(text)

    async with Lab(Registry(Tool(say, "scheduled.say"))) as lab:
        await lab.schedule("tick", load_workflow(GREETING), "0 * * * *", input={"name": "Ada"})
        await lab.jump("2h")
        assert {await run.status() for run in await lab.runs()} == {"succeeded"}
        assert texts == ["Ada at 2026-01-05T11:00:00Z", "Ada at 2026-01-05T12:00:00Z"]
        await lab.engine.schedules.trigger("tick")
        await lab.settle()
        assert texts[2:] == ["Ada at 2026-01-05T12:00:00Z"]
        await lab.engine.schedules.edit("tick", workflow=load_workflow(GREETING), input={"name": "Bob"})
        await lab.jump("1h")
        assert texts[3:] == ["Bob at 2026-01-05T13:00:00Z"]


async def test_tenants_do_not_see_each_others_schedules(url: str) -> None:
    async with stage(url) as engine, Engine(url, tenant="other", sweep=False) as other:
        await engine.schedules.create("s", REPORT, "0 * * * *")
        assert await other.schedules.list() == []
        await refused("SCHEDULE_NOT_FOUND", other.schedules.delete("s"))
        await other.schedules.create("s", "theirs", "0 * * * *", plan=[StepSpec(name="a")])
        assert (await engine.schedules.show("s")).workflow == "report"


async def test_a_read_only_engine_cannot_change_schedules(url: str) -> None:
    async with stage(url) as engine:
        await engine.schedules.create("s", REPORT, "0 * * * *")
    async with Engine(url, only_reads=True) as reader:
        assert (await reader.schedules.show("s")).name == "s"
        assert len(await reader.schedules.next("s", 3)) == 3
        for call in (
            reader.schedules.pause("s"),
            reader.schedules.delete("s"),
            reader.schedules.trigger("s"),
        ):
            await refused("STORE_READ_ONLY", call)


async def test_times_are_shown_in_utc(url: str) -> None:
    async with stage(url) as engine:
        made = await engine.schedules.create("s", REPORT, "0 12 * * *", zone="Asia/Kathmandu")
        assert made.next_at is not None
        assert (made.next_at.tzinfo, made.next_at.hour, made.next_at.minute) == (UTC, 6, 15)


async def test_a_worker_is_listed_from_its_start_to_its_end(url: str) -> None:
    async with stage(url) as engine:
        async with engine.worker(REPORT, name="w1", slots=3):
            seen = await engine.store.read("workers_seen_since", 0)
            assert [(w.name, w.slots) for w in seen] == [("w1", 3)]
            assert "night|flow:report@2" in seen[0].queues
        assert await engine.store.read("workers_seen_since", 0) == []


async def test_a_killed_worker_stays_listed_until_it_expires(url: str) -> None:
    async with stage(url) as engine:
        async with engine.worker(REPORT, name="w1") as worker:
            worker.kill()
        assert [w.name for w in await engine.store.read("workers_seen_since", 0)] == ["w1"]
