"""Acts in the kernel: denials, approvals, intentions and outcomes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure.kernel.act_rows import ReceiptRow
from tenure.kernel.commands import BODY_STEP, ApprovalSpec, StartChild, WaitSpec
from tenure.kernel.run_rows import Cap
from tenure.limits import PAYLOAD_BYTES_MAX
from tests.kernel.act_story import ALLOW, ASK, DENY, ActStory, governance, person

OTHER_RUN = 12345
_LEASE = 31.0
"""Longer than a lease without heartbeats, in seconds."""


def begun(**how: object) -> ActStory:
    story = ActStory(**how)
    story.claim()
    return story


@pytest.mark.clause("GOV-16")
def test_an_allowed_act_is_intended_and_then_settled() -> None:
    """I36, I40: the receipt exists before the call, with the verdict that allowed it."""
    story = begun()
    reply = story.intend(before=b'{"labels":[]}')
    assert (reply.state, reply.receipt_state) == ("call", "intent")
    assert reply.no is not None
    assert reply.call_by is not None
    assert story.now < reply.call_by <= story.attempt("main").expires_at
    receipt = story.receipt(reply.no)
    assert (receipt.state, receipt.n, receipt.try_no, receipt.settled_at) == ("intent", 1, 1, None)
    (verdict,) = story.verdicts
    assert (verdict.no, verdict.outcome, verdict.version) == (receipt.verdict_no, "allow", 1)
    assert verdict.digest == receipt.digest == story.act().digest
    assert (story.run_spend.writes, story.run.receipts) == (1, 1)
    story.after(1)
    settled = story.settle(reply.no, "succeeded", result=b'{"ok":true}')
    assert (settled.state, settled.receipt_state) == ("settled", "succeeded")
    receipt = story.receipt(reply.no)
    assert (receipt.state, receipt.settled_at) == ("succeeded", story.now)
    assert story.body(receipt.result_ref) == b'{"ok":true}'
    story.complete()
    assert story.status == "succeeded"


@pytest.mark.clause("GOV-15")
def test_a_succeeded_act_returns_its_result_and_is_not_intended_again() -> None:
    story = begun()
    no = story.intend().no
    assert no is not None
    story.settle(no, "succeeded", result=b"1")
    events = len(story.events)
    reply = story.intend(ruling=DENY)
    assert (reply.state, reply.no, story.body(reply.result_ref)) == ("done", no, b"1")
    assert len(story.events) == events, "a repeated intention writes nothing"
    assert story.settle(no, "succeeded", result=b"1").state == "settled", "a repeat gets the same answer"
    assert len(story.events) == events


@pytest.mark.clause("GOV-16")
@pytest.mark.clause("GOV-18")
def test_a_denied_act_ends_the_step_and_the_run() -> None:
    story = begun(profile="governed-runtime", plan=["main"])
    story.step("main")
    reply = story.propose(ruling=DENY)
    assert (reply.state, reply.error) == ("refused", "POLICY_DENIED")
    assert (story.status, story.run.reason, story.step("main").reason) == (
        "failed",
        "POLICY_DENIED",
        "POLICY_DENIED",
    )
    (verdict,) = story.verdicts
    assert (verdict.outcome, verdict.error, verdict.request_ref) == ("deny", None, None)
    assert story.body(story.run.error_ref) == b"a rule says no"
    with story.refuses("LEASE_STALE"):
        story.intend()


@pytest.mark.clause("GOV-17")
@pytest.mark.parametrize("error", ["POLICY_MISSING", "POLICY_ERROR", "ACTION_UNKNOWN"])
def test_an_invalid_ruling_is_recorded_as_a_denial(error: str) -> None:
    """I41."""
    story = begun()
    story.propose(ruling=msgspec.structs.replace(DENY, version=0, error=error))
    (verdict,) = story.verdicts
    assert (verdict.outcome, verdict.error, story.run.reason) == ("deny", error, "POLICY_DENIED")


REQUEST = b'{"fields":{"label":"bug"},"target":{}}'


def test_a_denial_stores_the_proposed_action_and_the_history_only_its_digest() -> None:
    story = begun()
    events = len(story.events)
    story.propose(ruling=DENY, request=REQUEST)
    (verdict,) = story.verdicts
    assert story.body(verdict.request_ref) == REQUEST
    assert (verdict.name, verdict.act_tier) == (story.act().name, "low")
    assert len(story.events) == events + 1, "it costs one commit, like any denial"
    assert all(b'"label":"bug"' not in event.body for event in story.events)
    assert f'"{verdict.request_ref}":"'.encode() in story.events[-1].body


@pytest.mark.parametrize("asked", [True, False])
def test_a_freeze_keeps_the_requested_action(asked: bool) -> None:
    story = begun()
    story.governance = governance(frozen=("*",))
    reply = story.propose(question=REQUEST) if asked else story.intend(request=REQUEST)
    assert reply.error == "FROZEN"
    (verdict,) = story.verdicts
    assert story.body(verdict.request_ref) == REQUEST


def test_an_action_that_is_too_large_to_store_is_denied_anyway() -> None:
    story = begun()
    story.governance = governance(frozen=("*",))
    assert story.propose(question=b" " * (PAYLOAD_BYTES_MAX + 1)).error == "FROZEN"
    assert [v.request_ref for v in story.verdicts] == [None]


@pytest.mark.clause("GOV-17")
def test_without_an_active_policy_nothing_is_intended() -> None:
    story = begun()
    story.governance = None
    assert story.intend().state == "again", "the ruling's policy is not active"
    reply = story.intend(ruling=msgspec.structs.replace(ALLOW, version=0))
    assert (reply.state, reply.error, story.status) == ("refused", "POLICY_DENIED", "failed")
    assert [v.error for v in story.verdicts] == ["POLICY_MISSING"]


def test_a_changed_policy_is_evaluated_again() -> None:
    """I40: the policy that allowed the act must be active in the commit that intends it."""
    story = begun()
    story.governance = governance(version=2)
    events = len(story.events)
    assert story.intend().state == "again"
    assert len(story.events) == events
    assert story.intend(ruling=msgspec.structs.replace(ALLOW, version=2)).state == "call"


def involved_people(story: ActStory) -> str:
    """The involved people of the run, without the requester."""
    assert story.snap.spec is not None
    return story.snap.spec.involved


@pytest.mark.parametrize("scope", ["*", "wf:flow", "cn:github"])
def test_a_freeze_denies_an_act_in_the_commit_of_its_intent(scope: str) -> None:
    story = begun()
    story.governance = governance(frozen=(scope,))
    reply = story.intend()
    assert (reply.state, reply.error, story.run.reason) == ("refused", "FROZEN", "FROZEN")
    assert [(v.outcome, v.error) for v in story.verdicts] == [("deny", "FROZEN")]
    assert not story.snap.receipts
    assert involved_people(story) == "person:cyd", "a person who freezes is involved in the run"


@pytest.mark.parametrize("scope", ["*", "wf:flow", "cn:github"])
def test_a_frozen_act_asks_for_no_approval(scope: str) -> None:
    story = begun()
    story.governance = governance(frozen=(scope,))
    reply = story.propose()
    assert (reply.state, reply.error, story.run.reason) == ("refused", "FROZEN", "FROZEN")
    assert [(v.outcome, v.error) for v in story.verdicts] == [("deny", "FROZEN")]
    assert not story.snap.approvals
    assert involved_people(story) == "person:cyd", "a person who freezes is involved in the run"


def test_a_freeze_of_another_scope_does_not_apply() -> None:
    story = begun()
    story.governance = governance(frozen=("wf:other", "cn:slack"))
    assert story.intend().state == "call"


@pytest.mark.clause("GOV-12")
@pytest.mark.parametrize("scope", ["", "wf:flow"])
def test_the_writes_of_a_run_are_limited_by_its_cap(scope: str) -> None:
    """I46: an act counts when it is intended, and is refunded when it is known not to have happened."""
    story = begun()
    story.caps = [Cap("acme", scope, max_writes_per_run=2)]
    first, second = story.act("a#1"), story.act("b#1")
    no = story.intend(first).no
    assert no is not None
    story.settle(no, "failed", error="CONNECTOR_REJECTED")
    assert story.run_spend.writes == 0
    assert story.intend(second).state == "call"
    assert story.intend(story.act("c#1")).state == "call"
    reply = story.intend(story.act("d#1"))
    assert (reply.state, reply.error, story.run.reason) == ("refused", "WRITES_EXCEEDED", "WRITES_EXCEEDED")


def test_another_action_at_the_same_place_is_refused() -> None:
    story = begun()
    story.intend(story.act(fields={"label": "bug"}))
    with story.refuses("ACTION_CHANGED"):
        story.intend(story.act(fields={"label": "feature"}))


def test_a_failed_call_is_retried_only_when_it_is_allowed() -> None:
    story = begun()
    no = story.intend().no
    assert no is not None
    story.settle(no, "failed", error="CONNECTOR_RATE_LIMITED", retry_after_seconds=5, result=b"slow down")
    assert story.receipt(no).eligible_at == story.now + 5_000_000
    reply = story.intend()
    assert (reply.state, reply.eligible_at, reply.error) == (
        "failed",
        story.now + 5_000_000,
        "CONNECTOR_RATE_LIMITED",
    )
    story.after(5)
    again = story.intend()
    assert again.state == "call"
    assert again.no is not None
    assert (story.receipt(again.no).try_no, story.run_spend.writes) == (2, 1)
    story.settle(again.no, "failed", error="CONNECTOR_REJECTED")
    assert story.intend().state == "failed"
    assert story.intend().eligible_at is None


def test_no_call_is_intended_shortly_before_the_lease_ends() -> None:
    story = begun()
    lease = story.attempt("main").expires_at
    story.after((lease - story.now) / 1e6 - 0.7)
    with story.refuses("LEASE_TOO_SHORT"):
        story.intend()
    story.beat()
    assert story.intend().state == "call"


def test_the_message_of_an_ended_lease_is_stale_and_recorded_once() -> None:
    """I24, I25."""
    story = begun()
    no = story.intend().no
    assert no is not None
    story.after(_LEASE).sweep().claim(worker="w_2")
    for _ in range(2):
        with story.refuses("LEASE_STALE"):
            story.settle(no, "succeeded", n=1)
    assert list(story.stale) == [(0, 1, "settle_act")]
    with story.refuses("LEASE_STALE"):
        story.intend(n=1)
    with story.refuses("LEASE_NOT_FOUND"):
        story.intend(n=7)


def test_a_canceling_run_intends_nothing_new_but_records_outcomes() -> None:
    story = begun()
    no = story.intend().no
    assert no is not None
    story.cancel()
    assert story.intend(story.act("b#1")).state == "cancel"
    assert story.propose(story.act("b#1")).state == "cancel"
    assert story.repeat(no).state == "cancel"
    assert story.settle(no, "succeeded").state == "settled"
    story.cancel_ack()
    assert (story.status, story.receipt(no).state) == ("canceled", "succeeded")


# ----------------------------------------------------------------------------------------------- approvals


def asked(story: ActStory, **how: object) -> int:
    """Propose an act that needs approval, and suspend on the approval."""
    reply = story.propose(**how)  # type: ignore[arg-type]  # whatever a test wants
    assert (reply.state, story.status) == ("wait", "running")
    assert reply.no is not None
    story.suspend("main", reply.no)
    assert story.status == "waiting_approval"
    return reply.no


def approve(story: ActStory, no: int, *people: str) -> None:
    for one in people or ("person:bob",):
        story.approve(no, by=one, digest=story.snap.approvals[no].digest.hex())


@pytest.mark.clause("GOV-16")
def test_an_act_waits_for_its_approval_and_uses_it_up() -> None:
    """I42."""
    story = begun()
    no = asked(story, question=b'{"writes":["add bug"]}')
    approval = story.snap.approvals[no]
    assert (approval.tier, approval.people, approval.digest) == ("med", 1, story.act().digest)
    approve(story, no)
    story.claim()
    assert story.intend(ruling=ASK).state == "ask", "an approval that the command does not name is not used"
    reply = story.propose()
    assert (reply.state, reply.approval_no) == ("go_on", no)
    reply = story.intend(ruling=ASK, approval_no=no)
    assert reply.state == "call"
    assert reply.no is not None
    assert (story.snap.approvals[no].used_no, story.receipt(reply.no).approval_no) == (reply.no, no)
    story.settle(reply.no, "succeeded")
    first, second = story.verdicts
    assert [first.outcome, second.outcome] == ["needs_approval", "needs_approval"]
    # The first verdict has the request. The second needs none, because the receipt has it.
    assert (first.request_ref, second.request_ref) == (approval.question_ref, None)
    assert (first.name, second.name) == (story.act().name, "")


def test_a_repeated_proposal_is_the_same_approval() -> None:
    story = begun()
    no = story.propose().no
    events = len(story.events)
    assert story.propose().no == no
    assert len(story.events) == events


@pytest.mark.parametrize("kind", ["approval", "proposal", "event", "child"])
@pytest.mark.parametrize("label", ["act:label.add#1", "act:label.add#1~2", "receipt:3"])
def test_user_code_cannot_open_a_wait_with_the_label_of_an_act(label: str, kind: str) -> None:
    """I42: otherwise a runner that knows the digest could have people approve a text of its own."""
    story = begun()
    digest = story.act().digest.hex()
    what: Any = {
        "approval": ApprovalSpec("lunch", "high", 1, digest=digest),
        "proposal": ApprovalSpec("lunch", "high", 1, digest=digest),
        "event": WaitSpec("lunch"),
        "child": StartChild(run_id=OTHER_RUN, workflow="lunch", plan=(BODY_STEP,)),
    }
    with story.refuses("INVALID_INPUT"):
        story.open_wait("main", label, **{kind: what[kind]})
    story.open_wait("main", "act:label.add#1!1", until=5.0)


@pytest.mark.parametrize("changed", ["fields", "people"])
def test_a_changed_proposal_revises_its_approval(changed: str) -> None:
    """Failure 15: an answer to an earlier revision does not count."""
    story = begun()
    two = msgspec.structs.replace(ASK, people=2)
    no = story.propose(ruling=two).no
    assert no is not None
    first = story.snap.approvals[no]
    story.approve(no, digest=first.digest.hex(), revision=1)
    act = story.act(fields={"label": "feature"}) if changed == "fields" else story.act()
    ruling = two if changed == "fields" else msgspec.structs.replace(ASK, people=3, people_in="release")
    story.after(10)
    assert story.propose(act, ruling).no == no
    approval = story.snap.approvals[no]
    assert (approval.revision, approval.votes, approval.digest) == (2, "", act.digest)
    assert approval.people == ruling.people
    with story.refuses("APPROVAL_STALE"):
        story.approve(no, by="person:carol", digest=first.digest.hex(), revision=1)


@pytest.mark.clause("GOV-23")
@pytest.mark.clause("GOV-18")
@pytest.mark.parametrize("suspended", [True, False])
@pytest.mark.parametrize("how", ["rejected", "expired"])
def test_a_rejection_or_an_expiry_ends_the_run(how: str, suspended: bool) -> None:
    story = begun()
    ruling = msgspec.structs.replace(ASK, within_seconds=20)
    no = story.propose(ruling=ruling).no
    assert no is not None
    if suspended:
        story.suspend("main", no)
    if how == "rejected":
        story.reject(no, digest=story.snap.approvals[no].digest.hex())
    else:
        story.after(20).tick("wait", no)
    code = f"APPROVAL_{how.upper()}"
    if not suspended:
        assert story.status == "running"
        assert story.propose(ruling=ruling).error == code
    assert (story.status, story.run.reason) == ("failed", code)


def test_an_approval_covers_one_action_and_its_retries() -> None:
    """I42: an approval is used once. A failed try passes it on; a reversed action needs a new approval."""
    story = begun()
    no = asked(story)
    approve(story, no)
    story.claim()
    first = story.intend(ruling=ASK, approval_no=no).no
    assert first is not None
    story.settle(first, "failed", error="X", retry_after_seconds=0)
    second = story.intend(ruling=ASK, approval_no=no).no
    assert second is not None
    assert story.snap.approvals[no].used_no == second
    story.settle(second, "succeeded")
    story.reversed_by(second, OTHER_RUN)
    assert story.receipt(second).state == "reversed"
    assert story.intend(ruling=ASK, approval_no=no).state == "ask"
    reply = story.propose()
    assert (reply.state, reply.no != no) == ("wait", True)
    assert story.wait(reply.no or 0).label == "act:label.add#1~2"


@pytest.mark.parametrize("why", ["closed", "left", "expired", "stricter", "involved", "withdrawn"])
def test_an_approval_that_no_longer_suffices_is_requested_again(why: str) -> None:
    """I42, I43: checked in the commit that would use the approval."""
    story = begun()
    ruling = msgspec.structs.replace(ASK, people_in="release", within_seconds=100)
    no = asked(story, ruling=ruling)
    approve(story, no)
    if why == "expired":
        story.after(100)
    story.claim()
    if why == "closed":
        story.people["bob"] = person("bob", "release", closed_at=1)
    elif why == "left":
        story.people["bob"] = person("bob")
    elif why == "stricter":
        ruling = msgspec.structs.replace(ruling, people=2)
    elif why == "involved":
        assert story.snap.spec is not None
        story.checked = False
        story.snap.spec.involved = "person:bob"
    else:
        story.checked = False
        story.snap.approvals[no].status = "canceled"
    assert story.intend(ruling=ruling, approval_no=no).state == "ask"
    reply = story.propose(ruling=ruling)
    assert reply.state == "wait"
    assert reply.no != no


def test_local_names_count_as_one_person() -> None:
    """I43: whoever decides with direct access to the database is one person, whatever the name."""
    story = begun()
    two = msgspec.structs.replace(ASK, people=2)
    no = asked(story, ruling=two)
    approve(story, no, "ada", "eve")
    story.claim()
    assert story.intend(ruling=two, approval_no=no).state == "ask"
    no = story.propose(ruling=two).no or 0
    approve(story, no, "uid:1000")
    with story.refuses("APPROVER_NOT_ELIGIBLE"):
        approve(story, no, "uid:1001")
    approve(story, no, "person:carol")
    assert story.intend(ruling=two, approval_no=no).state == "call"


def test_two_local_accounts_do_not_satisfy_a_two_person_rule() -> None:
    story = begun()
    no = story.open_wait("main", "approve", approval=ApprovalSpec("ship", "high", 2)).no
    assert no is not None
    story.approve(no, by="uid:1000")
    with story.refuses("APPROVER_NOT_ELIGIBLE"):
        story.approve(no, by="uid:0")
    assert story.snap.approvals[no].status == "requested"
    assert story.approve(no, by="person:carol")["status"] == "approved"


# ------------------------------------------------------------------------------------------------ keys


def held(story: ActStory, name: str, state: str = "succeeded", operation: str = "label.add") -> ReceiptRow:
    row = ReceiptRow(
        OTHER_RUN, 3, "acme", 0, "x#1", 1, "github", operation, "low", name, b"d" * 32, "none", True, 1, None, 1, 0, 0,
        None, None, state=state, settled_at=1 if state == "succeeded" else None, result_ref=4,
    )  # fmt: skip
    story.held = [row]
    story.held_result = b'"theirs"'
    return row


@pytest.mark.clause("GOV-15")
def test_the_receipt_of_another_run_with_the_same_key_is_reused() -> None:
    """I37."""
    story = begun()
    held(story, "mine")
    act = story.act(name="mine")
    reply = story.intend(act)
    assert (reply.state, reply.source) == ("done", (OTHER_RUN, 3))
    assert story.body(reply.result_ref) == b'"theirs"'
    assert reply.no is not None
    receipt = story.receipt(reply.no)
    assert (receipt.state, receipt.source_run, story.run_spend.writes) == ("reused", OTHER_RUN, 0)
    assert story.intend(act).state == "done"


@pytest.mark.parametrize("state", ["intent", "unknown"])
def test_a_key_that_another_open_receipt_holds_is_busy(state: str) -> None:
    story = begun()
    held(story, "mine", state)
    events = len(story.events)
    assert story.intend(story.act(name="mine")).state == "busy"
    assert len(story.events) == events


def test_a_key_of_another_operation_is_refused() -> None:
    story = begun()
    held(story, "mine", operation="comment.add")
    with story.refuses("IDEMPOTENCY_KEY_REUSED"):
        story.intend(story.act(name="mine"))


@pytest.mark.parametrize("state", ["intent", "succeeded"])
@pytest.mark.parametrize(
    "theirs",
    [
        b'{"target":{"n":1},"fields":{"label":"bug"}}',
        b'{"target":{},"fields":{"label":"fine"}}',
        b'{"target":{},"fields":{"label":"bug","n":null}}',
    ],
)
def test_a_key_of_another_target_or_of_other_fields_is_refused(theirs: bytes, state: str) -> None:
    """Otherwise an act could count as done that never happened, such as when a run resumes another one with other input."""
    story = begun()
    held(story, "mine", state)
    story.held_request = theirs
    with story.refuses("IDEMPOTENCY_KEY_REUSED"):
        story.intend(story.act(name="mine"))
    story.held_request = b'{"fields":{"label":"bug"},"target":{}}'
    assert story.intend(story.act(name="mine")).state == ("done" if state == "succeeded" else "busy")


def test_two_acts_of_one_run_with_one_key_must_be_equal() -> None:
    story = begun()
    first = story.intend(story.act("a#1", name="mine")).no
    assert first is not None
    story.settle(first, "succeeded", result=b"7")
    with story.refuses("IDEMPOTENCY_KEY_REUSED"):
        story.intend(story.act("b#1", name="mine"), request=b'{"target":{"n":1},"fields":{}}')


def test_large_requests_are_compared_by_digest() -> None:
    story = begun()
    held(story, "mine")
    big = '{"$tenure.artifact":"%s","size":99999,"run":"%s"}'
    story.held_request = (big % ("aa" * 32, "run_1")).encode()
    with story.refuses("IDEMPOTENCY_KEY_REUSED"):
        story.intend(story.act(name="mine"), request=(big % ("bb" * 32, "run_2")).encode())
    assert story.intend(story.act(name="mine"), request=(big % ("aa" * 32, "run_2")).encode()).state == "done"


def test_two_acts_of_one_run_share_a_key() -> None:
    story = begun()
    first = story.intend(story.act("a#1", name="mine")).no
    assert first is not None
    assert story.intend(story.act("b#1", name="mine")).state == "busy"
    story.settle(first, "succeeded", result=b"7")
    reply = story.intend(story.act("b#1", name="mine"))
    assert (reply.state, reply.source, story.body(reply.result_ref)) == ("done", (story.run_id, first), b"7")
    story.reversed_by(first, OTHER_RUN)
    assert story.intend(story.act("c#1", name="mine")).state == "call", "a reversed act can be done again"


# ------------------------------------------------------------------------------------- lost answers


def crashed(story: ActStory, **how: Any) -> int:
    """Intend an act and lose the worker; another attempt follows."""
    no = story.intend(story.act(**how)).no
    assert no is not None
    story.after(_LEASE).sweep().claim(worker="w_2")
    return no


@pytest.mark.parametrize("repeats", ["native_key", "sets_state"])
def test_a_call_that_is_safe_to_repeat_is_intended_again_under_the_new_lease(repeats: str) -> None:
    """Failure 26, I38."""
    story = begun()
    no = crashed(story, repeats=repeats)
    reply = story.intend(story.act(repeats=repeats))
    assert (reply.state, reply.receipt_state) == ("open", "intent")
    reply = story.repeat(no)
    assert (reply.state, story.receipt(no).n, story.run_spend.writes) == ("call", 2, 1)
    story.settle(no, "succeeded")
    assert story.receipt(no).state == "succeeded"


@pytest.mark.parametrize("repeats", ["marker", "none"])
def test_a_call_that_is_not_safe_to_repeat_is_left_to_a_person(repeats: str) -> None:
    """Failure 26, I38."""
    story = begun()
    no = crashed(story, repeats=repeats)
    events = len(story.events)
    assert story.repeat(no).state == "open"
    with story.refuses("RUN_INVALID_TRANSITION"):
        story.settle(no, "failed", error="NOT_FOUND")
    assert len(story.events) == events
    reply = story.settle(no, "unknown", settle_within_seconds=600, question=b"{}")
    assert reply.state == "wait"
    assert reply.no is not None
    story.suspend("main", reply.no)
    assert (story.status, story.wait(reply.no).kind) == ("waiting_approval", "receipt")
    assert story.settle_by("person:bob", no, "done", result=b'"seen"') == {
        "state": "succeeded",
        "again": False,
    }
    assert story.settle_by("person:bob", no, "done")["again"] is True
    assert story.step("main").state == "ready"
    story.claim()
    assert story.body(story.intend(story.act(repeats=repeats)).result_ref) == b'"seen"'


def test_an_effect_that_was_found_counts_as_succeeded() -> None:
    story = begun()
    no = crashed(story, repeats="marker")
    story.settle(no, "succeeded", result=b'"found"')
    assert (story.receipt(no).state, story.receipt(no).n) == ("succeeded", 1)
    assert story.step("main").charged == 0, "the effect is progress, so the attempt is not charged"


def unknown(story: ActStory, **how: Any) -> tuple[int, int]:
    """An act with an unknown outcome, and the wait for a person."""
    no = story.intend(story.act(**how)).no
    assert no is not None
    wait = story.settle(no, "unknown", error="CONNECTOR_ANSWER_LOST", settle_within_seconds=600).no
    assert wait is not None
    assert story.settle(no, "unknown").no == wait, "a repeat finds the same question"
    return no, wait


@pytest.mark.parametrize("how", ["found", "repeated"])
def test_an_unknown_act_that_is_found_or_repeated_needs_no_person(how: str) -> None:
    """A look-up may settle it, and a call that is safe to repeat may be repeated."""
    story = begun()
    no, wait = unknown(story, repeats="native_key")
    if how == "repeated":
        assert story.repeat(no).state == "call"
        assert (story.receipt(no).state, story.wait(wait).state) == ("intent", "closed")
    story.settle(no, "succeeded", result=b"1")
    assert (story.receipt(no).state, story.wait(wait).state) == ("succeeded", "closed")
    with story.refuses("RECEIPT_SETTLED"):
        story.settle_by("person:bob", no, "done")


def test_settling_as_not_done_fails_the_act_and_refunds_the_write() -> None:
    story = begun()
    no, wait = unknown(story)
    story.suspend("main", wait)
    story.settle_by("person:bob", no, "not_done", reason=b"it is not there")
    assert (story.receipt(no).state, story.receipt(no).settled_by, story.run_spend.writes) == (
        "failed",
        "person:bob",
        0,
    )
    story.claim()
    assert (story.intend().state, story.intend().eligible_at) == ("failed", None)
    with story.refuses("RECEIPT_SETTLED"):
        story.settle_by("person:carol", no, "done")


def test_settling_as_call_again_allows_one_call() -> None:
    """I38."""
    story = begun()
    no, wait = unknown(story)
    story.suspend("main", wait)
    story.settle_by("person:bob", no, "retry")
    story.claim()
    assert (story.receipt(no).state, story.receipt(no).settled_by) == ("intent", "person:bob")
    assert story.repeat(no).state == "call"
    assert story.receipt(no).settled_by is None
    assert story.repeat(no).state == "open"
    story.settle(no, "succeeded")


@pytest.mark.parametrize("who", ["u_alice", "person:dave"])
def test_involved_people_cannot_settle_receipts(who: str) -> None:
    """I43."""
    story = begun(involved="person:dave")
    no, _ = unknown(story)
    with story.refuses("APPROVER_IS_REQUESTER"):
        story.settle_by(who, no, "done")


def test_a_receipt_can_be_settled_after_its_wait_expired() -> None:
    story = begun()
    no, wait = unknown(story)
    story.suspend("main", wait)
    story.after(600).sweep()
    assert (story.status, story.run.reason, story.receipt(no).state) == (
        "failed",
        "RECEIPT_UNKNOWN",
        "unknown",
    )
    with story.refuses("RUN_TERMINAL_STATE"):
        story.settle_by("person:bob", no, "retry")
    head = story.run.head
    story.settle_by("person:bob", no, "not_done")
    assert (story.status, story.receipt(no).state, story.run.head != head) == ("failed", "failed", True)


@pytest.mark.parametrize("end", ["timeout", "cancel", "complete"])
def test_an_ended_step_has_no_open_intent(end: str) -> None:
    story = begun(timeout_seconds=100)
    no = story.intend().no
    assert no is not None
    if end == "complete":
        story.complete()
    elif end == "cancel":
        story.cancel()
        story.after(3600).sweep()
    else:
        story.after(3600).sweep()
    assert story.finished
    assert story.receipt(no).state == "unknown"


def test_a_repeat_during_a_freeze_ends_the_step_and_leaves_the_receipt_unknown() -> None:
    story = begun()
    no = crashed(story, repeats="native_key")
    story.governance = governance(frozen=("*",))
    assert story.repeat(no).error == "FROZEN"
    assert (story.run.reason, story.receipt(no).state) == ("FROZEN", "unknown")
    assert involved_people(story) == "person:cyd"


# --------------------------------------------------------------------------------- undo, compensation, budget


def test_a_successful_reversal_notifies_the_original_run() -> None:
    story = begun()
    reply = story.intend(story.act(reverses=(OTHER_RUN, 3)))
    assert reply.no is not None
    assert not story.owed("reversed")
    story.settle(reply.no, "succeeded")
    (row,) = story.owed("reversed")
    assert row.target_id == OTHER_RUN
    assert msgspec.msgpack.decode(row.body) == {"no": 3, "by_run": story.run_id, "by_no": reply.no}


def test_a_receipt_is_marked_reversed_once_even_after_its_run() -> None:
    story = begun()
    no = story.intend().no
    assert no is not None
    with story.refuses("RUN_INVALID_TRANSITION"):
        story.reversed_by(no, OTHER_RUN)
    story.settle(no, "succeeded")
    story.complete()
    assert story.reversed_by(no, OTHER_RUN) == {"again": False}
    events = len(story.events)
    assert story.reversed_by(no, OTHER_RUN) == {"again": True}
    assert len(story.events) == events
    with story.refuses("RUN_TERMINAL_STATE"):
        story.reversed_by(no, OTHER_RUN + 1)


@pytest.mark.parametrize(("compensate", "wrote"), [(True, True), (True, False), (False, True)])
def test_a_canceled_run_with_writes_owes_a_compensation(compensate: bool, wrote: bool) -> None:
    story = begun(compensate=compensate)
    no = story.intend().no
    assert no is not None
    story.settle(no, "succeeded" if wrote else "failed")
    story.cancel()
    story.cancel_ack()
    assert len(story.owed("compensate")) == (compensate and wrote)
