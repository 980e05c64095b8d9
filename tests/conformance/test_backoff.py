"""Backoffs and deadlines that pause while a run waits for a person."""

from __future__ import annotations

from tenure.clock import us
from tenure.kernel import commands as c
from tests.conformance.world import Place, World, step


def near(moment: int | None, expected: int) -> bool:
    return moment is not None and abs(moment - expected) < us(3)


PLAN = [
    step("flaky", retries=3, backoff=c.BackoffSpec(seconds=(300.0,), jitter=0.0)),
    step("first"),
    c.StepSpec(name="gate", kind="approval", needs=("first",), approval=c.ApprovalSpec(within_seconds=9000)),
]


async def in_backoff(w: World, **how: object) -> tuple[int, int]:
    """A run with a timeout of 100 s whose first step has failed and whose gate is about to open, and the time of the failure."""
    run = await w.create(plan=PLAN, profile="delta-ci", timeout_seconds=100, **how)
    leases = {lease.name: lease for lease in await w.claims(limit=2)}
    failed_at = w.now
    await w.fail(leases["flaky"], "NETWORK")
    row = await w.step(run, "flaky")
    assert row.eligible_at == (await w.run(run)).deadline_at, "the backoff ends at the deadline"
    await w.later(10).complete(leases["first"])
    return run, failed_at


async def test_a_shortened_backoff_is_restored_when_a_gate_opens_after_the_failure(place: Place) -> None:
    async with World(place) as w:
        run, failed_at = await in_backoff(w)
        assert await w.status(run) == "waiting_approval"
        row = await w.step(run, "flaky")
        assert near(row.eligible_at, failed_at + us(300))
        assert row.wake_at == row.eligible_at
        await w.later(200).sweep()  # without the pause, the deadline would have passed
        assert await w.claims() == []
        await w.later(95).sweep()
        assert (await w.claim()).name == "flaky"


async def test_a_backoff_past_the_deadline_is_shortened_after_the_approval(
    place: Place,
) -> None:
    async with World(place) as w:
        run, _ = await in_backoff(w)
        await w.later(50).approve(run)
        row, flaky = await w.run(run), await w.step(run, "flaky")
        assert row.human_since is None
        assert flaky.eligible_at == flaky.wake_at == row.deadline_at
        await w.later(95).sweep()
        assert (await w.run(run)).reason == "RUN_TIMED_OUT"


async def test_a_wall_clock_deadline_keeps_running_and_keeps_the_backoff_short(place: Place) -> None:
    async with World(place) as w:
        run, _ = await in_backoff(w, wall_clock=True)
        row = await w.run(run)
        assert (row.status, row.human_since) == ("waiting_approval", None)
        assert (await w.step(run, "flaky")).eligible_at == row.deadline_at
