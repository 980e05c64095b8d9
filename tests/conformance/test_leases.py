"""Leases: charges, releases, parking, pausing, other people's runs."""

from __future__ import annotations

import pytest

from tenure.kernel import commands as c
from tenure.limits import PAYLOAD_BYTES_MAX
from tests.conformance.world import Place, World, gate, step


async def test_an_attempt_is_charged_when_claimed_so_a_job_that_kills_its_worker_ends(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["deadly", "after"])
        other = await w.create(plan=["harmless"])
        for n in range(1, 5):  # one try and three retries
            lease = next(one for one in await w.claims(limit=5) if one.run_id == run)
            assert (lease.n, (await w.step(run, "deadly")).charged) == (n, n)
            await w.later(31).sweep()
        row = await w.run(run)
        assert (row.status, row.reason) == ("failed", "STEP_LOST")
        assert await w.states(run) == {"deadly": "failed", "after": "skipped"}
        assert await w.status(other) in ("running", "failed")  # it went its own way


async def test_a_release_gives_the_charge_back_and_a_new_checkpoint_sets_it_to_zero(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        for _ in range(10):  # a worker that shuts down ten times costs nothing
            await w.release(await w.claim())
        assert (await w.step(run, "job")).charged == 0
        for n in range(6):  # nor does one that dies after having got somewhere
            lease = await w.claim()
            await w.checkpoint(lease, f"part {n}")
            assert (await w.step(run, "job")).charged == 0
            await w.later(31).sweep()
        lease = await w.claim()
        assert ((await w.step(run, "job")).charged, lease.n) == (1, 17)
        await w.complete(lease)
        assert [row.state for row in await w.attempts(run)] == ["released"] * 10 + ["stale"] * 6 + [
            "succeeded"
        ]


async def test_a_released_lease_is_ended_for_its_holder(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        old = await w.claim("bob")
        await w.release(old)
        async with w.refuses("LEASE_STALE"):
            await w.complete(old)
        await w.complete(await w.claim("carol"))
        assert await w.status(run) == "succeeded"


async def test_code_that_does_not_fit_parks_the_run_until_somebody_looks(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        await w.park(await w.claim(), "step 'two' is called 'deux' here")
        row, job = await w.run(run), await w.step(run, "job")
        assert (row.parked, job.charged, job.state) == ("step 'two' is called 'deux' here", 0, "ready")
        assert await w.claims() == []
        assert await w.tell(c.Unpause, run) == {"paused": False, "again": False}
        assert (await w.run(run)).parked is None
        await w.work_off(run)
        assert await w.status(run) == "succeeded"


async def test_a_paused_run_gets_no_new_lease_and_its_deadline_goes_on(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=[step("one"), step("two", "one")])
        lease = await w.claim()
        assert await w.tell(c.Pause, run) == {"paused": True, "again": False}
        assert await w.tell(c.Pause, run) == {"paused": True, "again": True}
        await w.complete(lease)  # work under way goes on
        assert (await w.states(run), await w.claims()) == ({"one": "succeeded", "two": "ready"}, [])
        await w.tell(c.Unpause, run)
        assert await w.tell(c.Unpause, run) == {"paused": False, "again": True}
        lease = await w.claim()
        await w.tell(c.Pause, run)
        await w.fail(lease, "NLM_UNAVAILABLE")
        await w.later(1.1).sweep()
        assert ((await w.step(run, "two")).state, await w.claims()) == ("ready", [])
        await w.at("10:10:01").sweep()
        assert (await w.run(run)).reason == "RUN_TIMED_OUT"


async def test_a_claim_names_its_queue(place: Place) -> None:
    async with World(place) as w:
        await w.create(plan=[step("cpu"), step("gpu", queue="gpu")])
        assert [lease.name for lease in await w.claims(limit=5)] == ["cpu"]
        assert [lease.name for lease in await w.claims(limit=5, queues=("gpu", "other"))] == ["gpu"]


async def test_another_tenants_run_looks_exactly_like_none(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"], tenant="acme")
        said = set()
        for run_id, tenant in ((run, "other"), (run + 1, "acme")):
            async with w.refuses("RUN_NOT_FOUND") as refusal:
                await w.do(c.RequestCancel(run_id=run_id, tenant=tenant))
            said.add(str(refusal.value).split("run_")[0])
        assert len(said) == 1
        assert (await w.do(c.RequestCancel(run_id=run, tenant="acme")))["status"] == "canceled"


async def test_unknown_steps_and_leases_are_named(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        async with w.refuses("STEP_NOT_FOUND"):
            await w.do(c.ClaimStep(run_id=run, idx=9, by=c.ClaimBy("bob")))
        async with w.refuses("LEASE_NOT_FOUND"):
            await w.do(c.Complete(run_id=run, idx=0, n=1, seq=1))
        async with w.refuses("APPROVAL_NOT_FOUND"):
            await w.approve(run, 7)
        for limit in (0, 501):
            async with w.refuses("INVALID_INPUT"):
                await w.claims(limit=limit)


async def test_an_output_one_byte_over_the_limit_is_refused_and_the_step_can_still_end(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        lease = await w.claim()
        async with w.refuses("PAYLOAD_TOO_LARGE"):
            await w.complete(lease, bytes(PAYLOAD_BYTES_MAX + 1))
        await w.fail(lease, "PAYLOAD_TOO_LARGE")
        assert ((await w.run(run)).status, (await w.run(run)).reason) == ("failed", "PAYLOAD_TOO_LARGE")


async def test_a_checkpoint_may_start_fail_and_be_done_and_is_recognised_when_repeated(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        await w.checkpoint(lease, "call", state="started", idempotent=False, seq=1)
        assert (await w.step(lease.run_id)).unsafe == 1
        await w.checkpoint(lease, "call", state="failed", error="TIMEOUT", tries=1, idempotent=False, seq=2)
        assert (await w.step(lease.run_id)).unsafe == 0
        await w.checkpoint(lease, "call", output=b"42", tries=2, idempotent=False, seq=3)
        before = await w.bundle(lease.run_id)
        await w.checkpoint(lease, "call", output=b"42", tries=2, idempotent=False, seq=3)
        assert await w.bundle(lease.run_id) == before
        async with w.refuses("CHECKPOINT_CONFLICT"):
            await w.checkpoint(lease, "call", output=b"43", seq=4)
        (row,) = await w.read("checkpoints_of", lease.run_id)
        assert (row.state, row.tries, await w.body(lease.run_id, row.output_ref)) == ("done", 2, b"42")
        assert (await w.run(lease.run_id)).steps_done == 1


# ----------------------------------------------------------------------------------- facts and the end


async def test_a_finished_run_is_reported_sealed_and_then_deleted_without_a_trace(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job", gate()], input=b"secret", labels='{"a":1}')
        kept = await w.create(plan=["job"])
        await w.complete(next(one for one in await w.claims(limit=2) if one.run_id == run), b"out")
        await w.approve(run)
        async with w.refuses("RUN_NOT_SEALED"):
            await w.tell(c.DeleteRun, run)
        assert await w.tell(c.Seal, run) == {"again": False}
        assert await w.tell(c.Seal, run) == {"again": True}
        assert await w.tell(c.DeleteRun, run) == {"deleted": True}
        assert await w.run_ids() == [kept]
        assert await w.read("events_of", run) == []
        assert await w.read("payloads_of", run) == []
        async with w.refuses("RUN_NOT_FOUND"):
            await w.tell(c.DeleteRun, run)


@pytest.mark.parametrize("text", ["[]", "{" + " " * 70_000 + "}"])
async def test_labels_that_are_no_object_or_too_long_are_refused(place: Place, text: str) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"], labels='{"kept":1}')
        async with w.refuses("INVALID_INPUT"):
            await w.tell(c.UpdateMetadata, run, labels=text)
        assert (await w.spec(run)).labels == '{"kept":1}'
