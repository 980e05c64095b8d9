"""The clauses of approval runs, shown by runs under that profile."""

from __future__ import annotations

import pytest

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tests.conformance.world import Place, World, gate, step
from tests.profile_words import changes, document, run_words, step_words, table

APR = "approval-runs"
STATUSES = {"PENDING", "RUNNING", "WAITING_APPROVAL", "SUCCEEDED", "FAILED", "CANCELED"}


async def take_every_transition(w: World) -> list[int]:
    """Runs that together take every run and step transition of the tables."""
    runs = []

    async def new(*plan: str | c.StepSpec) -> int:
        runs.append(await w.create(profile=APR, plan=plan))
        return runs[-1]

    run = await new("tool", gate(), "deploy")
    await w.work_off(run)
    await w.approve(run)
    await w.work_off(run)

    run = await new("tool", gate())
    await w.work_off(run)
    await w.approve(run)

    await new("tool")
    await w.fail(await w.claim(), "FLAKE")  # PENDING again, with backoff
    await w.later(2.1).sweep()
    await w.fail(await w.claim(), "INVALID_INPUT")

    run = await new(gate(), "deploy")
    await w.approve(run)
    await w.fail(await w.claim(), "INVALID_INPUT")
    await w.reject(await new(gate(), "deploy"))

    await w.cancel(await new("tool"))
    await w.cancel(await new(gate()))
    run = await new("tool")
    lease = await w.claim()
    await w.cancel(run)
    await w.cancel_ack(lease)
    return runs


@pytest.mark.clause("APR-01", "APR-02", "APR-03")
async def test_runs_and_steps_take_exactly_the_transitions_of_the_tables(place: Place) -> None:
    async with World(place) as w:
        runs = await take_every_transition(w)
        lives = [run_words(APR, await w.events(run)) for run in runs]
        step_lives = [
            step_words(APR, await w.events(run), row.idx) for run in runs for row in await w.steps(run)
        ]
    assert set().union(*map(changes, lives)) == document(APR, "run")
    assert {word for life in lives for word in life} == STATUSES
    shown = set().union(*map(changes, step_lives))
    assert shown >= document(APR, "step") - {("RUNNING", "RUNNING")}  # the step's reclaim is tested below
    assert shown <= table(APR, "step")
    assert {word for life in step_lives for word in life} == STATUSES


@pytest.mark.clause("APR-02")
async def test_the_run_itself_waits_while_its_gate_is_open(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=APR, plan=["tool", gate(), "deploy"])
        await w.work_off(run)
        assert run_words(APR, await w.events(run)) == ["PENDING", "RUNNING", "WAITING_APPROVAL"]
        assert await w.states(run) == {"tool": "succeeded", "gate": "waiting_approval", "deploy": "pending"}


@pytest.mark.clause("APR-03")
async def test_a_claim_increments_attempts_and_success_stores_output_and_cost(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=APR, plan=["tool"])
        assert (await w.step(run, "tool")).attempt == 0
        lease = await w.claim()
        assert (await w.step(run, "tool")).attempt == 1
        await w.fail(lease, "FLAKE")
        await w.later(2.1).sweep()
        lease = await w.claim()
        assert ((await w.step(run, "tool")).attempt, (await w.step(run, "tool")).charged) == (2, 2)
        await w.complete(lease, b"report", cost='{"usd":0.03}')
        row = await w.step(run, "tool")
        assert await w.body(run, row.output_ref) == b"report"
        assert [attempt.cost for attempt in await w.attempts(run, "tool")] == [None, '{"usd":0.03}']


@pytest.mark.clause("APR-05")
async def test_a_worker_never_gets_an_approval_step(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=APR, plan=[gate(), "deploy"])
        assert await w.claims("bob", limit=10) == []
        async with w.refuses("RUN_INVALID_TRANSITION"):
            await w.do(c.ClaimStep(run_id=run, idx=0, by=c.Claimant("bob")))
        for message in (c.Complete, c.Fail, c.Heartbeat):
            async with w.refuses("LEASE_NOT_FOUND"):
                await w.do(message(run_id=run, idx=0, n=1, seq=1))
        await w.approve(run)  # only an approval moves the step
        assert await w.states(run) == {"gate": "succeeded", "deploy": "ready"}
        assert await w.attempts(run, "gate") == []


@pytest.mark.clause("APR-06")
async def test_steps_are_created_in_order_and_claimed_after_all_earlier_ones(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=APR, plan=["one", "two", "three"])
        assert [(row.idx, row.name) for row in await w.steps(run)] == [(0, "one"), (1, "two"), (2, "three")]
        for name in ("one", "two", "three"):
            lease, *others = await w.claims("bob", limit=10)
            assert (lease.name, others) == (name, [])
            async with w.refuses("RUN_INVALID_TRANSITION"):
                await w.do(c.ClaimStep(run_id=run, idx=2, by=c.Claimant("carol")))
            await w.complete(lease)
        assert await w.status(run) == "succeeded"


