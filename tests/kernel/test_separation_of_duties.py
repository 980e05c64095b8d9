"""Separation of duties: who is involved in a run, the limit of involved people, and which accounts count as one person."""

from __future__ import annotations

import pytest

from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.identity_rows import UnconfirmedPerson
from tenure.kernel.separation_of_duties import MORE_PEOPLE, LinkedPeople, join_people
from tenure.limits import INVOLVED_PEOPLE_MAX
from tests.kernel.act_story import ActStory
from tests.kernel.story import Story

GATE = c.StepSpec(name="gate", kind="approval", approval=c.ApprovalSpec())
WAIT = c.StepSpec(name="news", kind="wait", wait=c.WaitSpec(event="news"))


def signal(story: Story, name: str, sender: str, involved: str = "") -> None:
    """Send a signal to the run."""
    context = c.Context(sender, "user", "x")
    story.do(
        c.DeliverEvent(run_id=story.run_id, name=name, event_id=name, context=context, involved=involved)
    )


def refusal(story: Story, person: str) -> str | None:
    """The error code of this person's approval, or None if it counts."""
    try:
        story.approve("gate", by=person)
    except TenureError as refused:
        return refused.code
    return None


def involved_people(story: Story) -> set[str]:
    assert story.snap.spec is not None
    return {story.snap.spec.requester, *story.snap.spec.involved.split()}


def test_the_sender_of_a_signal_is_involved_once_a_wait_has_taken_it() -> None:
    story = Story(plan=[WAIT, GATE], profile="agent-runs")
    signal(story, "other", "person:eve")
    assert "person:eve" not in involved_people(story), "no wait has taken the event"
    signal(story, "news", "client:ci", involved="person:ada person:bob")
    assert {"client:ci", "person:ada", "person:bob"} <= involved_people(story)
    assert [refusal(story, f"person:{one}") for one in ("ada", "bob")] == ["APPROVER_IS_REQUESTER"] * 2
    assert refusal(story, "person:eve") is None
    assert story.violations() == []


def test_people_involved_in_a_child_are_involved_in_its_parent() -> None:
    story = Story()
    story.claim()
    story.open_wait("main", "kid", child=c.StartChild(run_id=77, workflow="kid", on_close="leave"))
    context = c.Context("system:outbox", "system", "x")
    finished = c.FinishChild(
        run_id=story.run_id, child_id=77, outcome="succeeded", context=context, involved="u_alice person:ada"
    )
    story.do(finished)
    assert "person:ada" in involved_people(story)


def test_a_person_who_settles_a_receipt_is_involved_in_the_run() -> None:
    for how, more, counts in (("done", {"result": b"1"}, True), ("done", {}, False), ("not_done", {}, False)):
        story = ActStory()
        story.claim()
        lost = story.intend(story.act("c#1")).no or 0
        wait = story.settle(lost, "unknown", settle_within_seconds=60.0).no or 0
        story.suspend("main", wait)
        story.settle_by("person:bob", lost, how, **more)
        assert ("person:bob" in involved_people(story)) is counts, how


@pytest.mark.parametrize(
    ("unknown", "code"), [(MORE_PEOPLE, "TOO_MANY_BEHIND"), ("slack:T1/U1", "ACCOUNT_NOT_LINKED")]
)
def test_nobody_settles_receipts_of_a_run_with_unknown_people(unknown: str, code: str) -> None:
    story = ActStory()
    story.claim()
    lost = story.intend(story.act("c#1")).no or 0
    wait = story.settle(lost, "unknown", settle_within_seconds=60.0).no or 0
    story.suspend("main", wait)
    story.do(c.InvolvePeople(run_id=story.run_id, involved=unknown))
    for how in ("done", "retry"):
        with pytest.raises(TenureError) as refused:
            story.settle_by("person:bob", lost, how)
        assert refused.value.code == code
    story.settle_by("person:bob", lost, "not_done")


def test_involved_people_above_the_limit_are_counted_not_named() -> None:
    story = Story(plan=[GATE], profile="agent-runs")
    for n in range(INVOLVED_PEOPLE_MAX + 5):
        context = c.Context(f"person:p{n}", "user", "x")
        story.do(c.UpdateMetadata(run_id=story.run_id, labels="{}", context=context))
    assert MORE_PEOPLE in involved_people(story)
    assert story.status == "waiting_approval"
    assert refusal(story, "person:bob") == "TOO_MANY_BEHIND"
    assert join_people(*(f"p{n}" for n in range(500)), MORE_PEOPLE).split()[INVOLVED_PEOPLE_MAX:] == [
        MORE_PEOPLE
    ]
    assert join_people("a b", None, "b c") == "a b c"
    assert story.violations() == []


def test_only_a_newly_involved_person_writes_an_event() -> None:
    story = Story(plan=[GATE], profile="agent-runs")
    ada = c.InvolvePeople(
        run_id=story.run_id, involved="person:ada", context=c.Context("person:ada", "user", "runner/claim")
    )
    assert (story.do(ada), story.events[-1].kind) == ({"again": False}, "involve")
    assert story.snap.spec is not None
    before = (len(story.events), story.snap.spec.salt)
    assert story.do(ada) == {"again": True}
    assert before == (len(story.events), story.snap.spec.salt)
    assert refusal(story, "person:ada") == "APPROVER_IS_REQUESTER"
    for n in range(INVOLVED_PEOPLE_MAX + 2):
        story.do(c.InvolvePeople(run_id=story.run_id, involved=f"person:p{n}"))
    assert MORE_PEOPLE in involved_people(story)
    events = len(story.events)
    assert story.do(c.InvolvePeople(run_id=story.run_id, involved="person:zoe")) == {"again": True}
    assert len(story.events) == events
    assert story.violations() == []


@pytest.mark.parametrize(
    ("who", "one"),
    [
        ("person:x", {"person:x", "person:ada", "person:y"}),
        ("person:y", {"person:x", "person:ada", "person:y"}),
        ("person:ada", {"person:x", "person:ada", "person:y"}),
        ("person:bob", {"person:bob"}),
        ("uid:1000", {"uid:", "person:z"}),
    ],
)
def test_a_person_counts_as_one_with_their_creators(who: str, one: set[str]) -> None:
    made = {"x": "person:ada", "y": "person:x", "z": "uid:0"}
    ties = LinkedPeople(UnconfirmedPerson(name, by) for name, by in made.items())
    assert ties.linked_with(who) == one
    assert ties.apart(["person:ada", "person:bob", "person:y", "uid:1", "uid:2"]) == ["person:ada", "person:bob", "uid:1"]  # fmt: skip
    assert ties.among("person:y", ["person:bob", "person:ada"]) == "person:ada"
