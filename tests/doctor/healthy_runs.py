"""Healthy runs in many states, and functions that forge their history."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from tenure.doctor import RunDump
from tenure.kernel import commands as c
from tenure.kernel import history
from tenure.kernel.act_commands import ReliedFacts
from tenure.kernel.costs import Cost
from tests.kernel.act_story import ALLOW, ASK, DENY, ActStory
from tests.kernel.story import RUN_ID, Story

Body = dict[str, Any]


def retried(run_id: int = RUN_ID) -> Story:
    """A required job that failed once and then succeeded; an optional job that failed permanently."""
    story = Story(
        run_id=run_id,
        profile="delta-ci",
        plan=[
            c.StepSpec(name="build", retries=2),
            c.StepSpec(name="lint", needs=("build",), required=False, retries=0),
            c.StepSpec(name="test", needs=("build",)),
        ],
        input=b"source",
        idempotency_key="push-1",
    )
    story.claim("build")
    story.at(2).checkpoint("build", "fetch", output=b"tree", state="started", idempotent=False)
    story.at(3).checkpoint("build", "fetch", output=b"tree")
    story.at(5).fail("build", "HTTP_503", retryable=True)
    story.at(600).sweep().claim("build", "w_2")
    story.at(601).complete("build", b"binary")
    story.claim("lint")
    story.at(602).fail("lint", retryable=False)
    story.claim("test")
    story.at(603).beat("test")
    story.complete("test", b"ok")
    assert story.status == "succeeded"
    return story


def backing_off(run_id: int = RUN_ID) -> Story:
    """A job that waits for its next try."""
    story = Story(run_id=run_id, profile="delta-ci", plan=[c.StepSpec(name="build", retries=2)])
    story.claim("build")
    story.at(5).fail("build", retryable=True)
    assert story.status == "retry_wait"
    return story


def working(run_id: int = RUN_ID) -> Story:
    """Two running steps, one ready, one pending."""
    story = Story(
        run_id=run_id,
        profile="delta-ci",
        plan=[
            c.StepSpec(name="one", needs=(), timeout_seconds=900),
            c.StepSpec(name="two", needs=()),
            c.StepSpec(name="three", needs=()),
            c.StepSpec(name="four", needs=("three",)),
        ],
        timeout_seconds=3600,
    )
    story.claim("one")
    story.claim("two", "w_2", ack=False)
    story.at(1).beat("one")
    return story


def lease_expired(run_id: int = RUN_ID) -> Story:
    """The first worker's lease expired; a second worker runs the step."""
    story = Story(
        run_id=run_id, profile="delta-ci", plan=[c.StepSpec(name="build", retries=2, lease_seconds=30)]
    )
    story.claim("build")
    story.at(1).checkpoint("build", "a", output=b"1")
    story.at(31).sweep().claim("build", "w_2")
    story.at(32).checkpoint("build", "b", output=b"2")
    return story


def worker_proven_dead(run_id: int = RUN_ID) -> Story:
    """The first worker was proven dead before its lease ended; a second worker runs the step."""
    story = Story(
        run_id=run_id, profile="delta-ci", plan=[c.StepSpec(name="build", retries=2, lease_seconds=30)]
    )
    story.claim("build", session=7)
    story.at(1).beat("build")
    story.at(5).holder_dies("build", session=7)
    story.claim("build", "w_2", session=8)
    story.at(6).beat("build")
    return story


def asking(run_id: int = RUN_ID) -> Story:
    """A body that asked two people, revised the question, and is suspended on the approval, an event and a child."""
    story = Story(run_id=run_id, timeout_seconds=3600)
    story.claim()
    story.open_wait("main", "deploy", approval=c.ApprovalSpec(people=2, within_seconds=900, digest="aa"))
    story.approve("deploy", by="u_bob", digest="aa")
    story.revise("deploy", "bb")
    story.approve("deploy", by="u_bob", digest="bb")
    story.open_wait("main", "news", event=c.WaitSpec(event="news", within_seconds=600))
    story.open_wait("main", "nap", until=500)
    story.open_wait("main", "kid", child=c.StartChild(run_id=77, workflow="kid", on_close="leave"))
    story.deliver("other", "e-1", b"kept")
    story.at(10).suspend("main", "deploy", "news")
    assert story.status == "waiting_approval"
    return story