@pytest.mark.clause("APR-06")
@pytest.mark.parametrize("given", [step("two"), step("two", "one"), c.StepSpec(name="two", required=False)])
async def test_a_plan_that_is_not_strictly_sequential_is_refused(place: Place, given: c.StepSpec) -> None:
    async with World(place) as w:
        with pytest.raises(TenureError, match="PLAN_INVALID"):
            await w.create(profile=APR, plan=["one", given])
        assert await w.run_ids() == []


@pytest.mark.clause("APR-03", "APR-07")
async def test_a_stale_step_is_reclaimed_and_its_former_worker_cannot_finish_it(place: Place) -> None:
    async with World(place) as w:  # reclaim_after is the lease length: 300 seconds
        run = await w.create(profile=APR, plan=["tool"])
        former = await w.claim("bob")
        await w.at("10:04:59").sweep()
        assert await w.claims("carol") == []
        await w.at("10:05:01").sweep()
        holder = await w.claim("carol")
        assert (holder.run_id, holder.name, holder.n) == (former.run_id, "tool", 2)
        assert step_words(APR, await w.events(run))[-2:] == ["PENDING", "RUNNING"]
        for late in (w.complete, w.fail, w.beat, w.release):
            async with w.refuses("LEASE_STALE"):
                await late(former)
        await w.complete(holder, b"by carol")
        row = await w.step(run, "tool")
        assert (row.state, await w.body(run, row.output_ref)) == ("succeeded", b"by carol")


@pytest.mark.clause("APR-07")
async def test_a_long_step_with_heartbeats_is_not_reclaimed(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=APR, plan=["tool"])
        lease = await w.claim("bob")
        for _ in range(40):  # forty minutes, eight times the lease
            await w.later(60).beat(lease)
            await w.sweep()
        assert await w.claims("carol") == []
        await w.complete(lease)
        assert await w.status(run) == "succeeded"


@pytest.mark.clause("APR-08", "APR-09")
async def test_backoff_doubles_and_attempts_past_the_maximum_fail_step_and_run(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=APR, plan=["tool", "deploy"])
        for attempts in (1, 2, 3):
            await w.fail(await w.claim(), "FLAKE")
            row = await w.step(run, "tool")
            ended = (await w.attempts(run, "tool"))[-1].ended_at
            assert ended is not None
            assert row.eligible_at is not None
            assert row.eligible_at - ended == us(2**attempts * 1.0)  # now + 2^attempts * base_delay
            assert (row.state, await w.status(run)) == ("retry_wait", "retry_wait")
            await w.later(2**attempts - 0.5).sweep()
            assert await w.claims() == []  # not yet
            await w.later(0.6).sweep()
        await w.fail(await w.claim(), "FLAKE")
        assert await w.states(run) == {"tool": "failed", "deploy": "skipped"}
        assert ((await w.run(run)).status, (await w.run(run)).reason) == ("failed", "FLAKE")
        assert run_words(APR, await w.events(run))[-1] == "FAILED"


@pytest.mark.clause("APR-12")
async def test_approving_the_last_gate_completes_the_run(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=APR, plan=["tool", gate("first"), gate("last")])
        await w.work_off(run)
        await w.approve(run)
        assert await w.status(run) == "waiting_approval"  # the other gate is open now
        await w.approve(run)
        assert run_words(APR, await w.events(run)) == ["PENDING", "RUNNING", "WAITING_APPROVAL", "SUCCEEDED"]


@pytest.mark.clause("APR-12")
async def test_a_failure_after_an_approval_fails_the_run(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=APR, plan=[gate(), "deploy"])
        await w.approve(run)
        await w.fail(await w.claim(), "INVALID_INPUT")
        assert run_words(APR, await w.events(run)) == [
            "PENDING",
            "RUNNING",
            "WAITING_APPROVAL",
            "RUNNING",
            "FAILED",
        ]


@pytest.mark.clause("APR-13")
@pytest.mark.parametrize("where", ["PENDING", "RUNNING", "WAITING_APPROVAL"])
async def test_a_cancel_cancels_the_run_and_all_of_its_open_steps(place: Place, where: str) -> None:
    async with World(place) as w:
        plan = [gate(), "tool", "deploy"] if where == "WAITING_APPROVAL" else ["tool", gate(), "deploy"]
        run = await w.create(profile=APR, plan=plan)
        lease = await w.claim() if where == "RUNNING" else None
        assert run_words(APR, await w.events(run))[-1] == where
        await w.cancel(run)
        if lease is not None:
            await w.cancel_ack(lease)
        events = await w.events(run)
        assert run_words(APR, events)[-2:] == [where, "CANCELED"]
        assert [step_words(APR, events, idx)[-1] for idx in range(3)] == ["CANCELED"] * 3
        assert await w.claims("bob", limit=10) == []
        asked = ["canceled"] if where == "WAITING_APPROVAL" else []
        assert [row.status for row in await w.approvals(run)] == asked
