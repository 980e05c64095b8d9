"""Regressions at the boundaries between runs, processes and commits, found by review."""

from __future__ import annotations

import asyncio

import pytest

from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.run_rows import Cap
from tests.conformance.faults import FaultyStore
from tests.conformance.world import Place, World


async def test_a_child_whose_id_is_taken_fails_and_its_parent_continues(place: Place) -> None:
    async with World(place) as w:
        other = await w.create(plan=["a"])
        lease = await w.begin(profile="delta-ci")
        reply = await w.wait(lease, "child", child=c.StartChild(run_id=other, workflow="child"))
        assert reply.no is not None
        await w.suspend(lease, reply.no)
        await w.settle()
        await w.later(5).sweep()
        again = next(lease for lease in await w.claims(limit=10) if lease.kind == "body")
        answer = await w.wait(again, "child", child=c.StartChild(run_id=other, workflow="child"))
        assert (answer.state, answer.outcome) == ("go_on", "child_failed")
        await w.complete(again)


async def test_retention_keeps_the_outbox_and_the_idempotency_key_of_a_run(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        lease = await w.begin(profile="delta-ci")
        child = w.orchestrator.new_id("default")
        reply = await w.wait(lease, "child", child=c.StartChild(run_id=child, workflow="child"))
        assert reply.no is not None
        await w.suspend(lease, reply.no)
        await w.settle()
        work = await w.claim()
        w.orchestrator.deliver = _deliver_nothing  # type: ignore[method-assign]  # the process dies after the commit
        await w.complete(work)
        await w.tell(c.SealRun, child)
        await w.tell(c.DeleteRun, child)
        await w.crash()
        await w.later(5).sweep()
        await w.complete(await w.claim())
        assert await w.status(lease.run_id) == "succeeded"


async def _deliver_nothing(rows: object, lacking: object = None) -> int:
    del rows, lacking
    return 0


async def test_a_key_creates_no_second_run_after_the_first_was_deleted(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a"], idempotency_key="once", request_hash=b"h")
        await w.cancel(run)
        await w.tell(c.SealRun, run)
        await w.tell(c.DeleteRun, run)
        with pytest.raises(TenureError) as refused:
            await w.create(plan=["a"], idempotency_key="once", request_hash=b"h")
        assert refused.value.code == "IDEMPOTENCY_EXPIRED"
        assert await w.run_ids() == []


async def test_refused_creations_with_one_key_block_nothing(place: Place) -> None:
    async with World(place) as w:
        refused = [
            w.created(plan=[c.StepSpec(name="x", needs=("nobody",))], idempotency_key="k") for _ in range(60)
        ]
        answers, good = await asyncio.gather(
            asyncio.gather(*refused, return_exceptions=True), w.create(plan=["a"], tenant="other")
        )
        assert {answer.code for answer in answers if isinstance(answer, TenureError)} == {"PLAN_INVALID"}
        assert await w.status(good) == "queued"


async def test_a_cap_set_by_another_process_applies_to_new_runs(place: Place) -> None:
    """Cached caps expire. A creation that finds them expired reads them in its transaction."""
    async with World(place) as w:
        await w.create(plan=["a"])
        await w.store.put_caps([Cap("t_acme", "", max_runs_per_min=2)])
        w.orchestrator._caps.until = -1.0
        w.orchestrator._caps.refreshing = True  # the background refresh is slow
        answers = await asyncio.gather(
            *(w.created(plan=["a"], tenant="t_acme") for _ in range(6)), return_exceptions=True
        )
        codes = [answer.code for answer in answers if isinstance(answer, TenureError)]
        assert codes == ["TENANT_RATE_LIMITED"] * 4
        w.orchestrator._caps.refreshing = False


async def test_a_command_that_the_store_rejects_fails_alone(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        runs = [await w.create(plan=["a"]) for _ in range(8)]
        store.before.extend([RuntimeError("a defect")] * 2)
        answers = await asyncio.gather(*(w.cancel(run) for run in runs), return_exceptions=True)
        assert [answer for answer in answers if isinstance(answer, TenureError)] == []
        assert {await w.status(run) for run in runs} == {"canceled"}


async def test_a_pending_heartbeat_is_answered_when_its_orchestrator_stops(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        lease = await w.begin()
        store.door.clear()
        beat = w.orchestrator.heartbeat(c.Heartbeat(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1))
        await asyncio.sleep(0)
        w.orchestrator._heartbeats.close()
        with pytest.raises(TenureError) as stopped:
            await beat
        assert stopped.value.code == "STORE_UNAVAILABLE"
        store.door.set()


async def test_a_cached_snapshot_is_not_used_for_a_new_run_with_the_same_id(place: Place) -> None:
    """Another process deletes a run and creates one with the same id, which reaches the same version."""
    async with World(place, orchestrators=2) as here:
        there = here.through(1)
        run = await here.create(workflow="first", plan=["work"])
        old = await here.run(run)
        await there.cancel(run)
        await there.tell(c.SealRun, run)
        await there.later(10).tell(c.DeleteRun, run)
        await there.create(run_id=run, workflow="second", plan=["work"])
        new = await there.run(run)
        assert (new.version, new.head == old.head) == (old.version, False)
        await here.cancel(run)
        now = await here.run(run)
        assert (now.workflow, now.status) == ("second", "canceled")


async def test_a_cached_snapshot_is_dropped_when_another_process_changes_the_run(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        here, there = w.through(0), w.through(1)
        run = await here.create(plan=["a", "b"])
        await there.complete(await there.claim("bob"))
        lease = await there.claim("bob")
        assert run in here.orchestrator._cache, (
            "the cache of this process is outdated: nothing is leased, b is not ready"
        )
        await here.later(90).sweep()
        assert [attempt.state for attempt in await w.attempts(run, "b")] == ["stale"]
        async with w.refuses("LEASE_STALE"):
            await here.complete(lease)