def gated(run_id: int = RUN_ID) -> Story:
    """A gate that two people approved, and a step after it."""
    gate = c.StepSpec(name="gate", kind="approval", approval=c.ApprovalSpec(people=2, within_seconds=900))
    story = Story(run_id=run_id, profile="agent-runs", plan=["write", gate, "send"])
    story.claim("write")
    story.at(1).complete("write", b"draft")
    story.at(2).approve("gate", by="u_bob")
    story.at(3).approve("gate", by="u_carol", reason=b"fine")
    story.claim("send")
    story.at(4).complete("send")
    assert story.status == "succeeded"
    return story


def conditional(run_id: int = RUN_ID) -> Story:
    """A step skipped by its condition, and a step that waits for the input of its second try."""
    story = Story(
        run_id=run_id,
        profile="agent-runs",
        plan=[
            c.StepSpec(name="label", condition="inputs.dry == false", skipped=True),
            c.StepSpec(name="ask", kind="approval", condition="inputs.dry == false", skipped=True),
            c.StepSpec(name="send", condition="true", template=b'{"with":{"n":"${{ run.attempt }}"}}'),
        ],
    )
    story.at(1).resolve("send", b'{"n":1}', each_try=True)
    story.claim("send")
    story.at(2).release("send")
    assert (story.step("send").state, story.step("send").resolution) == ("ready", "due")
    return story


def signaled(run_id: int = RUN_ID) -> Story:
    """A gate after an event that a person sent, with labels that a person changed."""
    gate = c.StepSpec(name="gate", kind="approval", approval=c.ApprovalSpec())
    wait = c.StepSpec(name="news", kind="wait", wait=c.WaitSpec(event="news"))
    story = Story(run_id=run_id, profile="agent-runs", plan=[wait, gate])
    story.label('{"a":"b"}')
    story.deliver("news", "e-1", b"1")
    story.approve("gate", by="u_bob")
    assert story.status == "succeeded"
    return story


def canceled(run_id: int = RUN_ID) -> Story:
    """Canceled while one step was leased, one in backoff and one pending; the worker stopped."""
    story = Story(
        run_id=run_id,
        profile="delta-ci",
        plan=[c.StepSpec(name="one", needs=()), c.StepSpec(name="two", needs=()), "three"],
    )
    story.claim("one")
    story.claim("two")
    story.at(1).fail("two", retryable=True)
    story.at(2).cancel()
    story.at(3).cancel_ack("one")
    assert story.status == "canceled"
    return story


def canceling(run_id: int = RUN_ID) -> Story:
    """A cancel was requested; the worker has not answered yet."""
    story = Story(run_id=run_id, profile="delta-ci", plan=["one", "two"])
    story.claim("one")
    story.at(2).cancel()
    return story


def delayed(run_id: int = RUN_ID) -> Story:
    """A run with a delayed start."""
    return Story(run_id=run_id, profile="delta-ci", plan=["one"], not_before=Story.moment(60))


def planning(run_id: int = RUN_ID) -> Story:
    """A run in planning."""
    return Story(run_id=run_id, profile="delta-ci", plan=None)


def planned(run_id: int = RUN_ID) -> Story:
    """A run with a plan from its plan step: one step has the result of an earlier run, another one is at work."""
    story = planning(run_id)
    reuse = c.ReuseSpec(scope="site", digest="ab" * 32)
    story.at(1).plan_ready(c.StepSpec(name="build", reuse=reuse), c.StepSpec(name="test"))
    story.at(2).resolve("build", None, reuse_key=b"k" * 32, reused=(run_id - 1, "build"), output=b"1")
    story.claim("test")
    return story


def unplanned(run_id: int = RUN_ID) -> Story:
    """A run whose planning failed."""
    story = planning(run_id)
    story.at(1).plan_failed("CONFIG_INVALID", b"ci.yaml:3:1")
    return story


