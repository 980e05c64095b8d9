"""A run with a profile that this process lacks: commands are refused, reads work, and other runs are not blocked.

The set of profiles is global per process. Tests that need a second process change the set of this one
(`use_profiles`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tenure.clock import us
from tenure.doctor.examination import examine_database
from tenure.errors import CODES
from tenure.kernel import commands as c
from tenure.kernel import notifications
from tenure.orchestrator import scheduler as schedules
from tenure.orchestrator import sweeper
from tenure.orchestrator.scheduler import Scheduler
from tenure.orchestrator.sweeper import Sweeper
from tenure.reads.runs import RunReader
from tests.conformance.test_schedules import HOUR_US, hourly, put, row, slots
from tests.conformance.world import BEGIN_US, Place, World, gate, pause
from tests.profiles.custom import OURS, profiles_in_use, use_profiles


@pytest.fixture(autouse=True)
def _ours() -> Iterator[None]:
    with profiles_in_use(OURS):
        yield


async def test_a_run_with_a_custom_profile_runs_to_its_end(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile="ours", plan=["build", gate()])
        await w.complete(await w.claim())
        await w.approve(run)
        assert (await w.status(run), (await w.run(run)).profile) == ("succeeded", "ours")


async def test_commands_on_a_run_with_an_unknown_profile_are_refused_as_retryable(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="ours")
        run = lease.run_id
        use_profiles()
        async with w.refuses("PROFILE_NOT_HERE") as refusal:
            await w.cancel(run)
        assert "'ours'" in refusal.value.message
        assert refusal.value.retryable
        assert CODES["PROFILE_NOT_HERE"].status == 503
        async with w.refuses("PROFILE_NOT_HERE"):
            await w.complete(lease, seq=1)
        async with w.refuses(
            "PROFILE_NOT_FOUND"
        ):  # for a new run, an unknown profile is the caller's mistake
            await w.create(profile="ours")
        use_profiles(OURS)
        await w.complete(lease, seq=1)
        assert await w.status(run) == "succeeded"


async def test_other_runs_of_the_batch_are_decided(place: Place) -> None:
    async with World(place) as w:
        theirs = await w.create(profile="ours")
        mine = [await w.create() for _ in range(5)]
        use_profiles()
        answers = await asyncio.gather(
            *(w.cancel(run) for run in (*mine[:2], theirs, *mine[2:])), return_exceptions=True
        )
        assert [getattr(answer, "code", None) for answer in answers].count("PROFILE_NOT_HERE") == 1
        assert {await w.status(run) for run in mine} == {"canceled"}
        assert await w.status(theirs) == "queued"


async def test_a_claim_skips_a_run_with_an_unknown_profile(place: Place) -> None:
    async with World(place) as w:
        theirs = [await w.create(profile="ours", priority=9, plan=["a", "b"]) for _ in range(3)]
        mine = await w.create()
        use_profiles()
        assert [lease.run_id for lease in await w.claims(limit=2)] == [mine]
        use_profiles(OURS)
        other = await w.crash()  # a process that has the profile
        assert {lease.run_id for lease in await other.claims(limit=9)} == set(theirs)


async def test_a_sweep_skips_a_run_with_an_unknown_profile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "SWEEP_TIMERS_MAX", 2)
    async with World(place) as w:
        theirs = [await w.create(profile="ours", plan=[pause(within_seconds=10)]) for _ in range(5)]
        mine = await w.create(plan=[pause(within_seconds=20)])
        use_profiles()
        sweeping = Sweeper(w.later(21).orchestrator)
        found = [await sweeping.sweep() for _ in range(4)]
        # Skipped timers do not count: a round that only skips is not followed immediately by the next one.
        assert found == [0, 0, 1, 0]
        assert await w.status(mine) == "succeeded"
        assert {await w.status(run) for run in theirs} == {"waiting_external"}
        use_profiles(OURS)
        await w.sweep()  # as another process that has the profile
        assert {await w.status(run) for run in theirs} == {"succeeded"}
        assert await sweeping.sweep() == 0
        assert not sweeping._timers._keys  # timers that others have handled are forgotten


async def test_outbox_rows_for_a_run_with_an_unknown_profile_are_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "SWEEP_TIMERS_MAX", 1)
    async with World(place) as w:
        lease = await w.begin(profile="ours")
        child, other = w.orchestrator.new_id("default"), w.orchestrator.new_id("default")
        start = c.StartChild(run_id=child, workflow="child", profile="agent-runs", plan=(c.BODY_STEP,))
        reply = await w.wait(lease, "kid", child=start)
        await w.settle()
        assert reply.no is not None
        await w.suspend(lease, reply.no)
        use_profiles()
        await w.complete(
            await w.claim("kid"), b"done"
        )  # its parent has to be notified, but this process lacks the parent's profile
        await w.settle()
        parent = await w.begin()  # then a delivery that this process can make
        again = c.StartChild(run_id=other, workflow="child", plan=(c.BODY_STEP,))
        monkeypatch.setattr(type(w.orchestrator), "deliver", _lost)
        await w.wait(parent, "kid", child=again)
        await w.settle()
        monkeypatch.undo()
        monkeypatch.setattr(sweeper, "SWEEP_TIMERS_MAX", 1)
        sweeping = Sweeper(w.later(3).orchestrator)
        assert [await sweeping.sweep() for _ in range(3)] == [0, 1, 0]
        assert await w.status(other) == "queued"
        assert await w.status(lease.run_id) == "waiting_external"
        use_profiles(OURS)
        await w.sweep()
        assert (await w.step(lease.run_id)).state == "ready"
        monkeypatch.undo()


async def _lost(*_: object) -> int:
    """Delivers nothing, like a process that ends first."""
    return 0


async def test_a_child_with_an_unknown_profile_is_created_by_another_process(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(place) as w:
        lease = await w.begin()
        child = w.orchestrator.new_id("default")
        monkeypatch.setattr(type(w.orchestrator), "deliver", _lost)
        start = c.StartChild(run_id=child, workflow="child", profile="ours", plan=(c.BODY_STEP,))
        await w.wait(lease, "kid", child=start)
        await w.settle()
        monkeypatch.undo()
        use_profiles()
        await w.later(3).sweep()
        assert child not in await w.run_ids()
        assert [wait.state for wait in await w.waits(lease.run_id)] == ["open"]
        use_profiles(OURS)
        await w.sweep()
        assert (await w.run(child)).profile == "ours"


async def test_a_schedule_with_an_unknown_profile_stays_due(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "SCHEDULES_AT_ONCE_MAX", 1)
    async with World(place) as w:
        await put(w, hourly(name="theirs", profile="ours", catch_up="all"))
        await put(w, hourly(next_at=BEGIN_US + HOUR_US + us(1)))
        use_profiles()
        scheduler = Scheduler(w.at("11:00:02").orchestrator)
        assert [await scheduler.look() for _ in range(3)] == [0, 1, 0]
        assert (await row(w, "theirs")).next_at == BEGIN_US + HOUR_US
        use_profiles(OURS)
        assert await Scheduler(w.orchestrator).look() == 1
        assert len(await slots(w)) == 2


async def test_a_run_with_an_unknown_profile_is_shown_in_the_kernels_words(place: Place) -> None:
    async with World(place) as w:
        theirs = await w.create(profile="ours", plan=["build", "test"])
        mine = await w.create(profile="approval-runs", plan=["build"])
        use_profiles()
        views = RunReader(w.store, "acme")
        lines = {line.profile: line.shown for line in await views.list_runs("acme")}
        assert lines == {"ours": "queued", "approval-runs": "PENDING"}
        assert (await views.run(theirs)).shown == "queued"
        assert (await views.run(theirs, "delta-ci")).shown == "QUEUED"
        assert [view.shown for view in await views.steps(theirs)] == ["ready", "pending"]
        assert (await views.run(mine)).shown == "PENDING"
        assert notifications.changed_status_word("ours", "queued", "running", "Claim") == "running"


async def test_the_doctor_examines_runs_with_unknown_profiles(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="ours")
        await w.cancel(lease.run_id)
        await w.later(3600).create()
        late = (await examine_database(w.store, settled=True)).violations
        use_profiles()
        found = await examine_database(w.store, settled=True)
        # The profile limits how long a cancel may take, so a process without the profile cannot report this one.
        assert [v.number for v in late if v not in found.violations] == ["I49"]
        assert [v for v in found.violations if v not in late] == []
        assert found.runs == 2
