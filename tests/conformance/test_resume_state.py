"""The resume state: the next worker of a step finds its checkpoints, answered waits and proposals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure.clock import us
from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.reads.resume_state import ResumeState, read_resume_state
from tests.conformance.world import Place, World, step

ASK = c.ApprovalSpec(action="publish", within_seconds=3600)


async def no_of(w: World, lease: Lease, label: str, **what: object) -> int:
    """Open a wait; its number."""
    reply = await w.wait(lease, label, **what)
    assert reply.no is not None
    return reply.no


# --------------------------------------------------------------------------------------- a long backoff


async def test_a_failed_try_waits_for_its_backoff_without_a_lease(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="agent-runs", timeout_seconds=9000)
        next_at = w.now + us(900)
        await w.checkpoint(
            lease, "fetch", state="failed", error="HTTP_503", message=b"try later", tries=2, next_at=next_at
        )
        no = await no_of(w, lease, "fetch/backoff/2", until=next_at)
        assert (await w.suspend(lease, no)).state == "suspended"
        assert await w.status(lease.run_id) == "waiting_external"
        await w.later(898).sweep()
        assert await w.claims() == []
        await (await w.crash()).later(3).sweep()

        after = await w.claim("carol")
        view = await read_resume_state(w.store, after)
        (failed,) = view.checkpoints
        assert (failed.name, failed.state, failed.tries, failed.next_at) == ("fetch", "failed", 2, next_at)
        assert (failed.error, failed.output) == ("HTTP_503", b"try later")
        (pause,) = view.waits
        assert (pause.label, pause.kind, pause.outcome) == ("fetch/backoff/2", "time", "elapsed")
        await w.checkpoint(after, "fetch", output=b"page", tries=3)
        await w.complete(after)
        assert await w.status(lease.run_id) == "succeeded"


async def test_an_invalid_time_is_refused(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        for until in (-1, 1 << 62):
            async with w.refuses("INVALID_INPUT"):
                await w.wait(lease, "never", until=until)


@pytest.mark.parametrize(
    "what",
    [
        {"meta": '{"agent":"' + "x" * 5000 + '"}'},
        {"meta": "no json"},
        {"meta": "[1]"},
        {"arguments": b"x" * 65},
        {"state": "failed", "error": "x" * 65},
        {"state": "failed", "error": "TWO\nLINES"},
        {"state": "failed", "output": b"none"},
        {"state": "failed", "next_at": -1},
        {"state": "done", "message": b"fine"},
    ],
)
async def test_the_fields_of_a_checkpoint_are_limited(place: Place, what: dict[str, Any]) -> None:
    async with World(place) as w:
        lease = await w.begin()
        async with w.refuses("INVALID_INPUT"):
            await w.checkpoint(lease, "one", **what)


async def test_a_message_over_the_limit_is_refused_like_a_payload(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        async with w.refuses("PAYLOAD_TOO_LARGE"):
            await w.checkpoint(
                lease, "one", state="failed", error="BIG", message=b"x" * (PAYLOAD_BYTES_MAX + 1)
            )


async def test_the_history_contains_no_text_of_a_checkpoint(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        await w.checkpoint(lease, "one", output=b"secret-output", meta='{"agent":"secret-agent"}')
        await w.checkpoint(lease, "two", state="failed", error="BROKEN", message=b"secret-message")
        bodies = b"".join(event.body for event in await w.events(lease.run_id))
        assert b"BROKEN" in bodies
        assert b"secret" not in bodies
        row = (await read_resume_state(w.store, lease_again(lease))).checkpoints[0]
        assert row.meta == '{"agent":"secret-agent"}'


async def test_a_completed_effect_that_starts_again_keeps_its_result(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        await w.checkpoint(lease, "call", output=b"receipt", resumable=False, idempotent=False)
        await w.checkpoint(lease, "call", state="failed", error="AGAIN", resumable=False, idempotent=False)
        (row,) = (await read_resume_state(w.store, lease_again(lease))).checkpoints
        assert (row.state, row.output) == ("done", b"receipt")


def lease_again(lease: Lease) -> Lease:
    """The lease that the next claim of the step would get."""
    return msgspec.structs.replace(lease, n=lease.n + 1)


# ------------------------------------------------------------------------------------------ proposals


@pytest.mark.parametrize("accept", [True, False])
async def test_a_proposal_blocks_nothing_and_can_be_decided_after_the_run(place: Place, accept: bool) -> None:
    async with World(place) as w:
        lease = await w.begin(by="u_alice")
        no = await no_of(w, lease, "summary", proposal=ASK, question=b"publish this?")
        await w.complete(lease, b"done")
        run = lease.run_id
        assert await w.status(run) == "succeeded"
        (asked,) = await w.read("approvals_open", "acme", 10)
        assert (asked.no, asked.status) == (no, "requested")
        # The requester may decide a proposal, because the run proposed it.
        answer = await (w.approve if accept else w.reject)(run, no, "u_alice")
        status = "approved" if accept else "rejected"
        assert answer["status"] == status
        row = await w.run(run)
        assert (row.status, row.reason, row.waits_open) == ("succeeded", "done", 0)
        (wait,) = await w.waits(run)
        assert (wait.kind, wait.state, wait.outcome) == ("proposal", "settled", status)
        async with w.refuses("APPROVAL_DECIDED"):
            await w.reject(run, no, "u_carol")


async def test_a_proposal_can_be_decided_while_its_step_runs_and_after_sealing(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        first = await no_of(w, lease, "one", proposal=ASK)
        second = await no_of(w, lease, "two", proposal=ASK)
        await w.approve(lease.run_id, first)
        assert (await w.wait(lease, "one", proposal=ASK)).outcome == "approved"
        async with w.refuses("INVALID_INPUT"):
            await w.suspend(lease, second)
        await w.complete(lease)
        await w.tell(c.SealRun, lease.run_id)
        await w.approve(lease.run_id, second)
        assert [row.status for row in await w.approvals(lease.run_id)] == ["approved", "approved"]


async def test_an_undecided_proposal_expires_after_its_run(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        no = await no_of(w, lease, "summary", proposal=ASK)
        await w.complete(lease)
        await w.later(3601).sweep()
        (row,) = await w.approvals(lease.run_id)
        assert row.status == "expired"
        assert await w.status(lease.run_id) == "succeeded"
        async with w.refuses("APPROVAL_EXPIRED"):
            await w.approve(lease.run_id, no)


@pytest.mark.parametrize("how", ["fails", "is canceled", "runs out of time"])
async def test_an_unsuccessful_run_withdraws_its_proposals(place: Place, how: str) -> None:
    async with World(place) as w:
        run = await w.create(
            plan=[step("draft"), step("check", "draft")], profile="delta-ci", timeout_seconds=600
        )
        first = await w.claim()
        no = await no_of(w, first, "summary", proposal=ASK)
        await w.complete(first)
        assert [row.status for row in await w.approvals(run)] == ["requested"]
        second = await w.claim()
        if how == "fails":
            await w.fail(second, "BROKEN", retryable=False)
        elif how == "is canceled":
            await w.cancel(run)
            await w.cancel_ack(second)
        else:
            await w.later(601).sweep()
        assert await w.status(run) in ("failed", "canceled", "timed_out")
        assert [row.status for row in await w.approvals(run)] == ["canceled"]
        async with w.refuses("RUN_TERMINAL_STATE"):
            await w.approve(run, no)


async def test_the_deadline_keeps_running_while_a_proposal_is_open(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(timeout_seconds=60, profile="agent-runs")
        await w.wait(lease, "summary", proposal=ASK)
        row = await w.run(lease.run_id)
        assert (row.status, row.human_since) == ("running", None)
        async with w.refuses("INVALID_INPUT"):
            await w.wait(lease, "fatal", proposal=ASK, fatal=True)


# --------------------------------------------------------------------------------------- the next holder


async def test_the_next_worker_reads_everything_in_one_query(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="governed-runtime", by="u_alice")
        assert await read_resume_state(w.store, lease) == ResumeState([], [], [])
        run = lease.run_id
        await w.checkpoint(lease, "one", output=b"1", arguments=b"digest")
        await w.checkpoint(lease, "call", state="started", meta='{"agent":"a"}')
        event = await no_of(w, lease, "event", event=c.WaitSpec(event="go"))
        approval = await no_of(w, lease, "ask", approval=ASK)
        good, bad = w.orchestrator.new_id("default"), w.orchestrator.new_id("default")
        await w.wait(lease, "good", child=c.StartChild(run_id=good, workflow="child"))
        await w.wait(lease, "bad", child=c.StartChild(run_id=bad, workflow="child"))
        still = w.orchestrator.new_id("default")
        await w.wait(lease, "still", child=c.StartChild(run_id=still, workflow="child"))
        await w.settle()
        await w.deliver(run, "go", payload=b"came")
        await w.approve(run, approval, "u_bob", reason=b"looks fine")
        for _ in range(2):
            child = await w.claim("child")
            if child.run_id == good:
                await w.complete(child, b"result")
            else:
                assert child.run_id == bad
                await w.fail(child, "BROKEN", message=b"it broke", retryable=False)
        await w.settle()
        await w.release(lease)

        after = next(each for each in await w.claims(limit=5) if each.run_id == run)
        view = await read_resume_state(w.store, after)
        assert [(r.name, r.state, r.output, r.arguments, r.meta) for r in view.checkpoints] == [
            ("one", "done", b"1", b"digest", None),
            ("call", "started", None, b"", '{"agent":"a"}'),
        ]
        by_label = {wait.label: wait for wait in view.waits}
        assert list(by_label) == ["event", "ask", "good", "bad", "still"]
        assert (by_label["event"].no, by_label["event"].outcome) == (event, "received")
        assert by_label["event"].result == b"came"
        asked = by_label["ask"]
        assert (asked.outcome, asked.decided_by, asked.reason, asked.revision) == (
            "approved",
            "u_bob",
            b"looks fine",
            1,
        )
        ended = by_label["good"]
        assert (ended.child_id, ended.outcome, ended.child_outcome, ended.child_output) == (
            good,
            "finished",
            "succeeded",
            b"result",
        )
        broken = by_label["bad"]
        assert (broken.child_id, broken.outcome, broken.child_outcome) == (bad, "child_failed", "failed")
        assert (broken.child_code, broken.child_error, broken.child_output) == ("BROKEN", b"it broke", None)
        running = by_label["still"]
        assert (running.child_id, running.state, running.child_outcome) == (still, "open", None)
