"""The clauses of Git With Intent, shown by runs under that profile."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.clock import us
from tenure.errors import CODES
from tenure.ids import run_text
from tenure.kernel import commands as c
from tenure.kernel import profiles
from tenure.kernel.history import decode_body, digest
from tests.conformance.world import BEGIN_US, Place, World, gate, pause, step
from tests.profile_words import changes, document, run_words

GWI = "git-with-intent"


async def take_every_transition(w: World) -> list[int]:
    """Runs that together take every transition of table 2.1, each run to its end before the next one starts."""
    runs = []

    async def new(*plan: str | c.StepSpec) -> int:
        runs.append(await w.create(profile=GWI, plan=plan or None))
        return runs[-1]

    # pending -> cancelled, and pending -> failed.
    await w.cancel(await new("a"))
    await w.plan_failed(await new())
    # running -> completed, -> failed, -> cancelled.
    await w.work_off(await new("a"))
    await new("a")
    await w.fail(await w.claim(), "TESTS_FAILED")
    run = await new("a")
    lease = await w.claim()
    await w.cancel(run)
    await w.cancel_ack(lease)
    # A gate: approved with a step after it, approved as the last step, rejected, canceled.
    run = await new("a", gate(), "b")
    await w.work_off(run)
    await w.approve(run)
    await w.work_off(run)
    run = await new("a", gate())
    await w.work_off(run)
    await w.approve(run)
    run = await new(gate(), "b")
    await w.reject(run)
    await w.cancel(await new(gate()))
    # An external event: with a step after it, as the last step, too late, canceled.
    run = await new(pause(event="merged"), "b")
    await w.deliver(run, "merged")
    await w.work_off(run)
    run = await new(pause(event="merged"))
    await w.deliver(run, "merged")
    await new(pause(event="merged", within_seconds=60))
    await w.later(61).sweep()
    await w.cancel(await new(pause(event="merged")))
    return runs


@pytest.mark.clause("GWI-01", "GWI-02")
async def test_runs_take_exactly_the_transitions_of_the_table_in_its_seven_states(place: Place) -> None:
    async with World(place) as w:
        lives = [run_words(GWI, await w.events(run)) for run in await take_every_transition(w)]
    assert set().union(*map(changes, lives)) == document(GWI, "run")
    assert {word for life in lives for word in life} == {
        "pending", "running", "awaiting_approval", "waiting_external", "completed", "failed", "cancelled",
    }  # fmt: skip
    assert {life[-1] for life in lives} == {"completed", "failed", "cancelled"}
    assert not {word for life in lives for word in life[:-1]} & {"completed", "failed", "cancelled"}
    resumed = {a for life in lives for a, b in changes(life) if b == "running"} - {"pending"}
    assert resumed == {"awaiting_approval", "waiting_external"}


async def bring_to(w: World, status: str) -> int:
    """A run with this status."""
    plans: dict[str, Any] = {
        "planning": None,
        "waiting_approval": [gate(), "b"],
        "waiting_external": [pause(event="merged"), "b"],
    }
    run = await w.create(profile=GWI, plan=plans.get(status, ["a", "b"]))
    if status in ("running", "retry_wait", "canceling"):
        lease = await w.claim()
        if status == "retry_wait":
            await w.fail(lease, "NETWORK")
        if status == "canceling":
            await w.cancel(run)
    assert await w.status(run) == status
    return run


OPEN = (
    "planning", "queued", "running", "waiting_approval", "waiting_external", "retry_wait", "canceling",
)  # fmt: skip


@pytest.mark.clause("GWI-02", "GWI-24")
@pytest.mark.parametrize("status", OPEN)
async def test_an_input_that_a_state_does_not_accept_is_refused(place: Place, status: str) -> None:
    async with World(place) as w:
        run = await bring_to(w, status)
        refused: list[c.Command] = [
            c.MarkReported(run_id=run),  # a run without an outcome cannot be reported
            c.SealRun(run_id=run),
            c.DeleteRun(run_id=run),
            c.ClaimStep(run_id=run, idx=1, by=c.Claimant("bob")),  # the step is not ready yet
        ]
        if status == "planning":
            refused += [c.AddSteps(run_id=run, plan=(c.StepSpec(name="z"),))]
            refused = [r for r in refused if not isinstance(r, c.ClaimStep)]
        if status != "waiting_external":
            refused += [c.EndWait(run_id=run)]
        if status == "canceling":
            refused += [c.AddSteps(run_id=run, plan=(c.StepSpec(name="z"),))]
        for command in refused:
            async with w.refuses("RUN_INVALID_TRANSITION"):
                await w.do(command)
        assert await w.status(run) == status


@pytest.mark.clause("GWI-02")
async def test_a_worker_cannot_acknowledge_a_cancel_that_was_not_requested(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile=GWI)
        async with w.refuses("RUN_INVALID_TRANSITION"):
            await w.cancel_ack(lease)


# ---------------------------------------------------------------------------------------------- context


async def test_every_transition_records_who_why_and_when(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(
            profile=GWI, plan=["a", gate(action="merge"), pause("ci", event="ci.green", source="github")]
        )
        await w.later(1).work_off(run)
        await w.later(1).approve(run, by="u_bob", reason=b"looks right")
        await w.later(1).deliver(run, "ci.green", "evt-7", source="github")
        await w.later(1).tell(c.UpdateMetadata, run, "u_alice", labels='{"x":1}')
        events = await w.events(run)

    assert [(e.kind, e.actor, e.initiator) for e in events] == [
        ("create", "u_alice", "user"),
        ("claim", "worker:bob", "system"),
        ("complete", "w_runner", "system"),
        ("decide_approval", "u_bob", "approval"),
        ("deliver_event", "webhook", "webhook"),
        ("metadata", "u_alice", "user"),
    ]
    assert [e.run_id for e in events] == [run] * len(events)
    assert [e.at for e in events] == sorted(e.at for e in events)
    asked = [e.cause for e in events if e.initiator in ("user", "approval", "webhook")]
    assert asked == ["cause-1", "cause-2", "cause-3", "cause-4"]


async def test_an_approval_stores_action_requester_decision_decider_time_and_reason(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=GWI, plan=["a", gate(action="merge to main", tier="high"), "b"])
        await w.work_off(run)
        (asked,) = (await w.noted(run, "complete"))["approval"]
        assert asked == {
            "no": 1, "action": "merge to main", "requested_by": "u_alice", "tier": "high", "people": 1,
        }  # fmt: skip

        await w.at("10:07:00").approve(run, by="u_bob", reason=b"reviewed")
        (decided,) = (await w.noted(run, "decide_approval"))["approval"]
        event = (await w.events(run))[-1]
        assert decided["action"] == "merge to main"
        assert decided["requested_by"] == "u_alice"
        assert decided["decision"] == "approved"
        assert decided["decided_by"] == "u_bob"
        assert decided["decided_at"] == event.at
        assert abs(event.at - (BEGIN_US + us(7 * 60))) < us(5)
        # The reason is a payload: the event names it by reference and salted digest.
        (row,) = await w.approvals(run)
        assert await w.body(run, row.reason_ref) == b"reviewed"
        (payload,) = await w.read("payload", run, row.reason_ref)
        assert decode_body(event)["payloads"] == {str(row.reason_ref): digest(payload.salt, b"reviewed")}
        assert b"reviewed" not in event.body


async def test_a_rejection_and_an_expiry_store_the_same_fields(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=GWI, plan=[gate(action="merge")])
        await w.reject(run, by="u_carol", reason=b"not on a Friday")
        (decided,) = (await w.noted(run, "decide_approval"))["approval"]
        assert (decided["decision"], decided["decided_by"]) == ("rejected", "u_carol")

        run = await w.create(profile=GWI, plan=[gate(action="merge", within_seconds=60)])
        await w.later(61).sweep()
        event = (await w.events(run))[-1]
        assert (event.kind, event.actor, event.initiator) == ("wait_over", "system:sweeper", "timeout")
        assert (await w.noted(run, "wait_over"))["expired"] == 1


async def test_an_external_wait_stores_type_source_id_expected_time_and_timeout(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(
            profile=GWI, plan=["a", pause("ci", event="ci.green", source="github", within_seconds=90)]
        )
        await w.work_off(run)
        (opened,) = (await w.noted(run, "complete"))["external"]
        at = (await w.events(run))[-1].at
        assert opened == {
            "no": 1, "event_type": "ci.green", "source": "github", "expected_at": at + us(90), "timeout_ms": 90_000,
        }  # fmt: skip
        await w.later(5).deliver(run, "ci.green", "evt-7", source="github")
        (came,) = (await w.noted(run, "deliver_event"))["external"]
        assert came == {"no": 1, "event_type": "ci.green", "source": "github", "event_id": "evt-7"}


@pytest.mark.parametrize("initiator", ["user", "system", "timeout", "policy", "webhook", "approval"])
async def test_each_initiator_is_stored_as_given(place: Place, initiator: c.Initiator) -> None:
    async with World(place) as w:
        run = await w.create(profile=GWI, plan=["a"])
        await w.do(
            c.RequestCancel(run_id=run, reason="BUDGET", context=c.Context("someone", initiator, "why-1"))
        )
        event = (await w.events(run))[-1]
        assert (event.actor, event.initiator, event.cause) == ("someone", initiator, "why-1")
        assert (await w.noted(run, "cancel"))["cancel_reason"] == "BUDGET"


# --------------------------------------------------------------------------------------------- terminal


async def end_as(w: World, status: str) -> int:
    """A run that ended with this status and, unless it succeeded, with an open gate."""
    if status == "failed":
        run = await w.create(profile=GWI, plan=[step("a"), independent_gate()])
        await w.fail(await w.claim(), "TESTS_FAILED")
    elif status == "succeeded":
        run = await w.create(profile=GWI, plan=["a"])
        await w.work_off(run)
    elif status == "canceled":
        run = await w.create(profile=GWI, plan=[step("a"), independent_gate()])
        await w.cancel(run)
    else:
        run = await w.create(
            profile=GWI, plan=[step("a"), independent_gate()], timeout_seconds=60, wall_clock=True
        )
        await w.later(61).sweep()
    assert await w.status(run) == status
    return run


def independent_gate() -> c.StepSpec:
    return c.StepSpec(name="gate", kind="approval", needs=())


@pytest.mark.clause("GWI-04", "GWI-24")
@pytest.mark.parametrize("status", ["succeeded", "failed", "canceled", "timed_out"])
async def test_a_terminal_run_is_final_but_its_metadata_may_change(place: Place, status: str) -> None:
    async with World(place) as w:
        run = await end_as(w, status)
        refused: list[c.Command] = [
            c.AddSteps(run_id=run, plan=(c.StepSpec(name="z"),)),
            c.ClaimStep(run_id=run, idx=0, by=c.Claimant("bob")),
            c.RevokeLease(run_id=run, idx=0, n=1),
            c.DeliverEvent(run_id=run, name="merged", event_id="e-1"),
            c.RequestCancel(run_id=run),
            c.CancelStep(run_id=run, name="a"),
            c.Pause(run_id=run),
            c.Unpause(run_id=run),
            c.EndWait(run_id=run),
        ]
        if status != "succeeded":
            refused += [c.DecideApproval(run_id=run, no=1, approver="u_bob", approve=True)]
            refused += [c.ReviseApproval(run_id=run, no=1, digest="")]
        for command in refused:
            async with w.refuses("RUN_TERMINAL_STATE"):
                await w.do(command)

        before = await w.run(run)
        await w.later(5).tell(c.UpdateMetadata, run, labels='{"kept":"yes"}', metadata='{"note":1}')
        after, spec = await w.run(run), await w.spec(run)
        assert (spec.labels, spec.metadata) == ('{"kept":"yes"}', '{"note":1}')
        assert (after.status, after.finished_at, after.reason) == (status, before.finished_at, before.reason)


@pytest.mark.clause("GWI-06")
async def test_end_and_duration_agree_with_the_start(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=GWI, plan=["a"])
        lease = await w.at("10:00:10").claim()
        assert (await w.run(run)).finished_at is None
        await w.at("10:00:45").complete(lease)
        row = await w.run(run)
        assert row.started_at is not None
        assert row.finished_at is not None
        assert row.duration_us == row.finished_at - row.started_at
        assert round(row.duration_us / us(1)) == 35
        assert row.created_at < row.started_at < row.finished_at

        never_started = await w.create(profile=GWI, plan=["a"])
        await w.at("10:02:00").cancel(never_started)
        row = await w.run(never_started)
        assert row.started_at is None
        assert row.finished_at is not None
        assert row.duration_us == row.finished_at - row.created_at


# --------------------------------------------------------------------------------------------- recovery


async def test_after_a_restart_a_running_run_resumes_from_its_checkpoint(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile=GWI)
        await w.checkpoint(lease, "clone", output=b"at /tmp/x")
        await w.crash()
        await w.at("10:04:59").sweep()
        assert (await w.step(lease.run_id)).state == "running"  # nothing has detected the crash yet
        await w.at("10:05:01").sweep()
        assert await w.status(lease.run_id) == "running"
        again = await w.claim("carol")
        assert (again.run_id, again.n, again.recorded) == (lease.run_id, 2, True)
        (kept,) = await w.read("checkpoints_of", lease.run_id)
        assert await w.body(lease.run_id, kept.output_ref) == b"at /tmp/x"
        await w.complete(again)
        assert await w.status(lease.run_id) == "succeeded"


@pytest.mark.clause("GWI-24")
async def test_after_a_restart_a_running_run_without_a_checkpoint_fails(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile=GWI)
        await w.crash()
        await w.at("10:05:01").sweep()
        row = await w.run(lease.run_id)
        assert (row.status, row.reason) == ("failed", "RUN_ORPHANED")
        async with w.refuses("LEASE_STALE"):
            await w.complete(lease)


async def test_after_a_restart_a_run_that_waits_for_a_person_is_unchanged(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=GWI, plan=[gate(), "b"])
        await w.crash()
        before = await w.bundle(run)
        await w.at("15:00:00").sweep()
        assert await w.bundle(run) == before
        await w.approve(run)
        await w.work_off(run)
        assert await w.status(run) == "succeeded"


async def test_after_a_restart_an_external_wait_fails_past_its_timeout_and_continues_before_it(
    place: Place,
) -> None:
    async with World(place) as w:
        short = await w.create(profile=GWI, plan=[pause(event="merged", within_seconds=600), "b"])
        long = await w.create(profile=GWI, plan=[pause(event="merged", within_seconds=7200), "b"])
        await w.crash()
        await w.at("10:10:01").sweep()
        row = await w.run(short)
        assert (row.status, row.reason) == ("failed", "WAIT_EXPIRED")
        assert await w.status(long) == "waiting_external"
        await w.deliver(long, "merged")
        await w.work_off(long)
        assert await w.status(long) == "succeeded"


async def test_a_resumable_checkpoint_is_skipped_and_its_output_used(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile=GWI)
        await w.checkpoint(lease, "scan", output=b"42 files", idempotent=False, resumable=True)
        await w.at("10:05:01").sweep()
        again = await w.claim("carol")
        (kept,) = await w.read("checkpoints_of", again.run_id)
        assert (kept.state, await w.body(again.run_id, kept.output_ref)) == ("done", b"42 files")
        async with w.refuses("CHECKPOINT_CONFLICT"):  # the checkpoint exists and is not recorded again
            await w.checkpoint(again, "scan", output=b"43 files")
        await w.complete(again)
        assert await w.status(again.run_id) == "succeeded"


async def test_an_idempotent_checkpoint_that_is_not_resumable_is_replayed(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile=GWI)
        await w.checkpoint(lease, "format", output=b"one", idempotent=True, resumable=False)
        await w.at("10:05:01").sweep()
        again = await w.claim("carol")
        await w.checkpoint(again, "format", output=b"two", idempotent=True, resumable=False)
        (kept,) = await w.read("checkpoints_of", again.run_id)
        assert (kept.n, await w.body(again.run_id, kept.output_ref)) == (2, b"two")
        assert (await w.run(again.run_id)).steps_done == 1
        await w.complete(again)


@pytest.mark.clause("GWI-24")
@pytest.mark.parametrize("state", ["started", "done"])
async def test_a_step_that_can_be_neither_skipped_nor_repeated_fails_the_run(
    place: Place, state: str
) -> None:
    async with World(place) as w:
        lease = await w.begin(profile=GWI)
        await w.checkpoint(lease, "scan")
        await w.checkpoint(lease, "open a pull request", state=state, idempotent=False, resumable=False)
        await w.at("10:05:01").sweep()
        row = await w.run(lease.run_id)
        assert (row.status, row.reason) == ("failed", "RUN_RESUME_FAILED")


# ---------------------------------------------------------------------------------------------- orphans


async def test_a_heartbeat_every_30_seconds_keeps_a_run_from_being_orphaned(place: Place) -> None:
    timing = profiles.get(GWI).timing
    assert (timing.heartbeat_seconds, timing.lease_seconds) == (30, 300)
    async with World(place) as w:
        lease = await w.begin(profile=GWI)
        assert lease.heartbeat_seconds == 30
        for _ in range(25):  # twelve and a half minutes
            await w.later(30).beat(lease)
            await w.sweep()
        assert [row.state for row in await w.attempts(lease.run_id)] == ["running"]
        await w.complete(lease)
        assert await w.status(lease.run_id) == "succeeded"


@pytest.mark.clause("GWI-24")
async def test_a_crash_orphans_the_run_five_minutes_after_its_last_heartbeat(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile=GWI)
        await w.at("10:00:30").beat(lease)
        await w.crash()  # the owner and its orchestrator are gone; another process sweeps
        await w.at("10:05:29").sweep()
        assert await w.status(lease.run_id) == "running"
        await w.at("10:05:31").sweep()
        row = await w.run(lease.run_id)
        assert (row.status, row.reason) == ("failed", "RUN_ORPHANED")
        assert (await w.noted(lease.run_id, "lease_expired"))["orphaned"]["step"] == 0


async def test_a_partition_orphans_the_run_and_its_owner_is_refused_when_it_returns(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin("island", profile=GWI)
        await w.checkpoint(lease, "scan", output=b"42 files")
        await w.at("10:05:01").sweep()  # its heartbeats never arrived
        mainland = await w.claim("mainland")
        for late in (w.beat, w.complete):
            async with w.refuses("LEASE_STALE"):
                await late(lease)
        assert mainland.recorded
        await w.complete(mainland)
        assert await w.status(lease.run_id) == "succeeded"
        assert [row.state for row in await w.attempts(lease.run_id)] == ["stale", "succeeded"]


async def test_an_out_of_memory_kill_orphans_the_run_and_the_worker_may_resume_it(place: Place) -> None:
    async with World(place) as w:
        killed = await w.begin("bob", profile=GWI)
        await w.checkpoint(killed, "scan")
        await w.at("10:05:01").sweep()
        reborn = await w.claim("bob")  # the same worker name, a new lease: the fence refuses the old one
        assert reborn.n == killed.n + 1
        async with w.refuses("LEASE_STALE"):
            await w.checkpoint(killed, "edit")
        await w.complete(reborn)
        assert await w.status(killed.run_id) == "succeeded"


@pytest.mark.clause("GWI-21")
async def test_the_sweeper_finds_silent_leases_longest_silent_first(place: Place) -> None:
    """Due timers name the silent leases. A heartbeat postpones the timer of its lease."""

    async def silent() -> list[tuple[str, int]]:
        return [(timer.entity, timer.run_id) for timer in await w.read("due", w.now, 9)]

    async with World(place) as w:
        ended = await w.begin("one", profile=GWI)
        beating = await w.at("10:00:10").begin("two", profile=GWI)
        first = await w.at("10:00:20").begin("three", profile=GWI)
        await w.complete(ended)
        await w.at("10:05:05").beat(beating)
        assert await silent() == [], (
            "the first lease has ended, and the others had a heartbeat within five minutes"
        )
        await w.at("10:05:11").sweep()
        assert await silent() == []
        assert await w.status(beating.run_id) == "running"
        w.at("10:10:06")
        assert await silent() == [("step", first.run_id), ("step", beating.run_id)]
        await w.sweep()
        assert {await w.status(lease.run_id) for lease in (first, beating)} == {"failed"}


# ------------------------------------------------------------------------------------------------ codes


@pytest.mark.clause("GWI-24")
async def test_a_key_used_for_another_request_is_a_conflict(place: Place) -> None:
    async with World(place) as w:
        first = await w.created(profile=GWI, plan=["a"], idempotency_key="k", request_hash=b"one")
        same = await w.created(profile=GWI, plan=["a"], idempotency_key="k", request_hash=b"one")
        assert (same.run_id, same.again) == (first.run_id, True)
        async with w.refuses("IDEMPOTENCY_CONFLICT") as refusal:
            await w.created(profile=GWI, plan=["a"], idempotency_key="k", request_hash=b"two")
        assert refusal.value.data["run_id"].startswith("run_2026-01-05_")
        await w.work_off(first.run_id)
        async with w.refuses("IDEMPOTENCY_KEY_REUSED"):
            await w.created(profile=GWI, plan=["a"], idempotency_key="k", request_hash=b"two")
        assert await w.run_ids() == [first.run_id]


@pytest.mark.clause("GWI-24")
@pytest.mark.parametrize(("end", "hours"), [("succeeded", 24), ("failed", 1)])
async def test_a_key_with_an_expired_response_names_its_run_and_creates_no_other(
    place: Place, end: str, hours: int
) -> None:
    async with World(place) as w:
        same = {"profile": GWI, "plan": ["a"], "source": "github_webhook", "idempotency_key": "delivery-1"}
        run = await w.create(**same)
        lease = await w.claim()
        await (w.complete(lease) if end == "succeeded" else w.fail(lease, "TESTS_FAILED"))
        again = await w.later(hours * 3600 - 5).created(**same)
        assert (again.run_id, again.again) == (run, True)
        async with w.refuses("IDEMPOTENCY_EXPIRED") as refusal:
            await w.later(10).created(**same)
        assert refusal.value.data["run_id"] == run_text(run)
        assert await w.run_ids() == [run]


def test_every_code_of_the_appendix_is_known_to_api_clients() -> None:
    assert {
        code: CODES[code].status
        for code in (
            "RUN_INVALID_TRANSITION", "RUN_TERMINAL_STATE", "RUN_ORPHANED", "RUN_RESUME_FAILED",
            "IDEMPOTENCY_CONFLICT", "IDEMPOTENCY_EXPIRED",
        )
    } == {
        "RUN_INVALID_TRANSITION": 409, "RUN_TERMINAL_STATE": 409, "RUN_ORPHANED": 500, "RUN_RESUME_FAILED": 500,
        "IDEMPOTENCY_CONFLICT": 409, "IDEMPOTENCY_EXPIRED": 409,
    }  # fmt: skip
