"""The clauses of agent runs, shown by runs under that profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.clock import us
from tenure.kernel import commands as c
from tenure.kernel.history import decode_body
from tests.conformance.world import Place, World, gate
from tests.profile_words import changes, document, run_words, table

AGR = "agent-runs"


@pytest.mark.clause("AGR-01")
async def test_a_run_is_requested_queued_running_and_completed(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=AGR, plan=None)
        assert run_words(AGR, await w.events(run)) == ["requested"]  # accepted, not yet acknowledged
        await w.plan_ready(run, "collect", "execute-agent", "finalize")
        assert run_words(AGR, await w.events(run)) == ["requested", "queued"]
        for done in range(3):
            lease = await w.claim()  # a slot is free
            assert run_words(AGR, await w.events(run)) == ["requested", "queued", "running"]
            assert (await w.run(run)).steps_done == done
            await w.complete(lease)
            row = await w.run(run)
            assert (row.steps_done, row.steps_total) == (done + 1, 3)
        assert run_words(AGR, await w.events(run)) == ["requested", "queued", "running", "completed"]


@pytest.mark.clause("AGR-01")
async def test_a_step_update_keeps_the_run_running_and_counts(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile=AGR)
        for n in (1, 2, 3):
            await w.checkpoint(lease, f"step {n}")
            row = await w.run(lease.run_id)
            assert (row.status, row.steps_done) == ("running", n)
        await w.complete(lease)
        assert (await w.run(lease.run_id)).steps_done == 3  # the body itself is not a visible step


@pytest.mark.clause("AGR-01")
async def test_retries_exhausted_or_a_timeout_fail_the_run(place: Place) -> None:
    async with World(place) as w:
        broken = await w.create(profile=AGR, plan=["execute-agent"])
        for wait in (1, 2, 4):
            await w.fail(await w.claim(), "NLM_UNAVAILABLE")
            await w.later(wait + 0.1).sweep()
        await w.fail(await w.claim(), "NLM_UNAVAILABLE", message=b"the model does not answer")
        assert run_words(AGR, await w.events(broken)) == ["requested", "queued", "running", "failed"]
        row = await w.run(broken)
        assert (row.reason, await w.body(broken, row.error_ref)) == (
            "NLM_UNAVAILABLE",
            b"the model does not answer",
        )

        slow = await w.create(profile=AGR, plan=[c.StepSpec(name="execute-agent", timeout_seconds=3600)])
        lease = await w.claim()
        for _ in range(30):
            await w.later(20).beat(lease)
        await w.later(1.1).sweep()
        row = await w.run(slow)
        assert (row.status, row.reason) == ("timed_out", "RUN_TIMED_OUT")
        assert run_words(AGR, await w.events(slow)) == ["requested", "queued", "running", "failed"]


@pytest.mark.clause("AGR-02")
async def test_completed_and_failed_are_final(place: Place) -> None:
    async with World(place) as w:
        done = await w.create(profile=AGR, plan=["a", gate(), "b"])
        await w.work_off(done)
        await w.approve(done)
        await w.work_off(done)
        failed = await w.create(profile=AGR, plan=["a"])
        await w.fail(await w.claim(), "INVALID_INPUT")
        for run, end in ((done, "completed"), (failed, "failed")):
            events = await w.events(run)
            shown = run_words(AGR, events)
            assert shown == ["requested", "queued", "running", end]
            assert changes(shown) <= table(AGR, "run")
            for command in (
                c.RequestCancel(run_id=run),
                c.Pause(run_id=run),
                c.AddSteps(run_id=run, plan=(c.StepSpec(name="z"),)),
                c.ClaimStep(run_id=run, idx=0, by=c.Claimant("bob")),
            ):
                async with w.refuses("RUN_TERMINAL_STATE"):
                    await w.do(command)
            await w.at("20:00:00" if run == failed else "10:30:00").sweep()
            assert await w.events(run) == events  # terminal runs do not change with time


@pytest.mark.clause("AGR-08")
async def test_three_retries_after_one_two_and_four_seconds(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=AGR, plan=["execute-agent"])
        waits = []
        for _ in range(3):
            await w.fail(await w.claim(), "SOMETHING")
            row = await w.step(run, "execute-agent")
            ended = (await w.attempts(run))[-1].ended_at
            assert row.eligible_at is not None
            assert ended is not None
            waits.append((row.eligible_at - ended) / us(1))
            await w.later(waits[-1] + 0.1).sweep()
        assert waits == [1, 2, 4]
        await w.fail(await w.claim(), "SOMETHING")
        assert await w.status(run) == "failed"
        assert len(await w.attempts(run)) == 4


@pytest.mark.clause("AGR-08")
async def test_a_step_has_120_seconds_and_a_run_600(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=AGR, plan=["execute-agent"])
        lease = await w.claim()
        for moment in ("10:00:20", "10:00:40", "10:01:00", "10:01:20", "10:01:40"):
            await w.at(moment).beat(lease)
        assert lease.timeout_at is not None
        (attempt,) = await w.attempts(run)
        assert lease.timeout_at - attempt.granted_at == us(120)
        await w.at("10:01:58").sweep()
        assert (await w.step(run, "execute-agent")).state == "running"
        await w.at("10:02:01").sweep()  # this try is over; the next one waits for its backoff of a second
        row = await w.step(run, "execute-agent")
        assert (row.state, row.last_error) == ("retry_wait", "STEP_TIMED_OUT")
        async with w.refuses("LEASE_STALE"):
            await w.complete(lease)
        assert (await w.run(run)).deadline_at == attempt.granted_at + us(600)
        await w.at("10:09:59").sweep()
        assert await w.status(run) == "running"
        await w.at("10:10:01").sweep()
        assert (await w.run(run)).reason == "RUN_TIMED_OUT"


# ------------------------------------------------------------------------------------ the same on every store


async def _history_of_a_long_run(place: Place) -> list[object]:
    """One run that fails, loses a worker, waits and is canceled; its history without ids and times."""
    history: list[object] = []
    async with World(place, orchestrators=2) as w:
        other = w.through(1)
        run = await w.create(profile=AGR, plan=["a", gate(), "b"], input=b"{}")
        await w.fail(await w.claim("bob"), "NLM_UNAVAILABLE")
        await w.later(1.1).sweep()
        lost = await other.claim("carol", ack=False)
        await w.ack(lost)
        await w.later(31).sweep()
        lease = await w.claim("bob")
        await other.checkpoint(lease, "first", output=b"1")
        await w.complete(lease, b"done")
        await other.approve(run)
        last = await other.claim("carol")
        reply = await other.wait(last, "sign", event=c.WaitSpec(event="signed", within_seconds=60))
        assert reply.no is not None
        await other.suspend(last, reply.no)
        await w.deliver(run, "signed", payload=b"yes")
        last = await w.claim("bob")
        await other.cancel(run)
        await w.complete(last, b"too late")
        for event in await w.events(run):
            body = decode_body(event)
            history.append(
                (event.kind, event.actor, event.initiator, body.get("edges"), sorted(body.get("set", {})))
            )
        history.append(await w.states(run))
        history.append([(row.state, row.lease, row.owner) for row in await w.attempts(run)])
        history.append(run_words(AGR, await w.events(run)))
    return history


async def test_every_store_records_the_same_history(tmp_path: Path, postgres_place: Place) -> None:
    on_sqlite = await _history_of_a_long_run(Place("sqlite", str(tmp_path / "world.db")))
    on_postgres = await _history_of_a_long_run(postgres_place)
    assert on_sqlite == on_postgres
    assert on_sqlite[-1] == ["requested", "queued", "running", "failed"]


async def test_every_transition_of_the_document_is_walked_on_this_store(place: Place) -> None:
    async with World(place) as w:
        done = await w.create(profile=AGR, plan=["a"])
        await w.work_off(done)
        failed = await w.create(profile=AGR, plan=["a"])
        await w.fail(await w.claim(), "INVALID_INPUT")
        lives = [run_words(AGR, await w.events(run)) for run in (done, failed)]
    assert set().union(*map(changes, lives)) == document(AGR, "run") - {("running", "running")}
