"""The clauses of Delta CI, shown by runs under that profile."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.clock import us
from tenure.kernel import commands as c
from tenure.kernel import profiles
from tenure.kernel.history import decode_body
from tenure.store.port import Save, Transaction
from tests.conformance.world import Place, World, step
from tests.profile_words import changes, document, edges, lives, run_words, step_words, table

DCI = "delta-ci"


async def take_every_run_transition(w: World) -> list[int]:
    """Runs that together take the transitions 1 to 11."""
    runs = []

    async def planned(*plan: str | c.StepSpec, **how: Any) -> int:
        runs.append(await w.create(profile=DCI, plan=None, **how))
        if plan:
            await w.plan_ready(runs[-1], *plan)
        return runs[-1]

    await w.work_off(await planned("build"))
    await planned("build")
    await w.fail(await w.claim(), "COMPILE_ERROR")
    await w.plan_failed(await planned())
    await w.cancel(await planned("build"))
    run = await planned("build")
    lease = await w.claim()
    await w.cancel(run)
    await w.cancel_ack(lease)
    await planned("build", timeout_seconds=30)
    await w.claim()
    await w.later(31).sweep()
    for run in runs:
        await w.report(run)
    return runs


@pytest.mark.clause("DCI-01")
async def test_runs_take_exactly_the_transitions_1_to_12_each_with_its_owner(place: Place) -> None:
    async with World(place) as w:
        histories = [await w.events(run) for run in await take_every_run_transition(w)]
        outcomes = {(await w.run(events[0].run_id)).status for events in histories}
    words = [run_words(DCI, events) for events in histories]
    shown = set().union(*map(changes, words))
    assert shown == document(DCI, "run")
    assert {word for life in words for word in life} == set(profiles.get(DCI).run.states)
    assert {life[-1] for life in words} == {"REPORTED"}
    assert outcomes == {
        "succeeded",
        "failed",
        "canceled",
        "timed_out",
    }  # the outcome is kept when the word is REPORTED

    taken = [edge for events in histories for edge in edges(events) if edge.machine == "run"]
    assert {edge.owner for edge in taken} == {"orchestrator"}
    reported = [decode_body(events[-1])["context"]["reported"] for events in histories]
    assert {note["owner"] for note in reported} == {"status_reporter"}
    owners = {pair: row.owner for row in profiles.get(DCI).run.indirect for pair in row.pairs()}
    assert set(owners.values()) == {"Status Reporter"}


@pytest.mark.clause("DCI-01")
async def test_a_reported_run_is_reported_once_and_never_changes_again(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["build"])
        async with w.refuses("RUN_INVALID_TRANSITION"):
            await w.report(run)
        await w.work_off(run)
        async with w.refuses("FORBIDDEN"):
            await w.tell(c.MarkReported, run)
        assert not (await w.tell(c.AttestReported, run))["again"]
        assert run_words(DCI, await w.events(run))[-1] == "SUCCESS", (
            "an attestation by a user does not change the shown status"
        )
        assert await w.report(run) == {"again": False}
        assert run_words(DCI, await w.events(run))[-1] == "REPORTED"
        before = await w.bundle(run)
        assert await w.report(run) == {"again": True}
        assert await w.bundle(run) == before
        async with w.refuses("RUN_TERMINAL_STATE"):
            await w.cancel(run)


async def test_a_planner_turns_the_trigger_into_jobs(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=None, trigger=c.Trigger("webhook", "push", "acme/site"))
        assert (await w.status(run), await w.steps(run), await w.claims()) == ("planning", [], [])
        await w.plan_ready(run, step("build"), step("lint"), step("test", "build"))
        assert await w.states(run) == {"build": "ready", "lint": "ready", "test": "pending"}
        assert ((await w.run(run)).steps_total, (await w.run(run)).steps_done) == (3, 0)
        async with w.refuses("RUN_INVALID_TRANSITION"):  # the run already has a plan
            await w.lease_planner(run)


@pytest.mark.parametrize("how", ["error", "timeout"])
async def test_a_planner_that_fails_or_takes_too_long_fails_the_run(place: Place, how: str) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=None)
        if how == "error":
            await w.plan_failed(run, "PLAN_FAILED", b"no such file: ci.yml")
        else:
            await w.at("10:29:59").sweep()
            assert await w.status(run) == "planning"
            await w.at("10:30:01").sweep()
        row = await w.run(run)
        assert (row.status, row.reason) == ("failed", "PLAN_FAILED")
        assert (await w.body(run, row.error_ref) or b"").startswith(
            b"no such" if how == "error" else b"the planner"
        )
        assert run_words(DCI, await w.events(run)) == ["CREATED", "PLANNING", "PLAN_FAILED", "FAILED"]
        async with w.refuses("RUN_TERMINAL_STATE"):
            await w.lease_planner(run)


# ----------------------------------------------------------------------------------------- finalization


@pytest.mark.clause("DCI-03")
async def test_success_needs_every_required_job_and_no_other(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(
            profile=DCI, plan=[step("build"), step("flaky", required=False), step("docs", "flaky")]
        )
        build, flaky = await w.claims(limit=2)
        await w.fail(flaky, "TEST_FAILURE")
        assert await w.status(run) == "running"
        assert (await w.states(run))[
            "docs"
        ] == "ready"  # an allowed failure counts as done for the steps that need it
        await w.complete(build)
        await w.complete(await w.claim())
        assert run_words(DCI, await w.events(run))[-1] == "SUCCESS"
        assert await w.states(run) == {"build": "succeeded", "flaky": "failed", "docs": "succeeded"}


@pytest.mark.clause("DCI-03")
@pytest.mark.parametrize("how", ["required job", "planning", "timeout"])
async def test_a_run_fails_by_a_required_job_by_its_plan_or_by_its_timeout(place: Place, how: str) -> None:
    async with World(place) as w:
        if how == "planning":
            run = await w.create(profile=DCI, plan=None)
            await w.plan_failed(run)
        else:
            run = await w.create(
                profile=DCI, plan=[step("build"), step("lint"), step("test", "build")], timeout_seconds=40
            )
            build, lint = await w.claims(limit=2)
            if how == "timeout":
                await w.at("10:00:41").sweep()
                assert await w.states(run) == {"build": "canceled", "lint": "canceled", "test": "canceled"}
            else:
                await w.fail(build, "COMPILE_ERROR")
                # The same commit skips the dependents and revokes the sibling's lease.
                assert await w.states(run) == {"build": "failed", "lint": "canceled", "test": "skipped"}
            async with w.refuses("LEASE_STALE"):
                await w.complete(lint)
        assert run_words(DCI, await w.events(run))[-1] == ("TIMEOUT" if how == "timeout" else "FAILED")


@pytest.mark.clause("DCI-04", "DCI-11")
@pytest.mark.parametrize("how", ["acknowledged", "deadline", "lost"])
async def test_canceled_needs_a_request_and_an_ack_or_a_passed_deadline(place: Place, how: str) -> None:
    async with World(place) as w:
        plan = [c.StepSpec(name="build", lease_seconds=30 if how == "lost" else 600), step("test", "build")]
        run = await w.create(profile=DCI, plan=plan)
        lease = await w.claim()
        assert await w.cancel(run) == {"status": "canceling", "again": False}
        # Phase one: the queued job ends at once; the runner learns of the cancel at its next message.
        assert await w.states(run) == {"build": "canceling", "test": "canceled"}
        assert (await w.beat(lease)).cancel
        assert await w.claims("carol", limit=10) == []
        assert await w.cancel(run) == {"status": "canceling", "again": True}
        # Phase two: the runner acknowledges, the deadline passes, or the lease expires.
        if how == "acknowledged":
            await w.at("10:00:20").cancel_ack(lease)
        elif how == "deadline":
            await w.at("10:00:59").sweep()
            assert await w.status(run) == "canceling"
            await w.at("10:01:01").sweep()
        else:
            await w.at("10:00:31").sweep()
        row = await w.run(run)
        assert (row.status, row.reason) == ("canceled", "RUN_CANCELED")
        assert run_words(DCI, await w.events(run))[-2:] == ["CANCEL_REQUESTED", "CANCELED"]
        lease_word = lives(DCI, "lease", await w.events(run))[0][-1]
        assert lease_word == {"acknowledged": "CANCELED", "deadline": "REVOKED", "lost": "EXPIRED"}[how]
        async with w.refuses("LEASE_STALE"):  # a late Complete is refused
            await w.complete(lease)


@pytest.mark.clause("DCI-04")
async def test_a_result_after_the_request_is_kept_as_evidence_and_the_job_ends_canceled(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["build"])
        lease = await w.claim()
        await w.cancel(run)
        reply = await w.complete(lease, b"it was done, really")
        assert (reply.cancel, reply.late) == (True, True)
        assert await w.status(run) == "canceled"
        ref = (await w.noted(run, "complete"))["late_result"]
        assert await w.body(run, ref) == b"it was done, really"
        assert (await w.step(run, "build")).output_ref is None
        assert lives(DCI, "lease", await w.events(run)) == [["GRANTED", "ACTIVE", "COMPLETED"]]


@pytest.mark.clause("DCI-11")
async def test_a_run_without_a_lease_is_canceled_at_once_and_only_once(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["build", "test"])
        assert await w.cancel(run) == {"status": "canceled", "again": False}
        assert run_words(DCI, await w.events(run)) == [
            "CREATED", "PLANNING", "QUEUED", "CANCEL_REQUESTED", "CANCELED",
        ]  # fmt: skip
        assert await w.claims() == []
        async with w.refuses("RUN_TERMINAL_STATE"):
            await w.cancel(run)


@pytest.mark.clause("DCI-05")
async def test_a_newer_run_for_the_same_ref_supersedes_the_older_ones(place: Place) -> None:
    async with World(place) as w:
        same = {"profile": DCI, "plan": ["build"], "concurrency_key": "acme/site@main"}
        first = await w.create(**same)
        lease = await w.claim()
        second = await w.create(**same, concurrency_mode="supersede")
        await w.settle()
        assert (await w.beat(lease)).cancel
        assert await w.status(second) == "queued"
        assert await w.claims() == []  # one run at a time: the older one has not stopped yet
        await w.cancel_ack(lease)
        await w.settle()
        row = await w.run(first)
        assert (row.status, row.reason) == ("canceled", "SUPERSEDED")
        assert (await w.claim()).run_id == second
        # A third run supersedes the running one, and no run of another ref.
        other = await w.create(profile=DCI, plan=["build"], concurrency_key="acme/site@release")
        third = await w.create(**same, concurrency_mode="supersede")
        await w.settle()
        assert await w.status(second) == "canceling"
        assert [await w.status(run) for run in (other, third)] == ["queued", "queued"]


@pytest.mark.clause("DCI-05")
async def test_without_the_supersede_policy_the_newer_run_waits(place: Place) -> None:
    async with World(place) as w:
        same = {"profile": DCI, "plan": ["build"], "concurrency_key": "deploy"}
        runs = [await w.create(**same) for _ in range(3)]
        for run in runs:
            (lease,) = await w.claims(limit=10)
            assert lease.run_id == run
            await w.complete(lease)
            await w.settle()
        assert [await w.status(run) for run in runs] == ["succeeded"] * 3


@pytest.mark.clause("DCI-05")
async def test_the_poll_finds_a_key_whose_wake_up_was_lost(place: Place) -> None:
    async with World(place) as w:
        same = {"profile": DCI, "plan": ["build"], "concurrency_key": "deploy"}
        first, second, third = [await w.create(**same) for _ in range(3)]
        await complete_and_lose_the_wake_up(w, first)
        await w.at("10:00:04").sweep()
        assert await w.claims() == []  # the wake-up was lost and the poll is not due yet
        await w.at("10:00:06").sweep()  # the first run in line polls every five seconds
        await complete_and_lose_the_wake_up(w, second)
        await w.at("10:00:29").sweep()
        assert await w.claims() == []
        await w.at("10:00:31").sweep()  # the other runs in line poll every thirty seconds
        assert (await w.claim()).run_id == third


async def complete_and_lose_the_wake_up(w: World, run: int) -> None:
    """Complete the run, which frees its key, and delete the outbox rows that would wake the next run."""
    lease = await w.claim()
    assert lease.run_id == run
    await w.complete(lease)
    await w.crash()
    owed = await w.read("outbox_of", run)
    assert [row.topic for row in owed] == ["key_freed"]

    def lose() -> Transaction[None]:
        yield Save(delivered=[(row.run_id, row.seq, row.part) for row in owed])

    await w.store.transact(lose)


# ------------------------------------------------------------------------------------------------- jobs


@pytest.mark.clause("DCI-07")
async def test_an_attempt_passes_leased_starting_running_uploading_and_succeeded(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["build"])
        lease = await w.claim(ack=False)
        shown = ["CREATED", "QUEUED", "LEASED"]
        for say, word in (
            (w.ack, "STARTING"),
            (w.beat, "RUNNING"),  # the first heartbeat
            (w.upload, "UPLOADING"),
            (w.complete, "SUCCEEDED"),
        ):
            assert lives(DCI, "attempt", await w.events(run)) == [shown]
            await say(lease)
            shown.append(word)
        events = await w.events(run)
        assert lives(DCI, "attempt", events) == [shown]
        assert step_words(DCI, events) == shown
        owners = {(e.state, e.next): e.owner for e in edges(events) if e.machine == "attempt"}
        assert owners.pop(("running", "uploading")) == "runner"
        assert set(owners.values()) == {"orchestrator"}


@pytest.mark.clause("DCI-07")
async def test_the_first_heartbeat_starts_the_work_and_later_ones_only_extend(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["build"])
        lease = await w.claim(ack=False)
        async with w.refuses("LEASE_NOT_ACTIVE"):
            await w.beat(lease)
        await w.ack(lease)
        await w.later(5).beat(lease, progress="compiling")
        assert (await w.step(run, "build")).state == "running"
        version = (await w.run(run)).version
        await w.later(5).beat(lease, progress="linking")
        (attempt,) = await w.attempts(run)
        assert (attempt.progress, (await w.run(run)).version) == ("linking", version)
        await w.complete(lease)


async def take_every_job_transition(w: World) -> list[int]:
    """Runs of one job that together take the transitions 1 to 11 of the job machine."""
    runs = []

    async def job(states: str, **how: Any) -> tuple[int, Any]:
        runs.append(await w.create(profile=DCI, plan=[c.StepSpec(name="build", timeout_seconds=100, **how)]))
        lease = await w.claim(ack=False)
        for name in states.split():
            await {"starting": w.ack, "running": w.beat, "uploading": w.upload}[name](lease)
        return runs[-1], lease

    _, lease = await job("starting running uploading")
    await w.complete(lease)
    _, lease = await job("starting running")
    await w.fail(lease, "NETWORK")  # -> UPLOADING -> FAILED, then QUEUED
    await w.later(5.1).sweep()
    await w.fail(await w.claim(), "LINT")
    for states in ("", "starting", "starting running"):
        run, _ = await job(states)
        await w.later(61).sweep()  # the lease is lost
        await w.work_off(run)
    run, lease = await job("starting running", lease_seconds=1000)
    await w.later(101).sweep()
    await w.later(5.1).sweep()
    await w.work_off(run)  # TIMED_OUT -> QUEUED
    for states in ("", "starting", "starting running"):
        run, lease = await job(states)
        await w.cancel(run)
        if states:
            await w.cancel_ack(lease)
        else:
            await w.later(61).sweep()
    runs.append(await w.create(profile=DCI, plan=["build"]))
    await w.cancel(runs[-1])
    return runs


@pytest.mark.clause("DCI-07", "DCI-09")
async def test_jobs_attempts_and_leases_take_their_transitions_and_no_others(place: Place) -> None:
    async with World(place) as w:
        histories = [await w.events(run) for run in await take_every_job_transition(w)]
        run = await w.create(profile=DCI, plan=["build"])
        await w.revoke(await w.claim(ack=False))
        await w.revoke(await w.claim())
        histories.append(await w.events(run))
    shown = set().union(*(changes(step_words(DCI, events)) for events in histories))
    assert document(DCI, "step") <= shown <= table(DCI, "step")

    attempts = [life for events in histories for life in lives(DCI, "attempt", events)]
    shown = set().union(*map(changes, attempts))
    # Transitions 7 and 11 start a new attempt. The job's words above show them.
    next_one = {(a, "QUEUED") for a in ("LEASED", "STARTING", "RUNNING", "FAILED", "TIMED_OUT")}
    assert document(DCI, "attempt") - next_one <= shown <= table(DCI, "attempt")
    assert {word for life in attempts for word in life} == set(profiles.get(DCI).attempt.states)

    leases = [life for events in histories for life in lives(DCI, "lease", events)]
    assert set().union(*map(changes, leases)) == document(DCI, "lease")
    assert {word for life in leases for word in life} == {
        "GRANTED", "ACTIVE", "EXPIRED", "REVOKED", "COMPLETED", "CANCELED",
    }  # fmt: skip


@pytest.mark.clause("DCI-08")
async def test_a_job_succeeds_when_one_attempt_does_and_fails_with_the_last(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["unit-tests"])
        await w.fail(await w.claim(), "FLAKY_TEST")
        assert await w.status(run) == "retry_wait"
        await w.later(5.1).sweep()
        await w.complete(await w.claim())
        assert (await w.step(run, "unit-tests")).state == "succeeded"
        assert [row.state for row in await w.attempts(run)] == ["failed", "succeeded"]

        run = await w.create(profile=DCI, plan=["unit-tests"])
        for wait in (5.1, 10.1, 0):
            await w.fail(await w.claim(), "FLAKY_TEST")
            await w.later(wait).sweep()
        assert (await w.step(run, "unit-tests")).state == "failed"
        assert [row.state for row in await w.attempts(run)] == ["failed"] * 3

        run = await w.create(profile=DCI, plan=["unit-tests"])
        lease = await w.claim()
        await w.cancel(run)
        assert (await w.step(run, "unit-tests")).state == "canceling"
        await w.cancel_ack(lease)
        assert (await w.step(run, "unit-tests")).state == "canceled"


@pytest.mark.clause("DCI-09")
async def test_a_lease_can_be_revoked_and_the_job_is_queued_again(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["build"])
        lease = await w.claim("bob")
        assert await w.revoke(lease) == {"state": "ready"}
        async with w.refuses("LEASE_STALE"):
            await w.complete(lease)
        async with w.refuses("LEASE_STALE"):
            await w.revoke(lease)
        again = await w.claim("carol")
        assert again.n == 2
        await w.complete(again)
        assert lives(DCI, "lease", await w.events(run)) == [
            ["GRANTED", "ACTIVE", "REVOKED"],
            ["GRANTED", "ACTIVE", "COMPLETED"],
        ]


# ---------------------------------------------------------------------------------------------- fencing


async def test_complete_and_cancel_ack_count_only_on_an_active_lease(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["build"])
        lease = await w.claim(ack=False)
        for early in (w.complete, w.fail, w.upload):
            async with w.refuses("LEASE_NOT_ACTIVE"):
                await early(lease)
        await w.cancel(run)
        async with w.refuses("LEASE_NOT_ACTIVE"):
            await w.cancel_ack(lease)
        assert (await w.ack(lease)).cancel
        await w.cancel_ack(lease)
        assert await w.status(run) == "canceled"


@pytest.mark.parametrize("how", ["expired", "revoked"])
async def test_a_message_on_an_ended_lease_is_stale_and_changes_nothing(place: Place, how: str) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["build"])
        old = await w.claim("bob")
        if how == "expired":
            await w.at("10:01:01").sweep()
        else:
            await w.revoke(old)
        new = await w.claim("bob")  # the same worker name: the fence distinguishes the two leases
        (live,) = [row for row in await w.attempts(run) if row.lease in ("granted", "active")]
        assert live.n == new.n == 2
        messages: list[tuple[type[c.LeaseCommand], dict[str, Any]]] = [
            (c.AckLease, {}), (c.Heartbeat, {}), (c.BeginUpload, {}), (c.RecordCheckpoint, {"name": "x"}),
            (c.Complete, {}), (c.Fail, {}), (c.Release, {}), (c.Park, {"why": "x"}), (c.AckCancel, {}),
            (c.OpenWait, {"label": "x", "until": w.now}), (c.Suspend, {"waits": (1,)}),
        ]  # fmt: skip
        for message, fields in messages:
            for _ in range(2):  # sent twice, refused twice, recorded once
                async with w.refuses("LEASE_STALE") as refusal:
                    await w.say(message, old, **fields)
                assert refusal.value.data["lease"] == how
        (stale,) = [size.rows for size in await w.read("sizes") if size.table == "stale_message"]
        assert stale == len(messages)
        await w.complete(new)
        assert await w.status(run) == "succeeded"


# ---------------------------------------------------------------------------------------------- retries


@pytest.mark.parametrize(
    ("code", "retried"),
    [
        ("NETWORK_RESET", True), ("INFRA_NODE_LOST", True), ("RUNNER_STARTUP", True), ("CACHE_FETCH", True),
        ("REGISTRY_FETCH", True), ("FLAKY_TEST", True), ("COMPILE_ERROR", False), ("TEST_FAILURE", False),
        ("LINT", False), ("SOMETHING_ELSE", False),
    ],
)  # fmt: skip
async def test_failures_are_classified_by_rules(place: Place, code: str, retried: bool) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["job"])
        await w.fail(await w.claim(), code)
        row = await w.step(run, "job")
        assert row.state == ("retry_wait" if retried else "failed")
        assert row.last_error == code
        assert await w.status(run) == ("retry_wait" if retried else "failed")


@pytest.mark.parametrize(
    "code", ["NETWORK_DOWN", "RUNNER_STARTUP_SANDBOX", "FLAKY_TEST_LOGIN", "STEP_TIMED_OUT"]
)
async def test_transient_failures_are_retried_as_the_job_says(place: Place, code: str) -> None:
    """A job's own number of retries and its own delays replace those of the profile; the rules still classify."""
    async with World(place) as w:
        backoff = c.BackoffSpec((7.0, 9.0), 0.0)
        job = c.StepSpec(name="job", retries=2, backoff=backoff, timeout_seconds=30, lease_seconds=300)
        run = await w.create(profile=DCI, plan=[job])
        for delay in (7, 9, None):
            lease = await w.claim()
            if code == "STEP_TIMED_OUT":
                await w.later(31).sweep()
            else:
                await w.fail(lease, code)
            row = await w.step(run, "job")
            assert row.last_error == code
            if delay is not None:
                ended = (await w.attempts(run))[-1].ended_at or 0
                assert (row.state, row.eligible_at) == ("retry_wait", ended + us(delay))
                await w.later(delay).sweep()
        assert (await w.status(run), (await w.step(run, "job")).attempt) == ("failed", 3)


