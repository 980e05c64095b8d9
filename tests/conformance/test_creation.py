"""Creating runs: plans, idempotency keys, delays, and concurrency keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.run_rows import Cap
from tenure.limits import PAYLOAD_BYTES_MAX
from tests.conformance.world import Place, World, gate, step


async def test_a_static_plan_passes_through_planning_in_the_same_commit(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["one", "two"], input=b'{"ref":"main"}')
        assert await w.kinds(run) == ["create"]
        assert await w.states(run) == {"one": "ready", "two": "pending"}
        lease = await w.claim()
        assert (lease.name, lease.input) == ("one", b'{"ref":"main"}')


async def test_a_code_first_run_is_leased_to_its_own_process_in_the_creating_commit(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin("bob", input=b"x")
        assert (lease.kind, lease.n, lease.input) == ("body", 1, b"x")
        assert await w.kinds(lease.run_id) == ["create"]
        assert await w.status(lease.run_id) == "running"
        assert await w.claims("carol") == []


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (["one", "one"], "two steps named 'one'"),
        ([step("one", "two"), step("two", "one")], "form a cycle"),
        ([step("one", "one")], "form a cycle"),
        (["one", step("two", "nobody")], "no step named 'nobody'"),
        ([c.StepSpec(name="")], "1 to 200 printable characters"),
        ([c.StepSpec(name="x" * 201)], "1 to 200 printable characters"),
        ([c.StepSpec(name="one", lease_seconds=0.5)], "must be 1 to 86400"),
        ([c.StepSpec(name="one", timeout_seconds=0)], "must be over 0"),
        ([c.StepSpec(name="one", retries=-1)], "must be 0 to 1000"),
        ([gate(people=0)], "at least 1"),
    ],
)
async def test_an_invalid_plan_is_refused_as_a_whole(place: Place, plan: Any, problem: str) -> None:
    async with World(place) as w:
        with pytest.raises(TenureError, match="PLAN_INVALID") as refusal:
            await w.create(plan=plan)
        assert problem in str(refusal.value)
        assert await w.run_ids() == []
        # A planner's plan is checked the same way. It is the planner's failure, except that it may be empty.
        run = await w.create(plan=None)
        reply = await w.plan_ready(run, *plan)
        if not plan:
            assert (reply.state, await w.status(run)) == ("ok", "succeeded")
            return
        assert (reply.state, reply.outcome) == ("refused", "PLAN_INVALID")
        row = await w.run(run)
        assert (row.status, row.reason) == ("failed", "PLAN_FAILED")
        error = await w.body(run, row.error_ref)
        assert error is not None
        assert error.startswith(b"PLAN_INVALID: ")
        assert problem.encode() in error


@pytest.mark.parametrize(
    "request_", [{"tenant": ""}, {"workflow": "x" * 201}, {"labels": "[]"}, {"timeout_seconds": 0.0}]
)
async def test_a_malformed_request_creates_nothing(place: Place, request_: dict[str, Any]) -> None:
    async with World(place) as w:
        with pytest.raises(TenureError, match="INVALID_INPUT") as refusal:
            await w.create(**request_)
        assert [detail.path for detail in refusal.value.details] == list(request_)
        with pytest.raises(TenureError, match="PROFILE_NOT_FOUND"):
            await w.create(profile="nobody's")
        with pytest.raises(TenureError, match="PAYLOAD_TOO_LARGE"):
            await w.create(input=bytes(PAYLOAD_BYTES_MAX + 1))
        assert await w.run_ids() == []
        assert await w.create(input=bytes(PAYLOAD_BYTES_MAX))


async def test_added_steps_may_need_existing_steps(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=[step("one"), step("two")])
        one, two = await w.claims(limit=2)
        await w.complete(one)
        assert await w.add(run, step("three", "one"), step("four", "two", "three"), step("five")) == {
            "steps": 5
        }
        assert await w.states(run) == {
            "one": "succeeded", "two": "running", "three": "ready", "four": "pending", "five": "ready",
        }  # fmt: skip
        for again in ("one", "five"):
            async with w.refuses("PLAN_INVALID"):
                await w.add(run, step(again))
        await w.complete(two)
        for _ in range(3):
            await w.complete(await w.claim())
        assert await w.status(run) == "succeeded"
        assert (await w.run(run)).steps_done == 5


async def test_concurrent_requests_with_one_key_create_one_run(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        answers = await asyncio.gather(
            *(
                w.through(n % 2).created(plan=["a"], source="github_webhook", idempotency_key="delivery-1")
                for n in range(50)
            )
        )
        assert len({answer.run_id for answer in answers}) == 1
        assert sum(not answer.again for answer in answers) == 1
        assert len(await w.run_ids()) == 1
        # The key belongs to a tenant and a source; for others it is a different key.
        others = [
            await w.create(plan=["a"], source="api", idempotency_key="delivery-1"),
            await w.create(plan=["a"], source="github_webhook", idempotency_key="delivery-1", tenant="other"),
        ]
        assert len({answers[0].run_id, *others}) == 3


async def test_a_run_id_that_is_taken_is_replaced(place: Place) -> None:
    async with World(place) as w:
        first = await w.create(plan=["a"])
        async with w.refuses("RUN_ID_TAKEN"):
            await w.do(w.request(plan=["a"], run_id=first))
        second = await w.create(plan=["a"], run_id=first)
        assert second != first


# ------------------------------------------------------------------------------------------- admission


async def test_a_delayed_start_waits_for_its_time(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a"], not_before=w.now + us(60))
        assert (await w.status(run), await w.claims()) == ("queued", [])
        await w.at("10:00:58").sweep()
        assert await w.claims() == []
        await w.at("10:01:01").sweep()
        assert (await w.claim()).run_id == run
        assert (await w.run(run)).admitted_at is not None


async def test_a_delayed_run_can_be_canceled_and_times_out_by_the_wall_clock(place: Place) -> None:
    async with World(place) as w:
        early = await w.create(plan=["a"], not_before=w.now + us(600))
        assert (await w.cancel(early))["status"] == "canceled"
        late = await w.create(plan=["a"], not_before=w.now + us(600), timeout_seconds=60, wall_clock=True)
        await w.at("10:11:00").sweep()
        row = await w.run(late)
        assert (row.status, row.reason) == ("timed_out", "RUN_TIMED_OUT")
        assert await w.claims() == []


async def test_a_delayed_run_does_not_block_its_concurrency_key(place: Place) -> None:
    async with World(place) as w:
        delayed = await w.create(plan=["a"], concurrency_key="k", not_before=w.now + us(3600))
        now = await w.create(plan=["a"], concurrency_key="k")
        lease = await w.claim()
        assert lease.run_id == now
        await w.at("10:00:10").complete(lease)
        await w.settle()
        assert (await w.run(delayed)).admitted_at is None
        await w.at("11:00:01").sweep()
        assert (await w.claim()).run_id == delayed


async def test_a_concurrency_key_admits_one_run_at_a_time(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        runs = await asyncio.gather(
            *(w.through(n % 2).create(plan=["a"], concurrency_key="k") for n in range(8))
        )
        other = await w.create(plan=["a"], concurrency_key="k", tenant="other")
        done: list[int] = []
        while leases := await w.claims(limit=20):
            mine = [lease for lease in leases if lease.run_id != other]
            assert len(mine) <= 1
            for lease in leases:
                await w.complete(lease)
                done.append(lease.run_id)
            await w.settle()
            await w.later(6).sweep()
        assert sorted(done) == sorted([*runs, other])


async def test_a_planned_run_is_admitted_under_its_tenants_lock(place: Place) -> None:
    async with World(place, caps=[Cap("acme", "", max_runs_per_min=1)]) as w:
        first = await w.create(plan=None)
        second = await w.create(plan=None, concurrency_key="k")
        for run in (first, second):
            await w.plan_ready(run, "a")
        assert await w.claims(limit=5) == []
        await w.sweep()
        (lease,) = await w.claims(limit=5)
        await w.complete(lease)
        await w.later(61).sweep()
        (lease,) = await w.claims(limit=5)
        await w.complete(lease)
        assert [await w.status(run) for run in (first, second)] == ["succeeded"] * 2


# -------------------------------------------------------------------------------------- resume and rerun


async def test_resuming_a_failed_run_reuses_its_resumable_checkpoints(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="git-with-intent", input=b"in")
        await w.checkpoint(lease, "clone", output=b"at /tmp", arguments=b"h1")
        await w.checkpoint(lease, "format", output=b"ok", resumable=False)
        async with w.refuses("RUN_INVALID_TRANSITION"):
            await w.resume(lease.run_id)
        await w.fail(lease, "TESTS_FAILED")
        resumed = await w.resume(lease.run_id)
        spec = await w.spec(resumed)
        assert (spec.resumed_from, spec.resume_count) == (lease.run_id, 1)
        (kept,) = await w.read("checkpoints_of", resumed)
        assert (kept.name, kept.arguments, await w.body(resumed, kept.output_ref)) == (
            "clone",
            b"h1",
            b"at /tmp",
        )
        again = await w.claim()
        assert (again.run_id, again.input, again.recorded) == (resumed, b"in", True)
        await w.complete(again)
        async with w.refuses("RUN_TERMINAL_STATE"):  # a succeeded run has nothing to resume
            await w.resume(resumed)


async def test_a_step_knows_whether_it_has_checkpoints_not_how_many(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="git-with-intent")
        assert (lease.recorded, (await w.step(lease.run_id)).recorded) == (False, False)
        for name in ("clone", "scan", "scan#2"):
            await w.checkpoint(lease, name, output=b"ok")
        assert (await w.step(lease.run_id)).recorded is True
        await w.fail(lease, "TESTS_FAILED")
        resumed = await w.resume(lease.run_id)  # the new run has all three checkpoints
        await w.crash()
        assert (await w.step(resumed)).recorded is True
        assert (await w.claim()).recorded is True
        bodies = b"".join(event.body for event in (await w.bundle(resumed)).events)
        assert bodies.count(b'"recorded":true') == 1
        assert (await w.run(resumed)).checkpoints == 3, "the run counts its checkpoints"


async def test_resuming_a_declared_run_skips_succeeded_steps(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["build", gate(), "deploy"], profile="delta-ci")
        await w.complete(await w.claim())
        await w.approve(run)
        await w.fail(await w.claim(), "COMPILE_ERROR")
        resumed = await w.resume(run)
        assert await w.states(resumed) == {"deploy": "ready"}
        assert (await w.step(resumed, "deploy")).idempotency_key == (
            await w.step(run, "deploy")
        ).idempotency_key
        fresh = await w.rerun(run)
        assert await w.states(fresh) == {"build": "ready", "gate": "pending", "deploy": "pending"}
        assert (await w.step(fresh, "deploy")).idempotency_key != (
            await w.step(run, "deploy")
        ).idempotency_key
