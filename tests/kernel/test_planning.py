"""Planning as a leased step: who may plan, what a plan does, and how planning ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel import profiles
from tenure.kernel.costs import Cost
from tenure.kernel.run_rows import PLAN_IDX, StepRow
from tenure.kernel.snapshot import AdmissionFacts
from tests.kernel.story import PLANNER, Story

PLAN = c.PLAN_STEP_NAME


def planning(**how: Any) -> Story:
    """A run in planning whose plan step can be claimed."""
    return Story(**{"profile": "delta-ci", "plan": None} | how)


def held(**how: Any) -> Story:
    """A run in planning whose plan step is leased."""
    story = planning(**how)
    story.claim(PLAN)
    return story


def planner(story: Story) -> StepRow:
    return story.snap.steps[PLAN_IDX]


def counts(story: Story) -> list[int]:
    run = story.run
    return [run.steps_total, run.steps_open, run.steps_ready, run.steps_live, run.steps_done, run.steps_bad]


def error(story: Story) -> bytes:
    return story.body(story.run.error_ref) or b""


def test_a_plan_step_is_leased_while_its_run_stays_in_planning_and_counts_nowhere() -> None:
    story = planning(input=b"the trigger")
    assert (story.status, planner(story).claimable, counts(story)) == ("planning", True, [0] * 6)
    lease = story.claim(PLAN, "w_planner")
    assert (lease.kind, lease.tool, lease.idx) == ("plan", "planner", PLAN_IDX)
    assert story.body(lease.input_ref) == b"the trigger"
    assert (story.status, story.run.started_at, counts(story)) == ("planning", None, [0] * 6)
    story.after(2).beat(PLAN)
    story.complete(PLAN, b"why", plan=(c.StepSpec(name="a"), c.StepSpec(name="b", needs=())))
    assert (story.status, planner(story).state, counts(story)) == ("queued", "succeeded", [2, 2, 2, 0, 0, 0])
    assert [story.step(name).idx for name in ("a", "b")] == [0, 1]
    assert story.kinds[-1] == "complete"
    assert story.run.output_ref is None, "what a planner says about its plan is not the run's output"


def test_a_plan_without_steps_is_a_run_with_nothing_to_do() -> None:
    story = planning()
    story.plan_ready()
    assert (story.status, counts(story)) == ("succeeded", [0] * 6)


def test_the_steps_of_a_plan_wait_for_admission_and_planning_does_not() -> None:
    story = held(not_before=Story.moment(60))
    story.plan_ready("a")
    assert (story.status, story.states) == ("queued", {"a": "pending"})
    story.at(61).sweep()
    assert story.states == {"a": "ready"}
    story = held(concurrency_key="k", facts=AdmissionFacts(holder_id=7))
    story.plan_ready("a")
    assert (story.run.admitted_at, story.run.wake_at) == (None, story.now)
    story.sweep()
    assert story.states == {"a": "pending"}


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (None, "completed without a plan"),
        ((c.StepSpec(name="a"), c.StepSpec(name="a")), "two steps named 'a'"),
        ((c.StepSpec(name="a", needs=("b",)),), "no step named 'b'"),
        ((c.StepSpec(name="a", needs=("b",)), c.StepSpec(name="b", needs=("a",))), "cycle"),
        ((PLANNER,), "kind 'plan'"),
        ((c.StepSpec(name=PLAN),), "reserved"),
        ((c.StepSpec(name="a", input=b"x" * 300_000),), "inline payloads"),
    ],
    ids=str,
)
def test_an_invalid_plan_is_the_planners_last_failure(plan: Any, problem: str) -> None:
    story = held()
    reply = story.complete(PLAN, plan=plan)
    assert (reply.state, reply.outcome) == ("refused", "PLAN_INVALID")
    assert (story.status, story.run.reason, planner(story).state) == ("failed", "PLAN_FAILED", "failed")
    assert problem.encode() in error(story)
    assert story.attempt(PLAN).lease == "completed"
    again = story.complete(PLAN, plan=plan, again=True)
    assert again == reply


def test_a_failed_planner_is_tried_again_until_its_last_failure_ends_the_run() -> None:
    story = held()
    story.fail(PLAN, "NETWORK_DOWN", message=b"no route")  # retried by the profile's rules
    assert (story.status, planner(story).state) == ("planning", "retry_wait")
    story.after(60).sweep()
    assert planner(story).claimable
    story.claim(PLAN)
    story.fail(PLAN, "NETWORK_DOWN", message=b"still no route")
    assert (story.status, story.run.reason) == ("failed", "PLAN_FAILED")
    assert error(story) == b"NETWORK_DOWN: still no route"
    assert planner(story).reason == "NETWORK_DOWN"


def test_an_error_that_is_not_transient_ends_planning_immediately() -> None:
    story = held()
    story.fail(PLAN, "CONFIG_INVALID", message=b"ci.yaml:3:1: no such key")
    assert (story.status, error(story)) == ("failed", b"CONFIG_INVALID: ci.yaml:3:1: no such key")


@pytest.mark.parametrize("state", ["ready", "leased", "running", "retry_wait"])
def test_planning_ends_with_its_time(state: str) -> None:
    story, end = planning(), round(profiles.get("delta-ci").timing.planning_seconds)
    if state == "retry_wait":
        story.at(end - 10)
    if state != "ready":
        story.claim(PLAN, ack=state != "leased")
    if state == "retry_wait":
        story.at(end - 1).fail(PLAN, retryable=True)
    while story.clock < end - 1:
        story.after(20)
        if state == "running":
            story.beat(PLAN)
    story.at(end + 1).sweep()
    assert (story.status, story.run.reason, error(story)) == (
        "failed",
        "PLAN_FAILED",
        b"the planner took too long",
    )
    if state == "running":
        with story.refuses("LEASE_STALE"):
            story.complete(PLAN, plan=())


def test_a_deadline_by_the_wall_clock_ends_planning_too() -> None:
    story = held(timeout_seconds=20, wall_clock=True)
    story.at(19).sweep()
    assert story.status == "planning"
    story.at(21).sweep()
    assert (story.status, story.run.reason) == ("failed", "PLAN_FAILED")


@pytest.mark.parametrize("profile", ["agent-runs", "delta-ci", "git-with-intent", "tenure"])
def test_a_lost_or_returned_lease_is_claimed_again(profile: str) -> None:
    story = held(profile=profile)
    story.release(PLAN)
    assert planner(story).claimable
    story.claim(PLAN)
    story.after(planner(story).lease_us / 1e6 + 1).tick("step", PLAN_IDX)
    assert (story.status, planner(story).claimable) == ("planning", True)
    story.claim(PLAN)
    with story.refuses("LEASE_STALE"):
        story.complete(PLAN, plan=(c.StepSpec(name="a"),), n=2)
    story.revoke(PLAN)
    assert (story.status, story.run.reason, error(story)[:9]) == ("failed", "PLAN_FAILED", b"STEP_LOST")


def test_a_planner_that_is_killed_too_often_says_so() -> None:
    story = planning()
    for _ in range(2):
        story.claim(PLAN)
        story.revoke(PLAN)
    assert error(story) == b"STEP_LOST: every worker that planned was lost"


def test_a_cancel_has_two_phases_while_somebody_plans() -> None:
    story = held()
    assert story.cancel() == {"status": "canceling", "again": False}
    assert story.beat(PLAN).cancel
    story.cancel_ack(PLAN)
    assert (story.status, planner(story).state) == ("canceled", "canceled")

    story = held()
    story.cancel()
    assert story.complete(PLAN, plan=(c.StepSpec(name="a"),)).late
    assert (story.status, story.states) == ("canceled", {})

    story = held()
    story.cancel()
    story.after(61).sweep()  # nobody answers within the grace period
    assert story.status == "canceled"

    story = planning()
    assert story.cancel() == {"status": "canceled", "again": False}


def test_a_paused_run_is_not_planned() -> None:
    story = planning()
    story.pause()
    with story.refuses("RUN_INVALID_TRANSITION"):
        story.claim(PLAN)
    story.unpause()
    story.claim(PLAN)
    story.pause()
    story.release(PLAN)
    assert not planner(story).claimable
    story.unpause()
    assert planner(story).claimable


def test_a_planner_whose_code_does_not_match_is_parked() -> None:
    story = held()
    story.park(PLAN)
    assert (story.status, planner(story).claimable, story.run.parked) == (
        "planning",
        False,
        "step two differs",
    )
    story.unpause()
    assert planner(story).claimable


def test_a_plan_step_only_plans() -> None:
    story = held()
    with story.refuses("RUN_INVALID_TRANSITION"):
        story.checkpoint(PLAN, "a")
    with story.refuses("RUN_INVALID_TRANSITION"):
        story.open_wait(PLAN, "w", event=c.WaitSpec(event="e"))
    with story.refuses("RUN_INVALID_TRANSITION"):
        story.suspend(PLAN, 1)
    with story.refuses("INVALID_INPUT"):
        story.complete(PLAN, plan=(), restart=c.StartChild(run_id=1, workflow="w"))
    with story.refuses("STEP_NOT_FOUND"):
        story.cancel_step(PLAN)
    with story.refuses("RUN_INVALID_TRANSITION"):
        story.add_steps("a")
    story.upload(PLAN)
    story.complete(PLAN, plan=())


def test_only_a_plan_step_completes_with_a_plan() -> None:
    story = Story(plan=["a"])
    story.claim("a")
    with story.refuses("INVALID_INPUT"):
        story.complete("a", plan=())


def test_costs_of_planning_count_against_the_budget() -> None:
    story = held(budget=5, currency="USD")
    reply = story.complete(PLAN, plan=(), spent=(Cost("openai", "gpt", micros=6, currency="USD"),))
    assert (reply.outcome, story.status, story.run.reason) == ("BUDGET_EXCEEDED", "failed", "BUDGET_EXCEEDED")


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ((PLANNER, c.StepSpec(name="a")), "single step"),
        ((msgspec.structs.replace(PLANNER, name="plan"),), "must be named"),
        ((msgspec.structs.replace(PLANNER, tool=""),), "must name the tool"),
        ((msgspec.structs.replace(PLANNER, needs=()),), "cannot be set"),
        ((msgspec.structs.replace(PLANNER, required=False),), "cannot be set"),
        ((msgspec.structs.replace(PLANNER, template=b"{}"),), "cannot be set"),
        ((msgspec.structs.replace(PLANNER, approval=c.ApprovalSpec()),), "cannot be set"),
        ((msgspec.structs.replace(PLANNER, retries=-1),), "must be 0"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_malformed_plan_step_creates_no_run(plan: Any, problem: str) -> None:
    with pytest.raises(TenureError, match="PLAN_INVALID") as refusal:
        Story(profile="delta-ci", plan=plan)
    assert problem in str(refusal.value.details)


def test_a_worker_of_the_creating_process_may_begin_to_plan_at_once() -> None:
    story = planning(eager=c.Claimant("w_here"), not_before=Story.moment(60))
    assert story.created.lease is not None
    assert (story.created.lease.kind, story.status) == ("plan", "planning")
