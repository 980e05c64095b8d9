"""Steps with templates and conditions: never leased before their input is resolved, and never if they are skipped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure.kernel import commands as c
from tests.kernel.story import Story

WHY = "inputs.go"


def story_of(*plan: c.StepSpec, **how: Any) -> Story:
    return Story(profile="agent-runs", plan=plan, **how)


def skipped(name: str, **how: Any) -> c.StepSpec:
    return c.StepSpec(name=name, condition=WHY, skipped=True, **how)


def open_(name: str, **how: Any) -> c.StepSpec:
    return c.StepSpec(name=name, template=b"{}", condition=WHY, **how)


def owed(story: Story) -> list[list[list[int]]]:
    return [msgspec.msgpack.decode(row.body)["steps"] for row in story.outbox if row.topic == "resolve"]


def test_a_run_of_skipped_steps_ends_in_the_creating_commit() -> None:
    story = story_of(
        skipped("a"), skipped("b", kind="approval"), skipped("c", kind="wait", wait=c.WaitSpec(event="e"))
    )
    assert story.status == "succeeded"
    assert len(story.events) == 1
    for name in "abc":
        step = story.step(name)
        assert (step.state, step.reason, step.attempt, step.output_ref) == (
            "succeeded",
            "CONDITION_FALSE",
            0,
            None,
        )
    assert not story.snap.attempts
    assert not story.snap.waits


def test_a_thousand_skipped_steps_in_a_row_need_no_recursion() -> None:
    story = story_of(*(skipped(f"s{i}") for i in range(1_000)))
    assert story.status == "succeeded"


def test_a_step_that_needs_a_skipped_step_continues() -> None:
    story = story_of(skipped("a"), c.StepSpec(name="b"))
    assert story.step("b").claimable
    story.claim("b")
    story.complete("b", b"1")
    assert story.status == "succeeded"


def test_a_step_with_a_template_cannot_be_claimed_before_it_is_resolved() -> None:
    story = story_of(open_("a"))
    assert (story.step("a").state, story.step("a").claimable, story.status) == ("pending", False, "queued")
    assert owed(story) == [[[0, 1]]]
    story.resolve("a", b'{"x":1}', idempotency_key="k1")
    step = story.step("a")
    assert (step.state, step.claimable, step.resolution, step.idempotency_key) == ("ready", True, "", "k1")
    assert story.snap.payloads[step.input_ref or 0].body == b'{"x":1}'
    assert story.claim("a").idempotency_key == "k1"


def test_a_false_condition_closes_the_step_and_the_run_without_a_worker() -> None:
    story = story_of(open_("a"), open_("b"))
    story.resolve("a", None, skipped=True)
    assert (story.step("a").state, story.step("a").reason) == ("succeeded", "CONDITION_FALSE")
    assert owed(story)[-1] == [[1, 1]]
    story.resolve("b", None, skipped=True)
    assert story.status == "succeeded"
    assert not story.snap.attempts


def test_a_failing_expression_fails_the_step_permanently() -> None:
    story = story_of(open_("a", retries=5), c.StepSpec(name="b"))
    story.resolve("a", None, code="EXPRESSION_FAILED", message=b"no such key")
    assert (story.step("a").state, story.step("a").reason) == ("failed", "EXPRESSION_FAILED")
    assert (story.step("b").state, story.step("b").reason) == ("skipped", "STEP_SKIPPED")
    assert (story.status, story.run.reason) == ("failed", "EXPRESSION_FAILED")


def test_a_repeated_late_or_outdated_resolution_changes_nothing() -> None:
    story = story_of(open_("a"))
    assert story.resolve("a", n=2) == {"steps": 0}
    assert story.resolve("a") == {"steps": 1}
    before = len(story.events)
    assert story.resolve("a", None, skipped=True) == {"steps": 0}
    story.claim("a")
    assert story.resolve("a") == {"steps": 0}
    assert len(story.events) == before + 1
    story.complete("a")
    assert story.resolve("a") == {"steps": 0}


def test_an_input_per_try_is_resolved_again_for_the_next_try() -> None:
    story = story_of(open_("a", retries=3))
    story.resolve("a", b'{"n":1}', each_try=True)
    story.claim("a")
    story.fail("a", retryable=True)
    story.after(60).sweep()
    assert (story.step("a").state, story.step("a").claimable) == ("ready", False)
    assert owed(story)[-1] == [[0, 2]]
    story.resolve("a", b'{"n":2}', each_try=True)
    assert story.claim("a").n == 2
    story.complete("a")
    assert story.status == "succeeded"


def test_a_pause_blocks_a_step_before_and_after_its_resolution() -> None:
    story = story_of(open_("a"), open_("b", needs=()))
    story.pause()
    story.resolve("a")
    assert not story.step("a").claimable
    story.unpause()
    assert story.step("a").claimable
    assert (story.step("b").state, story.step("b").claimable) == ("pending", False)


def test_unpausing_does_not_release_a_step_that_waits_for_its_resolution() -> None:
    story = story_of(open_("a"))
    story.resolve("a", each_try=True)
    story.claim("a")
    story.release("a")
    story.pause()
    story.unpause()
    assert not story.step("a").claimable


def test_a_cancel_ends_a_step_that_waits_for_its_resolution() -> None:
    story = story_of(open_("a"))
    story.cancel()
    assert story.status == "canceled"
    assert story.resolve("a") == {"steps": 0}


def test_steps_that_become_ready_together_are_resolved_together() -> None:
    story = story_of(c.StepSpec(name="first"), *(open_(f"s{i}", needs=("first",)) for i in range(250)))
    story.claim("first")
    story.complete("first")
    assert [len(steps) for steps in owed(story)] == [100, 100, 50]


@pytest.mark.parametrize(
    "how",
    [
        {"template": b"{}", "input": b"1"},
        {"template": b"{}", "kind": "wait", "wait": c.WaitSpec(event="e")},
        {"skipped": True},
        {"condition": "x" * 3_000},
    ],
)
def test_an_invalid_plan_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"can only be set|must have"):
        story_of(c.StepSpec(name="a", **how))