@pytest.mark.clause("DCI-14")
async def test_a_retry_is_a_new_attempt_and_keeps_the_old_one_unchanged(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["job"])
        first = await w.claim("bob")
        await w.fail(first, "NETWORK", cost='{"minutes":2}')
        (ended,) = await w.attempts(run)
        await w.later(5.1).sweep()
        second = await w.claim("carol")  # published for dispatch
        assert (first.n, second.n) == (1, 2)
        await w.complete(second)
        kept, new = await w.attempts(run)
        assert kept == ended
        assert (kept.state, kept.reason, new.state) == ("failed", "NETWORK", "succeeded")
        async with w.refuses("LEASE_STALE"):
            await w.say(c.Complete, first)


# --------------------------------------------------------------------------------------------- timeouts


@pytest.mark.clause("DCI-15")
async def test_four_timeouts_each_an_explicit_transition(place: Place) -> None:
    timing = profiles.get(DCI).timing
    assert (timing.lease_seconds, timing.step_timeout_seconds) == (60, 3600)
    assert (timing.run_timeout_seconds, timing.cancel_grace_seconds) == (21600, 60)
    async with World(place) as w:
        # Lease TTL: no message for a minute.
        run = await w.create(profile=DCI, plan=["job"])
        await w.claim()
        await w.later(61).sweep()
        assert ("attempt", "running", "stale") in _taken(await w.events(run), "lease_expired")
        # Job timeout: heartbeats continue, but the job takes over an hour.
        lease = await w.claim()
        for _ in range(119):
            await w.later(30).beat(lease)
        await w.sweep()
        assert (await w.step(run, "job")).state == "running"
        await w.later(31).sweep()
        assert ("step", "running", "retry_wait") in _taken(await w.events(run), "step_timeout")
        assert ("attempt", "running", "timed_out") in _taken(await w.events(run), "step_timeout")
        # Run timeout: six hours after the start.
        row = await w.run(run)
        assert row.started_at is not None
        assert row.deadline_at == row.started_at + us(21600)
        await w.later(21600).sweep()
        assert ("run", "running", "timed_out") in _taken(await w.events(run), "time_out")
        # Cancel deadline: the runner never answers.
        run = await w.create(profile=DCI, plan=[c.StepSpec(name="job", lease_seconds=600)])
        await w.claim()
        await w.cancel(run)
        await w.later(61).sweep()
        assert ("attempt", "canceling", "canceled") in _taken(await w.events(run), "cancel_deadline")
        assert ("run", "canceling", "canceled") in _taken(await w.events(run), "cancel_deadline")


