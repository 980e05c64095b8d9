"""A step with the result of an earlier step: it succeeds without an attempt, and names the step that made the result."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel import reruns
from tests.kernel.story import Story

REUSE = c.ReuseSpec(scope="repo", digest="ab" * 32, also=("shared",))
KEY = b"k" * 32


def job(name: str = "test", *needs: str, **how: Any) -> c.StepSpec:
    given: dict[str, Any] = {"name": name, "needs": needs, "reuse": REUSE, "input": b"{}"}
    return c.StepSpec(**given | how)


def story_of(*plan: c.StepSpec, **how: Any) -> Story:
    return Story(**{"profile": "delta-ci", "plan": plan} | how)


def test_a_step_is_not_handed_out_before_an_earlier_result_was_looked_for() -> None:
    story = story_of(job())
    assert (story.states, story.status) == ({"test": "pending"}, "queued")
    assert [msgspec.msgpack.decode(row.body) for row in story.owed("resolve")] == [{"steps": [[0, 1]]}]
    with story.refuses("RUN_INVALID_TRANSITION"):
        story.claim("test")
    story.resolve("test", None, reuse_key=KEY)
    assert (story.states, story.step("test").reuse_key) == ({"test": "ready"}, KEY)
    lease = story.claim("test")
    assert story.body(lease.input_ref) == b"{}", "it keeps its own input"
    story.fail("test", "NETWORK_DOWN")
    story.after(60).sweep()
    assert story.step("test").claimable, "a retry does not look again"
    assert len(story.owed("resolve")) == 1


def test_an_earlier_result_ends_the_step_and_opens_the_next_one() -> None:
    story = story_of(job("build"), job("test", "build"), c.StepSpec(name="ship", needs=("test",)))
    story.resolve("build", None, reuse_key=KEY, reused=(7, "old build"), output=b"1")
    build = story.step("build")
    assert (build.state, build.reason, build.attempt) == ("succeeded", "REUSED", 0)
    assert (build.reused_run, build.reused_step, story.body(build.output_ref)) == (7, "old build", b"1")
    assert (story.run.steps_done, story.run.started_at is not None, story.status) == (1, False, "queued")
    story.resolve("test", None, reuse_key=KEY, reused=(7, "old test"))
    assert story.states == {"build": "succeeded", "test": "succeeded", "ship": "ready"}
    story.claim("ship")
    story.complete("ship")
    assert (story.status, story.run.steps_done, len(story.snap.attempts)) == ("succeeded", 3, 1)


def test_a_run_whose_steps_all_have_results_succeeds_without_a_worker() -> None:
    story = story_of(job())
    story.resolve("test", None, reuse_key=KEY, reused=(7, "test"), output=b"1")
    assert (story.status, story.run.output_ref is not None) == ("succeeded", True)


def test_a_late_or_repeated_result_is_ignored() -> None:
    story = story_of(job())
    story.resolve("test", None, reuse_key=KEY)
    story.claim("test")
    assert story.resolve("test", None, reuse_key=KEY, reused=(7, "test")) == {"steps": 0}
    story.release("test")
    assert story.resolve("test", None, n=2, reuse_key=KEY, reused=(7, "test")) == {"steps": 0}
    assert story.step("test").reused_run is None
    story = story_of(job())
    story.cancel()
    assert story.resolve("test", None, reuse_key=KEY, reused=(7, "test")) == {"steps": 0}


def test_a_step_without_reuse_takes_no_earlier_result() -> None:
    story = story_of(c.StepSpec(name="test", template=b"{}"))
    story.resolve("test", b"{}", reused=(7, "test"))
    assert story.states == {"test": "ready"}


def test_a_step_with_a_template_gets_its_input_if_there_is_no_result() -> None:
    story = story_of(job(template=b"{}", input=None))
    story.resolve("test", b'{"a":1}', reuse_key=KEY)
    assert story.body(story.claim("test").input_ref) == b'{"a":1}'


@pytest.mark.parametrize(
    "spec",
    [
        job(kind="approval", input=None),
        job(reuse=c.ReuseSpec(scope="", digest="ab" * 32)),
        job(reuse=c.ReuseSpec(scope="s", digest="ab")),
        job(reuse=c.ReuseSpec(scope="s", digest="xy" * 32)),
        job(reuse=c.ReuseSpec(scope="s", digest="ab" * 32, also=("t",) * 9)),
        job(condition="a", skipped=True),
    ],
    ids=str,
)
def test_malformed_reuse_is_refused(spec: c.StepSpec) -> None:
    with pytest.raises(TenureError, match="PLAN_INVALID"):
        story_of(spec)


def test_needs_are_part_of_the_terms_also_for_steps_that_are_added_later() -> None:
    story = story_of(job("build"), job("test", "build"))
    story.after(1).add_steps(job("ship", "test", "build"))
    terms = [msgspec.json.decode(story.step(name).reuse or "", type=c.ReuseTerms) for name in story.states]
    assert [one.needs for one in terms] == [(), (0,), (0, 1)]
    assert (terms[2].scope, terms[2].also, terms[2].digest) == (REUSE.scope, REUSE.also, REUSE.digest)
    before = story.bundle().copied()
    story.add_steps(job("ship", "test", "build"))  # a repeat
    assert story.bundle() == before
    with story.refuses("PLAN_INVALID"):
        story.add_steps(job("ship", "test", "build", reuse=None))


def test_a_resumed_run_and_a_rerun_look_for_no_results() -> None:
    """A resumed run lacks the steps that had succeeded, so its keys would lack their outputs."""
    story = story_of(job("build"), job("test", "build"))
    story.resolve("build", None, reuse_key=KEY, reused=(7, "build"))
    story.cancel()
    bundle = story.bundle()
    assert bundle.spec is not None
    old = reruns.FinishedRun(bundle.run, bundle.spec, bundle.steps, bundle.checkpoints, bundle.payloads)
    for command in (reruns.build_resumed_run(old, 1, c.SYSTEM), reruns.build_rerun(old, old, 2, c.SYSTEM)):
        assert [step.reuse for step in command.plan] == [None] * len(command.plan)
