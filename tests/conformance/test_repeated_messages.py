"""Regressions found by the simulator, each with a minimal run."""

from __future__ import annotations

from tenure.kernel import commands as c
from tests.conformance.world import Place, World


async def test_a_silent_planner_fails_its_run_at_the_deadline(place: Place) -> None:
    """Regression: the sweeper sends Admit to a run in planning too, and has to distinguish the planning deadline."""
    async with World(place) as w:
        run = await w.create(profile="agent-runs", plan=None)
        await w.later(61).sweep()
        assert (await w.run(run)).status == "failed"
        assert (await w.run(run)).reason == "PLAN_FAILED"


async def test_a_heartbeat_at_one_process_extends_the_lease_cached_by_another(place: Place) -> None:
    """Heartbeats do not change the run's version, so a tick must not trust a cached expiry."""
    async with World(place, orchestrators=2) as w:
        run = await w.create(profile="agent-runs")
        lease = await w.claim()  # 30 seconds
        await w.later(20).through(1).beat(lease)
        await w.later(15).sweep()
        assert [attempt.lease for attempt in await w.attempts(run)] == ["active"]
        await w.complete(lease)


async def test_a_repeated_message_gets_its_first_answer_even_after_a_heartbeat(place: Place) -> None:
    """Heartbeats increase the lease's sequence number; the stored answer is found by its own number."""
    async with World(place) as w:
        run = await w.create()
        lease = await w.claim()
        first = await w.wait(lease, "merged", event=c.WaitSpec(event="merged"))
        await w.later(5).beat(lease)
        seq = (await w.attempts(run))[0].seq
        assert await w.wait(lease, "merged", event=c.WaitSpec(event="merged"), seq=seq - 1) == first
        await w.complete(lease)


async def test_a_repeated_complete_gets_its_first_answer_even_if_a_heartbeat_overtook_it(
    place: Place,
) -> None:
    """One process completes from its cache and does not know of the later heartbeat in the other process."""
    async with World(place, orchestrators=2) as w:
        await w.create()
        lease = await w.claim()
        await w.later(5).through(1).beat(lease, seq=9)
        first = await w.complete(lease, seq=8)
        assert await w.through(1).complete(lease, seq=8) == first


async def test_an_answer_without_a_change_survives_the_cache_of_another_process(place: Place) -> None:
    """Opening an existing wait changes no state, but its answer must be stored."""
    async with World(place, orchestrators=2) as w:
        run = await w.create()
        lease = await w.claim()
        await w.wait(lease, "merged", event=c.WaitSpec(event="merged"))  # cached by the first process
        found = await w.through(1).wait(lease, "merged", event=c.WaitSpec(event="merged"), seq=2)
        version = (await w.run(run)).version
        assert (await w.attempts(run))[0].last_message == "open_wait 2"
        await w.say(c.BeginUpload, lease, seq=3)
        assert (await w.run(run)).version == version + 1
        assert (await w.through(1).read("attempts_of", run))[0].last_message == "upload 3"
        assert found.no is not None
        await w.complete(lease)


async def test_a_repeated_start_mark_does_not_undo_the_checkpoint(place: Place) -> None:
    """A checkpoint has a name and a sequence number. An older number is late, even if the checkpoint may be repeated."""
    async with World(place) as w:
        run = await w.create()
        lease = await w.claim()
        how = {"resumable": False, "idempotent": True}
        await w.checkpoint(lease, "pay", state="started", seq=1, **how)
        await w.checkpoint(lease, "pay", output=b"paid", seq=2, **how)
        async with w.refuses("MESSAGE_OUT_OF_ORDER"):
            await w.checkpoint(lease, "pay", state="started", seq=1, **how)
        [row] = await w.read("checkpoints_of", run)
        assert (row.state, row.seq, await w.body(run, row.output_ref)) == ("done", 2, b"paid")
        await w.complete(lease)
