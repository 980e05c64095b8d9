"""The clauses of governed runtime, shown by runs under that profile."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease
from tenure.kernel.run_rows import Cap
from tests.conformance.world import Place, World, gate, step
from tests.profile_words import changes, document, run_words, step_words, table

GOV = "governed-runtime"


@pytest.mark.clause("GOV-01")
async def test_a_run_is_a_workflow_version_applied_to_a_trigger(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(
            profile=GOV,
            plan=["enrich"],
            tenant="acme",
            workspace="it-ops",
            workflow="triage",
            code_version="7f3a",
            trigger=c.Trigger("webhook", "INC0012345", None),
            source="servicenow",
            idempotency_key="INC0012345",
        )
        row, spec = await w.run(run), await w.spec(run)
        assert (row.id, row.tenant, row.workspace, row.workflow, row.code_version, row.status) == (
            run, "acme", "it-ops", "triage", "7f3a", "queued",
        )  # fmt: skip
        assert (spec.trigger_type, spec.trigger_ref) == ("webhook", "INC0012345")
        # The trigger deduplicates: the same trigger again gives the same run.
        again = await w.created(
            profile=GOV, plan=["enrich"], workflow="triage", source="servicenow", idempotency_key="INC0012345"
        )
        assert (again.run_id, again.again) == (run, True)
        assert await w.run_ids() == [run]


@pytest.mark.clause("GOV-02")
async def test_a_step_has_its_id_index_tool_key_and_lease(place: Place) -> None:
    async with World(place) as w:
        plan = [
            c.StepSpec(name="lookup", tool="servicenow.get"),
            c.StepSpec(
                name="assign", tool="servicenow.update", idempotency_key="sn:incident:update:x:9:ab12"
            ),
        ]
        run = await w.create(profile=GOV, plan=plan)
        first, second = await w.steps(run)
        assert (first.name, first.idx, first.tool) == ("lookup", 0, "servicenow.get")
        assert (second.name, second.idx, second.idempotency_key) == (
            "assign",
            1,
            "sn:incident:update:x:9:ab12",
        )
        # A default key is built from run and step: the same for all attempts, different in another run.
        keys = set()
        for _ in range(2):
            lease = await w.claim("bob")
            keys.add(lease.idempotency_key)
            (attempt,) = [row for row in await w.attempts(run) if row.ended_at is None]
            assert attempt.owner == "bob"
            assert attempt.expires_at - attempt.granted_at == us(60)
            await w.release(lease)
        assert keys == {first.idempotency_key}
        assert first.idempotency_key.endswith("/lookup")
        other = await w.create(profile=GOV, plan=plan)
        assert (await w.step(other, "lookup")).idempotency_key != first.idempotency_key


@pytest.mark.clause("GOV-02")
async def test_an_effect_that_is_not_idempotent_does_not_start_twice(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile=GOV)
        await w.checkpoint(lease, "post to Slack", state="started", idempotent=False)
        await w.later(61).sweep()
        row = await w.run(lease.run_id)
        assert (row.status, row.reason) == ("failed", "RUN_RESUME_FAILED")
        assert await w.claims("carol") == []


async def take_every_transition(w: World) -> list[int]:
    """Runs that together take every transition of 2.1 and 2.2."""
    runs = []

    async def new(*plan: str | c.StepSpec) -> int:
        runs.append(await w.create(profile=GOV, plan=plan))
        return runs[-1]

    async def ask(lease: Lease) -> None:
        reply = await w.wait(lease, "may I?", approval=c.ApprovalSpec(action="assign"), fatal=True)
        assert reply.no is not None
        await w.suspend(lease, reply.no)

    run = await new("assign", "notify")
    await ask(await w.claim())
    await w.approve(run)
    await w.work_off(run)

    run = await new("assign")
    await ask(await w.claim())
    await w.reject(run)

    await new("assign")
    await w.fail(await w.claim(), "HTTP_503")
    await w.later(5.1).sweep()
    await w.fail(await w.claim(), "POLICY_DENIED")

    await w.cancel(await new("assign"))
    run = await new("assign")
    lease = await w.claim()
    await w.cancel(run)
    await w.cancel_ack(lease)
    return runs


@pytest.mark.clause("GOV-05", "GOV-06")
async def test_runs_and_steps_take_the_transitions_of_2_1_and_2_2(place: Place) -> None:
    async with World(place) as w:
        runs = await take_every_transition(w)
        lives = [run_words(GOV, await w.events(run)) for run in runs]
        steps = [step_words(GOV, await w.events(run), row.idx) for run in runs for row in await w.steps(run)]
    shown = set().union(*map(changes, lives))
    assert document(GOV, "run") <= shown <= table(GOV, "run")
    assert {word for life in lives for word in life} == {
        "queued", "running", "waiting_approval", "succeeded", "failed_retryable", "failed_terminal", "canceled",
    }  # fmt: skip
    shown = set().union(*map(changes, steps))
    assert document(GOV, "step") <= shown <= table(GOV, "step")
    assert {word for life in steps for word in life} == {
        "ready", "running", "succeeded", "waiting_approval", "failed_retryable", "failed_terminal", "canceled",
    }  # fmt: skip


@pytest.mark.clause("GOV-07")
async def test_a_run_succeeds_exactly_when_every_step_has_succeeded(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=GOV, plan=["one", step("two"), gate("three"), step("four", "three")])
        while await w.status(run) not in ("succeeded", "failed"):
            states = set((await w.states(run)).values())
            assert states != {"succeeded"}
            leases = await w.claims()
            if leases:
                await w.complete(leases[0])
            else:
                await w.approve(run)
        assert await w.status(run) == "succeeded"
        assert set((await w.states(run)).values()) == {"succeeded"}

        with pytest.raises(TenureError, match="PLAN_INVALID"):  # this profile has no optional steps
            await w.create(profile=GOV, plan=["one", c.StepSpec(name="two", required=False)])

        run = await w.create(profile=GOV, plan=[step("one"), step("two")])
        one, two = await w.claims(limit=2)
        await w.complete(one)
        await w.fail(two, "INVALID_PAYLOAD")
        assert await w.status(run) == "failed"


# ---------------------------------------------------------------------------------------------- leasing


async def test_one_of_many_workers_wins_the_race_for_a_step(place: Place) -> None:
    async with World(place, orchestrators=4) as w:
        for _ in range(10):
            run = await w.create(profile=GOV, plan=["assign"])
            claims = await asyncio.gather(
                *(w.through(n % 4).claims(f"worker-{n}") for n in range(12)), return_exceptions=True
            )
            assert not [claim for claim in claims if isinstance(claim, BaseException)]
            (lease,) = [lease for claim in claims if not isinstance(claim, BaseException) for lease in claim]
            (attempt,) = await w.attempts(run)
            assert (attempt.n, attempt.lease) == (1, "active")
            # The other workers have no lease, and their messages are refused.
            async with w.refuses("LEASE_NOT_FOUND"):
                await w.do(c.Complete(run_id=run, idx=0, n=2, seq=1))
            await w.complete(lease)


async def test_a_leased_step_is_not_claimed_again_until_its_lease_ends(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=GOV, plan=["assign"])
        lease = await w.claim("bob")
        assert await w.claims("carol") == []
        async with w.refuses("RUN_INVALID_TRANSITION"):
            await w.do(c.ClaimStep(run_id=run, idx=0, by=c.Claimant("carol")))
        w.later(61)
        assert await w.claims("carol") == []  # expired, but not yet swept: the step is not leased twice
        async with w.refuses("LEASE_STALE"):
            await w.complete(lease)
        await w.sweep()
        assert (await w.claim("carol")).n == 2


@pytest.mark.clause("GOV-10")
async def test_heartbeats_extend_the_lease_of_long_work_up_to_its_timeout(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=GOV, plan=[c.StepSpec(name="assign", timeout_seconds=200)])
        lease = await w.claim()
        ends = [lease.expires_at]
        for _ in range(6):
            reply = await w.later(30).beat(lease, progress="still at it")
            await w.sweep()
            assert reply.expires_at is not None
            ends.append(reply.expires_at)
        assert all(a <= b for a, b in pairwise(ends))
        (attempt,) = await w.attempts(run)
        assert (attempt.state, attempt.progress, attempt.expires_at) == ("running", "still at it", ends[-1])
        assert attempt.timeout_at == attempt.granted_at + us(200)
        assert ends[-1] == attempt.timeout_at  # never after the job's own timeout
        await w.complete(lease)
        assert await w.status(run) == "succeeded"


# ------------------------------------------------------------------------------------ caps and fairness


@pytest.mark.clause("GOV-12")
async def test_max_concurrency_is_enforced_and_a_workflow_may_lower_it(place: Place) -> None:
    caps = [Cap("acme", "", max_concurrency=3), Cap("acme", "wf:slow", max_concurrency=1)]
    async with World(place, orchestrators=2, caps=caps) as w:
        for _ in range(4):
            await w.create(profile=GOV, plan=[step(f"s{n}") for n in range(4)], workflow="slow")
            await w.create(profile=GOV, plan=[step(f"s{n}") for n in range(4)], workflow="quick")
        held: list[Lease] = []
        while more := await w.claims("bob", limit=50):
            held += more
        assert sorted(lease.workflow for lease in held) == ["quick", "quick", "slow"]
        assert await w.through(1).claims("carol", limit=50) == []
        # Each completion frees exactly one slot of its own cap.
        done = 0
        while held:
            lease = held.pop(0)
            await w.complete(lease)
            done += 1
            held += await w.through(done % 2).claims("carol", limit=50)
            live = [row for row in await w.read("live_usage") if row.tenant == "acme"]
            assert sum(row.leases for row in live) <= 3
            assert all(row.leases <= 1 for row in live if row.workflow == "slow")
        assert done == 32


@pytest.mark.clause("GOV-12", "GOV-13")
async def test_a_workflow_at_its_cap_blocks_no_other_work(place: Place) -> None:
    async with World(place, caps=[Cap("a", "wf:slow", max_concurrency=1)]) as w:
        await w.create(tenant="a", workflow="slow", plan=[step(f"s{n}") for n in range(20)])
        quick = await w.later(1).create(tenant="a", workflow="quick", plan=["only"])
        await w.create(tenant="b", plan=[step(f"s{n}") for n in range(3)])
        assert (await w.claim()).workflow == "slow"
        served = [await w.claim() for _ in range(4)]  # one at a time
        assert sorted(lease.tenant for lease in served) == ["a", "b", "b", "b"]
        assert quick in {lease.run_id for lease in served}
        assert await w.claims() == []


@pytest.mark.clause("GOV-12")
async def test_a_lease_granted_at_creation_counts_against_the_cap(place: Place) -> None:
    async with World(place, caps=[Cap("acme", "", max_concurrency=1)]) as w:
        for _ in range(3):
            created = await w.created(profile=GOV, plan=["a"], eager=c.Claimant("bob"))
            assert created.lease is None  # a capped tenant's work goes through the claim, which counts it
        assert len(await w.claims("bob", limit=10)) == 1


@pytest.mark.clause("GOV-12")
async def test_max_runs_per_min_refuses_an_api_call_and_delays_the_rest(place: Place) -> None:
    async with World(place, orchestrators=2, caps=[Cap("acme", "", max_runs_per_min=2)]) as w:
        for n in range(2):
            await w.through(n).create(profile=GOV, plan=["a"])
        async with w.refuses("TENANT_RATE_LIMITED") as refusal:
            await w.create(profile=GOV, plan=["a"])
        assert refusal.value.retryable
        assert us(50) < refusal.value.data["retry_at"] - w.now <= us(60)
        assert 50 < refusal.value.data["retry_after"] <= 60
        # A webhook is not lost: its run is accepted and starts within the rate.
        later = [
            await w.through(n % 2).create(
                profile=GOV, plan=["a"], trigger=c.Trigger("webhook"), over_rate="delay"
            )
            for n in range(3)
        ]
        await w.sweep()
        assert [(await w.run(run)).admitted_at for run in later] == [None] * 3
        assert await w.status(later[0]) == "queued"
        await w.at("10:01:01").sweep()
        begun = [(await w.run(run)).admitted_at is not None for run in later]
        assert sum(begun) == 2
        await w.at("10:02:03").sweep()
        assert all([(await w.run(run)).admitted_at for run in later])


@pytest.mark.clause("GOV-12")
async def test_a_workflow_may_lower_max_runs_per_min(place: Place) -> None:
    caps = [Cap("acme", "", max_runs_per_min=5), Cap("acme", "wf:nightly", max_runs_per_min=1)]
    async with World(place, caps=caps) as w:
        await w.create(profile=GOV, plan=["a"], workflow="nightly")
        async with w.refuses("TENANT_RATE_LIMITED"):
            await w.create(profile=GOV, plan=["a"], workflow="nightly")
        for _ in range(4):
            await w.create(profile=GOV, plan=["a"], workflow="other")
        async with w.refuses("TENANT_RATE_LIMITED"):  # five in all
            await w.create(profile=GOV, plan=["a"], workflow="other")
        await w.create(profile=GOV, plan=["a"], tenant="other", workflow="nightly")


@pytest.mark.clause("GOV-13")
async def test_tenants_are_served_by_weight_and_none_starves(place: Place) -> None:
    caps = [Cap("big", "", weight=3)]
    async with World(place, caps=caps) as w:
        await w.create(profile=GOV, tenant="big", plan=[step(f"s{n}") for n in range(60)])
        await w.create(profile=GOV, tenant="small", plan=[step(f"s{n}") for n in range(60)])
        served = [lease.tenant for _ in range(10) for lease in await w.claims(limit=4)]
        assert (served.count("big"), served.count("small")) == (30, 10)
        # A tenant that arrives late with a single step is served in the next round.
        await w.create(profile=GOV, tenant="tiny", plan=["only"])
        assert "tiny" in [lease.tenant for lease in await w.claims(limit=8)]


@pytest.mark.clause("GOV-13")
async def test_a_tenants_workspaces_take_turns_within_its_share(place: Place) -> None:
    async with World(place) as w:
        for n in range(3):
            await w.create(
                profile=GOV, tenant="a", workspace=f"w{n}", plan=[step(f"s{i}") for i in range(30)]
            )
        await w.create(profile=GOV, tenant="b", plan=[step(f"s{i}") for i in range(30)])
        served = [lease for _ in range(6) for lease in await w.claims(limit=6)]
        assert [lease.tenant for lease in served].count("b") in (17, 18, 19)
        runs = {lease.run_id for lease in served if lease.tenant == "a"}
        counts = [sum(lease.run_id == run for lease in served) for run in runs]
        assert len(counts) == 3
        assert max(counts) - min(counts) <= 1


@pytest.mark.clause("GOV-13")
async def test_within_a_tenant_priority_comes_before_age(place: Place) -> None:
    async with World(place) as w:
        old = await w.create(profile=GOV, plan=["a"])
        young = await w.later(1).create(profile=GOV, plan=["a"])
        urgent = await w.later(1).create(profile=GOV, plan=["a"], priority=5)
        assert [(await w.claim()).run_id for _ in range(3)] == [urgent, old, young]


# ------------------------------------------------------------------------------------ retry and refusal


@pytest.mark.clause("GOV-19")
async def test_backoff_grows_5_30_120_600_with_jitter_and_is_stored(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=GOV, plan=["assign"])
        for n, nominal in enumerate((5, 30, 120, 600), start=1):
            w.dice.number = 0.5  # half of the jitter of 20 %
            await w.fail(await w.claim(), "HTTP_503")
            row, ended = await w.step(run, "assign"), (await w.attempts(run))[-1].ended_at
            assert ended is not None
            assert row.eligible_at == ended + us(nominal * 1.1)
            assert (row.attempt, row.last_error, row.state) == (n, "HTTP_503", "retry_wait")
            await w.later(nominal * 1.1 - 1).sweep()
            assert await w.claims() == []
            await w.later(1.1).sweep()
        await w.fail(await w.claim(), "HTTP_503")
        row = await w.step(run, "assign")
        assert (row.state, row.attempt, row.last_error, row.eligible_at) == ("failed", 5, "HTTP_503", None)


@pytest.mark.clause("GOV-19")
async def test_a_backoff_never_ends_after_the_deadline(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=GOV, plan=["assign"], timeout_seconds=20)
        await w.fail(await w.claim(), "HTTP_503")
        await w.later(5.1).sweep()
        await w.fail(await w.claim(), "HTTP_503")  # the next backoff would be 30 s, but 15 s are left
        row = await w.step(run, "assign")
        assert row.eligible_at == (await w.run(run)).deadline_at
        await w.later(15).sweep()
        assert (await w.run(run)).reason == "RUN_TIMED_OUT"


@pytest.mark.clause("GOV-23")
@pytest.mark.parametrize("end", ["rejected", "expired"])
@pytest.mark.parametrize("kind", ["gate", "suspension"])
async def test_a_rejected_or_expired_approval_ends_the_step_and_the_run(
    place: Place, end: str, kind: str
) -> None:
    async with World(place) as w:
        if kind == "gate":
            run = await w.create(profile=GOV, plan=[gate("assign"), "notify"])
        else:
            run = await w.create(profile=GOV, plan=["assign", "notify"])
            lease = await w.claim()
            reply = await w.wait(lease, "may I?", approval=c.ApprovalSpec(), fatal=True)
            assert reply.no is not None
            await w.suspend(lease, reply.no)
        if end == "rejected":
            await w.reject(run)
        else:
            await w.later(86_399).sweep()
            assert await w.status(run) == "waiting_approval"
            await w.later(2).sweep()
        events = await w.events(run)
        assert run_words(GOV, events)[-2:] == ["waiting_approval", "failed_terminal"]
        assert step_words(GOV, events)[-2:] == ["waiting_approval", "failed_terminal"]
        row = await w.step(run, "assign")
        assert row.reason == ("APPROVAL_REJECTED" if end == "rejected" else "APPROVAL_EXPIRED")
        assert (await w.run(run)).reason == row.reason
        assert await w.states(run) == {"assign": "failed", "notify": "skipped"}
        async with w.refuses("APPROVAL_DECIDED" if end == "rejected" else "APPROVAL_EXPIRED"):
            await w.approve(run, 1, by="u_dora")