def failed(run_id: int = RUN_ID) -> Story:
    """A required step failed; its dependent was skipped."""
    story = Story(run_id=run_id, profile="delta-ci", plan=["one", "two"])
    story.claim("one")
    story.at(1).fail("one", retryable=False)
    assert story.status == "failed"
    return story


def parent(run_id: int = RUN_ID) -> Story:
    """A finished parent that canceled its child."""
    story = Story(run_id=run_id)
    story.claim()
    story.open_wait("main", "kid", child=c.StartChild(run_id=77, workflow="kid", on_close="cancel"))
    story.at(1).complete()
    assert [row.topic for row in story.outbox] == ["create", "cancel"]
    return story


def with_costs(run_id: int = RUN_ID) -> ActStory:
    """Costs in two currencies, within the budget."""
    story = ActStory(run_id=run_id, budget=100, currency="EUR")
    story.claim()
    euros, dollars = Cost("openai", "large", 1, 2, 40, "EUR"), Cost("openai", "large", 1, 2, 900)
    story.checkpoint("main", "one", spent=(euros, dollars))
    story.complete(spent=(euros,))
    return story


def acted(run_id: int = RUN_ID) -> ActStory:
    """Acts of all kinds in a canceled run: approved and tried twice, repeated after a crash, called again on a person's request, reversed,
    and with an unknown outcome."""
    story = ActStory(run_id=run_id, compensate=True)
    story.claim()
    asked = story.propose(story.act("a#1"), ASK, question=b"{}").no or 0
    story.suspend("main", asked)
    story.approve(asked, by="person:bob", digest=story.act("a#1").digest.hex())
    story.claim()
    first = story.intend(story.act("a#1"), ASK, approval_no=asked).no or 0
    story.settle(first, "failed", error="X", retry_after_seconds=0.0)
    second = story.intend(story.act("a#1"), ASK, approval_no=asked).no or 0
    story.settle(second, "succeeded", result=b"1")
    repeated = story.intend(story.act("b#1", repeats="sets_state")).no or 0
    story.after(31).sweep()
    story.claim(worker="w_2")
    story.repeat(repeated)
    story.settle(repeated, "succeeded")
    lost = story.intend(story.act("c#1")).no or 0
    wait = story.settle(lost, "unknown", settle_within_seconds=60.0).no or 0
    story.suspend("main", wait)
    story.settle_by("person:bob", lost, "retry")
    story.claim(worker="w_3")
    story.repeat(lost)
    story.settle(lost, "succeeded")
    story.reversed_by(lost, 12345)
    relied = ReliedFacts(writes=(3, 3), spent=0, since=story.now, until=story.now + 1)
    story.intend(story.act("d#1"), structs.replace(ALLOW, relied=relied))
    story.cancel()
    story.after(600).sweep()
    assert story.status == "canceled"
    return story


def denied(run_id: int = RUN_ID) -> ActStory:
    """An act that the policy denied."""
    story = ActStory(run_id=run_id)
    story.claim()
    story.propose(ruling=DENY)
    assert story.status == "failed"
    return story


ALL: tuple[Callable[..., Story], ...] = (
    retried, backing_off, working, lease_expired, asking, gated, signaled, conditional, canceled, canceling, delayed, planning, planned, unplanned, failed, parent, acted, denied, worker_proven_dead,
)  # fmt: skip


# ------------------------------------------------------------------------------------------- forgery


def rewrite(bundle: RunDump, kind: str, change: Callable[[Body], None], nth: int = 0) -> None:
    """Change the body of the nth event of this kind, and recompute the chain."""
    event = [event for event in bundle.events if event.kind == kind][nth]
    body = msgspec.json.decode(event.body)
    change(body)
    event.body = msgspec.json.encode(body)
    rechain(bundle)


def rechain(bundle: RunDump) -> None:
    """Recompute hashes, version and head from the events, so that the chain's own check passes."""
    head = b""
    for event in bundle.events:
        head = event.hash = history.rehash(event, head, bundle.run.tenant)
    bundle.run.head = head
