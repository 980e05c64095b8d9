"""A step that has started and can be neither skipped nor repeated is never started again."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.kernel import commands as c
from tenure.reads.resume_state import read_resume_state
from tests.conformance.world import Place, World, step


@pytest.mark.parametrize("how", ["fails", "is released", "is parked", "times out", "is revoked"])
async def test_a_step_with_an_open_start_mark_is_not_retried(place: Place, how: str) -> None:
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


async def test_a_step_whose_checkpoint_is_recorded_as_failed_is_retried(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=[step("charge", retries=3)], profile="delta-ci")
        lease = await w.claim()
        await w.checkpoint(lease, "call", state="started", idempotent=False, resumable=False)
        await w.checkpoint(lease, "call", state="failed", idempotent=False, resumable=False, error="NETWORK")
        await w.fail(lease, "NETWORK", retryable=True)
        assert await w.status(run) == "retry_wait"


async def test_an_expired_wait_takes_no_later_event(place: Place) -> None:
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


async def test_a_repeated_checkpoint_reports_a_cancel_request(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="delta-ci")
        message = c.RecordCheckpoint(run_id=lease.run_id, idx=lease.idx, n=lease.n, seq=1, name="one")
        assert (await w.do(message)).cancel is False
        await w.cancel(lease.run_id)
        assert (await w.do(message)).cancel is True


MARK: dict[str, Any] = {"idempotent": False, "resumable": False}


async def test_a_step_with_an_open_start_mark_does_not_suspend(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="delta-ci")
        await w.checkpoint(lease, "safe")
        await w.checkpoint(lease, "call", state="started", **MARK)
        reply = await w.wait(lease, "go", event=c.WaitSpec(event="go"))
        assert reply.no is not None
        async with w.refuses("CHECKPOINT_OPEN") as refusal:
            await w.suspend(lease, reply.no)
        assert "checkpoint 'call'" in str(refusal.value)
        await w.crash()  # the same if only the database knows the mark
        async with w.refuses("CHECKPOINT_OPEN") as refusal:
            await w.suspend(lease, reply.no)
        assert "checkpoint 'call'" in str(refusal.value)
        await w.checkpoint(lease, "call", state="failed", error="NETWORK", **MARK)
        assert (await w.suspend(lease, reply.no)).state == "suspended"


async def test_a_step_with_an_open_start_mark_continues_after_a_settled_wait(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="delta-ci")
        await w.checkpoint(lease, "call", state="started", **MARK)
        reply = await w.wait(lease, "go", event=c.WaitSpec(event="go"))
        await w.deliver(lease.run_id, "go")
        assert reply.no is not None
        assert (await w.suspend(lease, reply.no)).state == "go_on"


@pytest.mark.parametrize("ends", ["lost", "failed", "canceled", "timed out"])
async def test_a_run_with_an_open_start_mark_cannot_be_resumed_silently(place: Place, ends: str) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="delta-ci", timeout_seconds=300)
        run = lease.run_id
        await w.checkpoint(lease, "safe", output=b"1")
        await w.checkpoint(lease, "call", state="started", **MARK)
        if ends == "lost":
            await w.later(61).sweep()
            assert (await w.run(run)).reason == "RUN_RESUME_FAILED"
        elif ends == "failed":
            await w.fail(lease, "BROKEN", retryable=False)
        elif ends == "canceled":
            await w.cancel(run)
            await w.cancel_ack(lease)
        else:
            await w.later(301).sweep()
        async with w.refuses("RUN_RESUME_FAILED") as refusal:
            await w.resume(run)
        assert "checkpoint 'call' of step 'main'" in str(refusal.value)
        assert refusal.value.data["checkpoint"] == "call"


async def test_a_resume_must_settle_the_open_start_marks(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="delta-ci")
        run = lease.run_id
        await w.checkpoint(lease, "safe", output=b"1")
        await w.checkpoint(lease, "paid", state="started", **MARK)
        await w.checkpoint(lease, "sent", state="started", **MARK)
        await w.later(61).sweep()
        async with w.refuses("RUN_RESUME_FAILED"):
            await w.resume(run, happened={"paid": b"receipt"})
        async with w.refuses("INVALID_INPUT"):
            await w.resume(run, happened={"paid": b"receipt"}, repeat=["sent", "safe"])
        await w.resume(run, happened={"paid": b"receipt"}, repeat=["sent"])
        after = await w.claim()
        found = (await read_resume_state(w.store, after)).checkpoints
        assert [(row.name, row.state, row.output) for row in found] == [
            ("safe", "done", b"1"),
            ("paid", "done", b"receipt"),
        ]
        async with w.refuses("CHECKPOINT_CONFLICT"):
            await w.checkpoint(after, "paid", state="started", **MARK)
        await w.checkpoint(after, "sent", state="started", **MARK)
        await w.checkpoint(after, "sent", output=b"yes")
        await w.complete(after)


async def test_a_start_mark_in_a_later_step_is_checked_too(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=[step("a", retries=0), step("b", retries=0)], profile="delta-ci")
        leases = {lease.name: lease for lease in await w.claims(limit=2)}
        await w.checkpoint(leases["b"], "call", state="started", **MARK)
        await w.fail(leases["a"], "BROKEN", retryable=False)
        async with w.refuses("RUN_RESUME_FAILED") as refusal:
            await w.resume(run)
        assert "of step 'b'" in str(refusal.value)
        async with w.refuses("RUN_RESUME_FAILED"):
            await w.resume(run, happened={"call": b""})
        await w.resume(run, repeat=["call"])