def _taken(events: list[Any], kind: str) -> list[tuple[str, str, str]]:
    return [(e.machine, e.state, e.next) for e in edges(events) if e.kind == kind]


# ------------------------------------------------------------------------------------------- duplicates


async def test_a_repeated_message_gets_the_first_answer_and_has_no_second_effect(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        run = await w.create(profile=DCI, plan=["job"])
        lease = await w.claim(ack=False)
        story: list[tuple[type[c.LeaseCommand], dict[str, Any]]] = [
            (c.AckLease, {}),
            (c.Heartbeat, {"progress": "half"}),
            (c.RecordCheckpoint, {"name": "one"}),
            (c.BeginUpload, {}),
            (c.Complete, {"output": b"done", "cost": '{"minutes":1}'}),
        ]
        for seq, (message, fields) in enumerate(story, start=1):
            first = await w.say(message, lease, seq=seq, **fields)
            before = await w.bundle(run)
            for n in (
                0,
                1,
            ):  # the runner lost the answer and repeats the message, to this process and to another
                again = await w.through(n).say(message, lease, seq=seq, **fields)
                if message is c.Heartbeat:
                    assert again.state == "ignored"
                else:
                    assert again == first, message.__name__
            assert await w.bundle(run) == before
        assert (await w.status(run), (await w.run(run)).steps_done) == ("succeeded", 2)


async def test_sequence_numbers_grow_and_late_messages_are_refused(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["job"])
        lease = await w.claim()
        await w.beat(lease, seq=5)
        assert (await w.beat(lease, seq=3)).state == "ignored"  # an old heartbeat is ignored
        async with w.refuses("MESSAGE_OUT_OF_ORDER"):
            await w.upload(lease, seq=4)
        async with w.refuses("MESSAGE_OUT_OF_ORDER"):
            await w.complete(lease, seq=5)  # another message type with a used number
        await w.complete(lease, seq=6)
        assert await w.status(run) == "succeeded"


async def test_the_history_of_a_job_is_stored_for_audits(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=["job"])
        lease = await w.claim(ack=False)
        for say in (w.ack, w.beat, w.upload, w.complete):
            await say(lease)
        assert await w.kinds(run) == ["create", "claim", "ack", "begin", "uploading", "complete"]


# ------------------------------------------------------------------------------------- rerun and cancel


@pytest.mark.clause("DCI-17")
async def test_a_rerun_is_a_new_run_attempt_for_the_same_trigger_linked_to_the_first(place: Place) -> None:
    async with World(place) as w:
        trigger = c.Trigger("webhook", "push:9c1f", "acme/site")
        first = await w.create(profile=DCI, plan=["build", "test"], trigger=trigger, input=b"sha")
        async with w.refuses("RUN_INVALID_TRANSITION"):
            await w.rerun(first)
        await w.fail(await w.claim(), "COMPILE_ERROR")
        second = await w.rerun(first)
        spec = await w.spec(second)
        assert (spec.rerun_of, spec.attempt_no, spec.trigger_ref) == (first, 2, "push:9c1f")
        assert (await w.run(second)).repo == "acme/site"
        assert await w.body(second, spec.input_ref) == b"sha"
        assert await w.states(second) == {"build": "ready", "test": "pending"}
        await w.work_off(second)
        assert [await w.status(run) for run in (first, second)] == ["failed", "succeeded"]
        third = await w.rerun(second)
        assert ((await w.spec(third)).rerun_of, (await w.spec(third)).attempt_no) == (second, 3)


@pytest.mark.clause("DCI-19")
async def test_a_single_job_is_canceled_by_hand_in_two_phases(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=[step("build"), step("bench", required=False)])
        build, bench = await w.claims(limit=2)
        assert await w.cancel_step(run, "bench") == {"state": "canceling", "again": False}
        assert await w.cancel_step(run, "bench") == {"state": "canceling", "again": True}
        assert (await w.beat(bench)).cancel
        assert not (await w.beat(build)).cancel
        assert await w.status(run) == "running"
        await w.cancel_ack(bench)
        assert await w.states(run) == {"build": "running", "bench": "canceled"}
        async with w.refuses("RUN_TERMINAL_STATE"):
            await w.cancel_step(run, "bench")
        async with w.refuses("STEP_NOT_FOUND"):
            await w.cancel_step(run, "nothing")
        await w.complete(build)
        assert await w.status(run) == "succeeded"  # the job was optional


@pytest.mark.clause("DCI-19")
async def test_a_single_job_with_a_dead_runner_is_canceled_at_its_deadline(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile=DCI, plan=[c.StepSpec(name="build", lease_seconds=600), "test"])
        lease = await w.claim()
        await w.cancel_step(run, "build")
        await w.later(59).sweep()
        assert (await w.step(run, "build")).state == "canceling"
        await w.later(2).sweep()
        # A required job that is canceled by itself fails the run; its dependents are skipped.
        assert await w.states(run) == {"build": "canceled", "test": "skipped"}
        assert ((await w.run(run)).status, (await w.run(run)).reason) == ("failed", "STEP_CANCELED")
        async with w.refuses("LEASE_STALE"):
            await w.complete(lease)


@pytest.mark.clause("DCI-19")
async def test_a_single_job_without_a_lease_is_canceled_at_once(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(
            profile=DCI, plan=[step("build"), step("bench", required=False), step("z", "bench")]
        )
        assert await w.cancel_step(run, "bench") == {"state": "canceled", "again": False}
        assert await w.states(run) == {"build": "ready", "bench": "canceled", "z": "ready"}
