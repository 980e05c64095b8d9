"""Regressions in plans, admission, keys and fairness, found by adversarial review."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.clock import us
from tenure.kernel import commands as c
from tenure.kernel.run_rows import Cap
from tenure.limits import KEY_LINE_POLL_SECONDS, KEY_POLL_SECONDS
from tenure.orchestrator import claims
from tests.conformance.world import Place, World, gate, step


async def test_the_requester_of_a_run_cannot_approve_in_its_child(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(by="u_alice")
        kid = w.orchestrator.new_id("default")
        await w.wait(lease, "kid", child=c.StartChild(run_id=kid, workflow="child", plan=(gate(),)))
        await w.settle()
        assert (await w.spec(kid)).requester == "u_alice"
        async with w.refuses("APPROVER_IS_REQUESTER"):
            await w.approve(kid, by="u_alice")
        await w.approve(kid, by="u_bob")
        assert await w.status(kid) == "succeeded"


async def test_the_person_who_reruns_a_run_is_its_requester(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(by="u_bob", plan=["a"])
        await w.cancel(run)
        assert (await w.spec(await w.rerun(run))).requester == "u_alice"
        assert (await w.spec(await w.resume(run))).requester == "u_alice"


@pytest.mark.parametrize("held", ["delayed", "planning", "rated"])
async def test_a_delayed_run_supersedes_older_runs_when_it_starts(place: Place, held: str) -> None:
    caps = [Cap("acme", "", max_runs_per_min=1)] if held == "rated" else []
    async with World(place, caps=caps) as w:
        same: dict[str, Any] = {
            "profile": "delta-ci",
            "concurrency_key": "ref",
            "concurrency_mode": "supersede",
            "over_rate": "delay",
        }
        old = await w.create(**same, plan=["build"])
        lease = await w.claim()
        if held == "planning":
            new = await w.create(**same, plan=None)
            await w.plan_ready(new, "build")
        else:
            later = w.now + us(5) if held == "delayed" else None
            new = await w.create(**same, plan=["build"], not_before=later)
        for _ in range(7):
            await w.later(10).sweep()
            if (await w.run(old)).cancel_at is None:
                await w.beat(lease)
        await w.later(60).sweep()
        assert (await w.run(old)).cancel_reason == "SUPERSEDED"
        assert await w.status(old) == "canceled"
        assert (await w.run(new)).admitted_at is not None
        canceled = [kind for kind in await w.kinds(old) if kind == "cancel"]
        assert len(canceled) == 1


async def test_a_delayed_run_supersedes_nothing_newer(place: Place) -> None:
    async with World(place) as w:
        same: dict[str, Any] = {"plan": ["build"], "concurrency_key": "ref"}
        delayed = await w.create(**same, concurrency_mode="supersede", not_before=w.now + us(120))
        newer = await w.create(**same)
        await w.claim()
        await w.later(121).sweep()
        assert (await w.run(newer)).cancel_at is None
        # A newer run that supersedes cancels both.
        newest = await w.create(**same, concurrency_mode="supersede")
        await w.settle()
        assert await w.status(delayed) == "canceled"
        await w.later(60).sweep()
        await w.later(60).sweep()
        assert await w.status(newer) == "canceled"
        assert (await w.run(newest)).admitted_at is not None


async def test_only_the_first_run_in_line_for_a_key_polls_often(place: Place) -> None:
    async with World(place) as w:
        holder, first, second, third = [await w.create(plan=["a"], concurrency_key="k") for _ in range(4)]
        await w.later(KEY_POLL_SECONDS + 0.1).sweep()
        due = {run: (await w.run(run)).wake_at or 0 for run in (first, second, third)}
        assert due[first] <= w.now + us(KEY_POLL_SECONDS)
        assert min(due[second], due[third]) > w.now + us(KEY_POLL_SECONDS)
        for run in (holder, first, second, third):
            await w.complete(lease := await w.claim(), b"done")
            assert lease.run_id == run
            await w.settle()  # each run is woken by the one before it, without a sweep
        # If every wake-up is lost, the poll still starts the runs.
        one, two, three = [await w.create(plan=["a"], concurrency_key="k") for _ in range(3)]
        for run in (one, two, three):
            await w.complete(lease := await w.claim(), b"done")
            assert lease.run_id == run
            await w.crash()
            await w.later(KEY_LINE_POLL_SECONDS + 0.1).sweep()
        assert [await w.status(run) for run in (one, two, three)] == ["succeeded"] * 3


async def test_a_wall_clock_deadline_may_pass_before_a_delayed_start(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a"], wall_clock=True, timeout_seconds=10, not_before=w.now + us(3600))
        await w.later(10.1).sweep()
        assert await w.status(run) == "timed_out"


async def test_tenants_at_their_caps_do_not_hide_a_tenant_with_work(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "QUEUES_WINDOW", 4)
    full = [f"a{n:02}" for n in range(22)]
    async with World(place, caps=[Cap(tenant, "", max_concurrency=1) for tenant in full]) as w:
        for tenant in full:
            await w.create(tenant=tenant, plan=[step("one"), step("two")])
        taken = [await w.claim() for _ in full]
        assert {lease.tenant for lease in taken} == set(full)
        assert await w.claims() == []
        for tenant in ("z-free", "a00-free"):
            await w.create(tenant=tenant, plan=["a"])
            assert (await w.claim()).tenant == tenant


async def test_priority_applies_across_queues(place: Place) -> None:
    async with World(place) as w:
        for name, queue, priority in (
            ("late", "q1", 0),
            ("urgent", "q2", 5),
            ("later", "q1", 0),
            ("last", "q2", -1),
        ):
            await w.create(workflow=name, priority=priority, plan=[c.StepSpec(name="a", queue=queue)])
        order = [(await w.claim(queues=("q1", "q2"))).workflow for _ in range(4)]
        assert order == ["urgent", "late", "later", "last"]


async def test_a_rerun_knows_needs_that_were_met_before(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a", step("open")])
        await w.complete(await w.claim())
        await w.add(run, step("b", "a"))
        await w.work_off(run)
        assert await w.status(run) == "succeeded"
        again = await w.rerun(run)
        assert await w.states(again) == {"a": "ready", "open": "ready", "b": "pending"}
        await w.work_off(again)
        assert await w.status(again) == "succeeded"


@pytest.mark.parametrize("done", [False, True])
async def test_steps_added_to_a_strict_sequence_come_after_the_last(place: Place, done: bool) -> None:
    async with World(place) as w:
        run = await w.create(profile="approval-runs", plan=["a", "b"])
        await w.complete(await w.claim())
        if done:
            await w.create(profile="approval-runs", plan=["other"])
        await w.add(run, "c", "d")
        assert await w.states(run) == {"a": "succeeded", "b": "ready", "c": "pending", "d": "pending"}
        lease = await w.claim()
        await w.complete(lease)
        assert await w.states(run) == {"a": "succeeded", "b": "succeeded", "c": "ready", "d": "pending"}
