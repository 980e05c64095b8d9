"""What was begun and can be neither skipped nor repeated is never begun again, whichever way it would be."""

from __future__ import annotations

import pytest

from tenure.kernel import commands as c
from tests.conformance.world import Place, World, step


@pytest.mark.clause("GWI-18")
@pytest.mark.parametrize("how", ["fails", "is released", "is parked", "times out", "is revoked"])
async def test_a_step_with_an_open_start_mark_is_not_tried_again(place: Place, how: str) -> None:
    async with World(place) as w:
        run = await w.create(plan=[step("charge", timeout_seconds=20, retries=3)], profile="delta-ci")
        lease = await w.claim()
        await w.checkpoint(lease, "call", state="started", idempotent=False, resumable=False)
        if how == "fails":
            await w.fail(lease, "NETWORK", retryable=True)
        elif how == "is released":
            await w.release(lease)
        elif how == "is parked":
            await w.park(lease, "other code")
        elif how == "times out":
            await w.later(21).sweep()
        else:
            await w.revoke(lease)
        row = await w.run(run)
        assert (row.status, row.reason) == ("failed", "RUN_RESUME_FAILED")
        assert await w.claims() == []


async def test_a_failure_whose_checkpoint_was_recorded_as_failed_is_tried_again(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=[step("charge", retries=3)], profile="delta-ci")
        lease = await w.claim()
        await w.checkpoint(lease, "call", state="started", idempotent=False, resumable=False)
        await w.checkpoint(lease, "call", state="failed", idempotent=False, resumable=False, error="NETWORK")
        await w.fail(lease, "NETWORK", retryable=True)
        assert await w.status(run) == "retry_wait"


async def test_an_event_that_comes_after_its_wait_expired_is_not_taken_by_it(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="delta-ci")
        reply = await w.wait(lease, "go", event=c.WaitSpec(event="go", within_seconds=10))
        assert reply.no is not None
        await w.suspend(lease, reply.no)
        w.later(11)
        assert await w.deliver(lease.run_id, "go") == {"again": False, "taken": False}
        await w.sweep()
        again = await w.claim()
        answer = await w.wait(again, "go", event=c.WaitSpec(event="go", within_seconds=10))
        assert answer.outcome == "expired"
        fresh = await w.wait(again, "go again", event=c.WaitSpec(event="go", within_seconds=10))
        assert fresh.outcome == "received"


async def test_a_repeated_checkpoint_also_says_that_a_cancel_was_asked_for(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="delta-ci")
        message = c.RecordCheckpoint(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1, name="one")
        assert (await w.do(message)).cancel is False
        await w.cancel(lease.run_id)
        assert (await w.do(message)).cancel is True
