"""Planning on both stores: claims, caps, supersession, repeats, long plans, reruns and the views of a run in planning."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.kernel import commands as c
from tenure.kernel import reruns
from tenure.kernel.run_rows import PLAN_IDX, Cap
from tenure.orchestrator.batch import PendingCommand
from tenure.reads.explanation import explain_run
from tenure.reads.runs import RunReader
from tests.conformance.world import PLANNER, Place, World

DCI = "delta-ci"
LONG = 300
"""More steps than a decision on the event loop may look at."""


async def explain(w: World, run: int) -> tuple[str, str]:
    found = await explain_run(w.store, await w.run(run), await w.spec(run))
    assert found.step is None, "a plan step is not shown as a step"
    return found.reason, found.text


async def test_a_plan_step_is_claimed_from_its_queue_and_within_the_caps(place: Place) -> None:
    async with World(place, caps=[Cap("acme", "", max_concurrency=1)]) as w:
        first, second = [await w.create(profile=DCI, plan=None) for _ in range(2)]
        assert await w.claims() == [], "its queue is another one"
        (lease,) = await w.claims("planner", queues=["planners"], limit=5)
        assert (lease.run_id, lease.kind, lease.idx) == (first, "plan", PLAN_IDX)
        await w.complete(lease, plan=(c.StepSpec(name="a"),))
        work = await w.claim()
        assert await w.claims("planner", queues=["planners"]) == []
        await w.complete(work)
        (lease,) = await w.claims("planner", queues=["planners"], limit=5)
        assert lease.run_id == second
        await w.fail(lease, retryable=False)
        assert [await w.status(run) for run in (first, second)] == ["succeeded", "failed"]


async def test_a_repeated_plan_changes_nothing(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        run = await w.create(profile=DCI, plan=None)
        lease = await w.lease_planner(run)
        plan = (c.StepSpec(name="a"), c.StepSpec(name="b"))
        first = await w.complete(lease, plan=plan)
        before = await w.bundle(run)
        assert await w.through(1).complete(lease, plan=plan, seq=1) == first
        async with w.refuses("LEASE_STALE"):
            await w.complete(lease, plan=(c.StepSpec(name="other"),), seq=2)
        assert (await w.bundle(run)).steps == before.steps


def test_a_long_plan_is_decided_off_the_event_loop() -> None:
    lease: dict[str, Any] = {"run_id": 1, "idx": PLAN_IDX, "n": 1, "seq": 1}
    for steps, long in ((LONG, True), (1, False)):
        command = c.Complete(**lease, plan=tuple(c.StepSpec(name=f"s{i}") for i in range(steps)))
        assert PendingCommand(command, None, 0.0, None).long is long
    assert PendingCommand(c.Complete(**lease), None, 0.0, None).long is False


async def test_a_long_plan_is_accepted_and_a_too_long_one_fails_planning(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=None)
        steps = tuple(c.StepSpec(name=f"s{i}", needs=(f"s{i - 1}",) if i else ()) for i in range(LONG))
        await w.plan_ready(run, *steps)
        assert ((await w.run(run)).steps_total, await w.status(run)) == (LONG, "queued")
        run = await w.create(profile=DCI, plan=None)
        reply = await w.plan_ready(run, *(c.StepSpec(name=f"s{i}", needs=()) for i in range(PLAN_IDX + 1)))
        row = await w.run(run)
        assert (reply.outcome, row.status, row.steps_total) == ("PLAN_INVALID", "failed", 0)


async def test_a_newer_run_supersedes_one_that_is_being_planned(place: Place) -> None:
    async with World(place) as w:
        same: dict[str, Any] = {
            "profile": DCI,
            "concurrency_key": "ref",
            "concurrency_mode": "supersede",
            "plan": None,
        }
        old, new = await w.create(**same), await w.create(**same)
        held = await w.lease_planner(old)
        await w.plan_ready(new, "build")
        for _ in range(3):
            await w.later(1).sweep()
            await w.settle()
        assert (await w.status(old), (await w.run(old)).cancel_reason) == ("canceling", "SUPERSEDED")
        await w.cancel_ack(held)
        for _ in range(3):
            await w.later(6).sweep()
            await w.settle()
        assert (await w.status(old), await w.states(new)) == ("canceled", {"build": "ready"})


async def test_a_rerun_plans_anew_and_a_resume_keeps_the_plan(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=None, input=b"7")
        await w.plan_ready(run, "a", "b")
        await w.complete(await w.claim())
        await w.fail(await w.claim(), "COMPILE_ERROR")
        old = await w.finished(run)
        again = reruns.build_rerun(old, old, 1, c.SYSTEM)
        assert again.plan == (msgspec.structs.replace(PLANNER, lease_seconds=60.0, timeout_seconds=3600.0),)
        assert (again.input, again.rerun_of) == (b"7", run)
        resumed = reruns.build_resumed_run(old, 2, c.SYSTEM)
        assert [step.name for step in resumed.plan] == ["b"]
        failed = await w.create(profile=DCI, plan=None)
        await w.plan_failed(failed)
        for command in (
            reruns.build_rerun(await w.finished(failed), await w.finished(failed), 1, c.SYSTEM),
            reruns.build_resumed_run(await w.finished(failed), 2, c.SYSTEM),
        ):
            assert [step.kind for step in command.plan] == ["plan"]


async def test_views_hide_the_plan_step_and_why_names_the_planner(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=None)
        reason, text = await explain(w, run)
        assert reason == "planning"
        assert "planner 'planner' is ready and waits for a worker that serves the queue 'planners'" in text
        lease = await w.lease_planner(run)
        await w.beat(lease, "reading the tree")
        reason, text = await explain(w, run)
        assert text.startswith("Worker planner plans it with 'planner' since 20")
        assert "reading the tree" in text
        await w.fail(lease, "NETWORK_DOWN")
        assert "failed with NETWORK_DOWN and is tried again" in (await explain(w, run))[1]
        reader = RunReader(w.store, "acme")
        assert (await reader.steps(run), await reader.tries(run)) == ([], [])
        shown = await reader.run(run)
        assert (shown.steps_total, shown.steps_done, shown.shown) == (0, 0, "PLANNING")
        assert {edge.step for event in await reader.events(run) for edge in event.edges} == {
            None,
            c.PLAN_STEP_NAME,
        }
        await w.later(30).sweep()
        await w.plan_ready(run, "a")
        assert [step.name for step in await reader.steps(run)] == ["a"]
        assert (await reader.tries(run), (await reader.run(run)).steps_total) == ([], 1)
        await w.complete(await w.claim())
        assert ((await reader.run(run)).steps_done, await w.status(run)) == (1, "succeeded")


async def test_a_canceling_planner_is_explained(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=None)
        await w.lease_planner(run)
        await w.cancel(run)
        assert (await explain(w, run))[1].endswith("its planner was asked to stop.")
