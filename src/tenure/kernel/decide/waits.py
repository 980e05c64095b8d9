"""Waiting for people, events, time and children.
Laws:
1. A step may open waits while its lease continues, and suspends on a set of them. If one has settled, it continues at
   once. Otherwise the lease ends, and the first wait that settles makes the step ready, once. A step that has begun
   something that can be neither skipped nor repeated does not suspend.
2. The oldest open wait of its name takes an event. Without one the event is buffered, up to a limit, and taken first
   in, first out. An event id never counts twice.
3. An approval binds to what was shown (digest and revision): an answer that names anything else is stale, also if
   nothing is bound. A person who is involved in the run does not count, whenever they became involved. One person
   counts once. One refusal decides.
4. A child that cannot become a run (unknown profile, invalid plan, too large, its id taken) is refused when it is
   requested, while the caller can still get the error.
5. Opening a wait under an existing label returns that wait: a replayed body finds its waits again, and starts no
   child twice.
6. A proposal is a question that no step waits for. It is the run's own, so the requester of the run may decide it.
   What needs a second person is an approval.
"""

from __future__ import annotations

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.kernel.act_commands import WithdrawApproval
from tenure.kernel.commands import (
    SYSTEM,
    DecideApproval,
    DeliverEvent,
    EndWait,
    FinishChild,
    OpenWait,
    ReviseApproval,
    Suspend,
)
from tenure.kernel.decide.leases import end_step_and_lease, keep_answer, require_lease, suspend_step
from tenure.kernel.decide.linked_runs import owe_run
from tenure.kernel.decide.ready_steps import (
    add_approval_wait,
    add_event_wait,
    add_timer_wait,
    insert_wait,
    revise_question,
)
from tenure.kernel.decide.termination import (
    GOOD_OUTCOMES,
    check_run_open,
    current_approval,
    finish_decision,
    open_waits,
    refusal_code,
    settle_wait,
    take_early_events,
)
from tenure.kernel.decide.validation import ACT_LABEL_PREFIX, check_approver, check_wait, is_hex
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.lease_types import LeaseReply
from tenure.kernel.machines import APPROVAL
from tenure.kernel.run_rows import ASKS_PEOPLE, CLOSED_RUN, ApprovalRow, ChildRow, InboxRow, StepRow, WaitRow
from tenure.kernel.separation_of_duties import (
    add_involved_people,
    check_approver_group,
    check_distinct_person,
    check_second_approver,
    involved_people,
    join_people,
    unknown_people_error,
)
from tenure.kernel.snapshot import NotLoaded
from tenure.limits import (
    CHILDREN_PER_RUN_MAX,
    EVENT_IDS_PER_RUN_MAX,
    EVENTS_BUFFERED_PER_RUN_MAX,
    OPEN_WAITS_PER_RUN_MAX,
)

WITHDRAWN = "withdraw_approval"
_MAY_NOT_DECIDE = "may not decide its approvals; ask another approver"


def _reply(wait: WaitRow) -> LeaseReply:
    if wait.state == "open":
        return LeaseReply(no=wait.no)
    return LeaseReply("go_on", no=wait.no, outcome=wait.outcome, result_ref=wait.result_ref)


def open_wait(d: Draft, c: OpenWait) -> Decision:
    """Open a wait under the lease (law 5)."""
    step, attempt = require_lease(d, c)
    if step.state == "canceling":
        raise TenureError("RUN_CANCELING", "the run is being canceled: stop and acknowledge")
    wait = d.snap.find_labeled_wait(c.idx, c.label)
    if wait is None:
        check_wait(c)
        if d.run.waits_open >= OPEN_WAITS_PER_RUN_MAX:
            raise TenureError("WAIT_LIMIT", f"a run has at most {OPEN_WAITS_PER_RUN_MAX} open waits")
        wait = _new_wait(d, c, step)
    else:
        d.notes["found"] = (
            wait.no
        )  # makes an event, so that a cached snapshot without this answer is outdated
    take_early_events(d)
    return finish_decision(d, keep_answer(d, c, attempt, _reply(d.current_row(wait))), "open_wait")


def _new_wait(d: Draft, c: OpenWait, step: StepRow) -> WaitRow:
    if (asked := c.approval or c.proposal) is not None:
        return add_approval_wait(
            d,
            c.idx,
            asked,
            label=c.label,
            gate=False,
            fatal=c.fatal,
            question_ref=d.payload(c.question),
            proposal=c.proposal is not None,
        )
    if c.event is not None:
        return add_event_wait(d, c.idx, c.event, label=c.label, gate=False, fatal=c.fatal)
    if c.until is not None:
        return add_timer_wait(d, c.idx, c.until, label=c.label)
    return _start_child(d, c, step)


def _start_child(d: Draft, c: OpenWait, step: StepRow) -> WaitRow:
    child = c.child
    assert child is not None
    run = d.edit_run()
    if run.children_open >= CHILDREN_PER_RUN_MAX:
        raise TenureError("LIMIT_EXCEEDED", f"a run has at most {CHILDREN_PER_RUN_MAX} open children")
    if child.run_id == run.id or d.snap.find_child(child.run_id) is not None:
        raise TenureError(
            "INVALID_INPUT",
            f"child run id {ids.run_text(child.run_id)!r} is in use already: choose another id",
            (Detail("child.run_id", "is the id of this run, or of a child under another label"),),
        )
    wait = insert_wait(d, c.idx, "child", str(child.run_id), c.label, fatal=c.fatal)
    run.children_open += 1
    d.add(ChildRow(run.id, child.run_id, step.idx, child.on_close, wait.no))
    owe_run(d, child, parent_id=run.id, parent_no=wait.no)
    return wait


def suspend_on(d: Draft, c: Suspend) -> Decision:
    step, attempt = require_lease(d, c)
    if step.state == "canceling":
        # A suspended body is closed without running.
        return end_step_and_lease(d, c, step, "release_canceling", LeaseReply(cancel=True), "suspend")
    if not c.waits:
        raise TenureError("INVALID_INPUT", "a suspension must name at least one wait")
    waits: list[WaitRow] = []
    named = tuple(dict.fromkeys(c.waits))
    d.snap.check_room(len(named))
    d.need("wait", named)
    for no in named:
        wait = d.snap.find_wait(no)
        if wait is None or wait.idx != c.idx:
            raise TenureError("WAIT_NOT_FOUND", f"step {step.name!r} has no wait {no}")
        if wait.kind == "proposal":
            raise TenureError("INVALID_INPUT", f"wait {no} is a proposal: nobody waits for its answer")
        waits.append(wait)
    settled = [w for w in waits if w.state == "settled"]
    refused = next((w for w in settled if w.fatal and w.outcome not in GOOD_OUTCOMES), None)
    if refused is not None and refused.outcome is not None:
        # Code cannot catch a governed refusal: the step ends here.
        code = refusal_code(refused, refused.outcome)
        reply = LeaseReply("refused", outcome=refused.outcome)
        return end_step_and_lease(d, c, step, "fail", reply, "suspend", reason=code, code=code)
    if settled:
        reply = LeaseReply("go_on", settled=tuple(w.no for w in settled))
        d.notes["settled"] = list(reply.settled)
        return finish_decision(d, keep_answer(d, c, attempt, reply), "go_on")
    if step.unsafe:
        # The next attempt could neither skip nor repeat it (law 4 of `leases`); this one can still end it.
        raise TenureError(
            "CHECKPOINT_OPEN",
            f"step {step.name!r} cannot suspend: {_unsafe_checkpoint(d, step)} has not ended",
        )
    approval = any(w.kind in ASKS_PEOPLE for w in waits)
    reply = suspend_step(d, step, list(named), approval=approval)
    return finish_decision(d, keep_answer(d, c, d.attempt_of(step), reply), "suspend")


def _unsafe_checkpoint(d: Draft, step: StepRow) -> str:
    """The checkpoint that keeps the step from suspending, by name if it is known."""
    rows = (row for (idx, _), row in sorted(d.snap.checkpoints.items()) if idx == step.idx)
    named = next((f"checkpoint {row.name!r}" for row in rows if row.unsafe), None)
    if named is None and not d.snap.known & {("checkpoints", step.idx), ("all_checkpoints",)}:
        raise NotLoaded(("checkpoints", step.idx))
    return named or "a checkpoint"


# ------------------------------------------------------------------------------------------ approvals


def decide_approval(d: Draft, c: DecideApproval) -> Decision:
    check_approver(c.approver, c.digest)
    approval = current_approval(d, c.no)
    votes = approval.votes.split()
    if approval.status != "requested":
        is_same = approval.status == ("approved" if c.approve else "rejected")
        if approval.decided_by == c.approver and is_same and (c.approver in votes or not c.approve):
            _check_shown(c, approval)
            return Decision({"status": approval.status, "again": True})
        if approval.status == "canceled" and d.run.status in CLOSED_RUN:
            raise TenureError(
                "RUN_TERMINAL_STATE", f"the run is {d.run.status}: its approval can no longer be decided"
            )
        code = "APPROVAL_EXPIRED" if approval.status == "expired" else "APPROVAL_DECIDED"
        raise TenureError(code, f"the approval is {approval.status} already", status=approval.status)
    if approval.expires_at is not None and approval.expires_at <= d.now:
        raise TenureError("APPROVAL_EXPIRED", "the approval expired before this answer")
    _check_shown(c, approval)
    wait = d.snap.find_wait(c.no)
    assert wait is not None, "an approval shares its wait's number"
    involved = involved_people(d.spec()) if wait.kind == "approval" else frozenset()
    if c.approve and (refused := unknown_people_error(involved)) is not None:
        raise refused
    check_distinct_person(d, c.approver, involved | {approval.requester}, _MAY_NOT_DECIDE)
    if approval.people_in:
        check_approver_group(d, c.approver, approval.people_in)
    if c.approve and c.approver in votes:
        return Decision(
            {"status": "requested", "again": True, "votes": len(votes), "people": approval.people}
        )
    if c.approve:
        check_second_approver(d, c.approver, votes)
    approval = d.edit(approval)
    if c.approve:
        ties = d.snap.ties(d.run.tenant)
        votes = [*(one for one in ties.apart(votes) if ties.among(one, involved) is None), c.approver]
        approval.votes = " ".join(votes)
    given = "reject" if not c.approve else "approve" if len(votes) >= approval.people else "vote"
    approval.status = APPROVAL.take(approval.status, given).next
    d.notes["approval"] = [
        {
            "no": c.no,
            "action": wait.name,
            "requested_by": approval.requester,
            "decision": "approved" if c.approve else "rejected",
            "decided_by": c.approver,
            "decided_at": d.now,
            "revision": approval.revision,
        }
    ]
    reason_ref = d.payload(c.reason)
    if reason_ref is not None:
        approval.reason_ref = reason_ref
    if approval.status != "requested":
        approval.decided_at = d.now
        approval.decided_by = c.approver
        settle_wait(d, wait, approval.status)
    result = {"status": approval.status, "again": False, "votes": len(votes), "people": approval.people}
    return finish_decision(d, result, "decide_approval")


def _check_shown(c: DecideApproval, approval: ApprovalRow) -> None:
    """Refuse an answer to anything else than the current question. What the answer does not name is not compared."""
    if c.revision is not None and c.revision != approval.revision:
        raise TenureError(
            "APPROVAL_STALE",
            f"the answer is to revision {c.revision}; the question has revision {approval.revision}",
        )
    if (approval.digest or c.digest) and bytes.fromhex(c.digest) != approval.digest:
        has = "another digest" if approval.digest else "none: it binds no action"
        raise TenureError(
            "APPROVAL_STALE", f"the answer names the digest {c.digest[:12]!r}; the question has {has}"
        )


def withdraw_approval(d: Draft, c: WithdrawApproval) -> Decision:
    """Withdraw an approval while more people are asked or, for an act, until it is used. An act that lacks it
    needs a new approval."""
    approval = current_approval(d, c.no)
    wait = d.snap.find_wait(c.no)
    assert wait is not None, "an approval shares its wait's number"
    votes = approval.votes.split()
    if c.approver not in votes:
        raise TenureError(
            "APPROVAL_NOT_GIVEN", f"{c.approver} has not approved it, or has withdrawn the approval"
        )
    unused = (
        approval.status == "approved" and approval.used_no is None and wait.label.startswith(ACT_LABEL_PREFIX)
    )
    if d.run.status in CLOSED_RUN or not (approval.status == "requested" or unused):
        raise TenureError(
            "APPROVAL_DECIDED",
            "the approval has been decided or used and can no longer be withdrawn",
            status=approval.status,
        )
    approval = d.edit(approval)
    approval.votes = " ".join(one for one in votes if one != c.approver)
    d.notes["withdrawn"] = {"no": c.no, "by": c.approver, "revision": approval.revision}
    result = {"status": approval.status, "votes": len(votes) - 1, "people": approval.people}
    return finish_decision(d, result, WITHDRAWN)


def revise_approval(d: Draft, c: ReviseApproval) -> Decision:
    if not is_hex(c.digest):
        raise TenureError("INVALID_INPUT", "the digest is not hex")
    approval = revise_question(d, current_approval(d, c.no), bytes.fromhex(c.digest), d.payload(c.question))
    return finish_decision(d, {"revision": approval.revision}, "revise_approval")


# --------------------------------------------------------------------------------- events and children


def deliver_event(d: Draft, c: DeliverEvent) -> Decision:
    run = d.run
    if run.inbox_total and (seen := d.snap.find_event_id(c.event_id)) is not None:
        if seen.name != c.name:
            raise TenureError(
                "INVALID_INPUT", f"event id {c.event_id!r} was already delivered as {seen.name!r}"
            )
        return Decision({"again": True, "taken": seen.wait_no is not None})
    check_run_open(d)
    if run.cancel_at is not None:
        raise TenureError("RUN_CANCELING", "the run is being canceled and takes no more events")
    wait = None
    if run.waits_open:
        # An expired wait takes no event, even before the sweeper has ended it.
        takers = d.snap.open_event_waits(c.name)
        wait = next((w for w in takers if w.expires_at is None or w.expires_at > d.now), None)
    if run.inbox_total >= EVENT_IDS_PER_RUN_MAX or (
        wait is None and run.inbox_buffered >= EVENTS_BUFFERED_PER_RUN_MAX
    ):
        raise TenureError("EVENT_BUFFER_FULL", f"{run.inbox_buffered} events are buffered for this run")
    run = d.edit_run()
    senders = join_people(c.context.actor if c.context.initiator == "user" else None, c.involved)
    row = d.add(
        InboxRow(
            run.id, d.next_no(), c.name, c.event_id, c.source, d.payload(c.payload), d.now, None, senders
        )
    )
    run.inbox_total += 1
    if wait is None:
        run.inbox_buffered += 1
    else:
        row.wait_no = wait.no
        add_involved_people(d, SYSTEM, row.senders)
        settle_wait(d, wait, "received", row.payload_ref)
    d.notes["external"] = [
        {"no": row.wait_no, "event_type": c.name, "source": c.source, "event_id": c.event_id}
    ]
    return finish_decision(d, {"again": False, "taken": wait is not None}, "deliver_event")


def finish_child(d: Draft, c: FinishChild) -> Decision:
    """A child has ended. The message may be repeated and counts once."""
    child = d.snap.find_child(c.child_id)
    if child is None:
        # The successor of a child may end before its parent hears of the restart: the message is sent again.
        raise TenureError("CHILD_NOT_KNOWN", f"no child {c.child_id} is known here yet")
    if child.state != "open":
        return Decision({"again": True})
    child = d.edit(child)
    child.state = "finished"
    child.outcome = c.outcome
    if c.involved:
        add_involved_people(d, SYSTEM, c.involved)
    if c.successor is not None:
        return _child_restarted(d, child, c.successor)
    d.edit_run().children_open -= 1
    if d.run.status not in CLOSED_RUN:
        wait = d.snap.find_wait(child.wait_no)
        if wait is not None and wait.state == "open":
            settle_wait(d, wait, "finished" if c.outcome == "succeeded" else "child_failed")
    return finish_decision(d, {"again": False}, "child_finished")


def _child_restarted(d: Draft, child: ChildRow, successor: int) -> Decision:
    """A child continues as another run, which takes its place everywhere."""
    child.outcome = "restarted"
    d.add(ChildRow(d.run.id, successor, child.idx, child.on_close, child.wait_no))
    wait = d.snap.find_wait(child.wait_no)
    if wait is not None and wait.state == "open":
        d.edit(wait).name = str(successor)
    if child.on_close != "leave" and (d.run.status in CLOSED_RUN or d.run.cancel_at is not None):
        d.owe("cancel", successor, {"reason": "PARENT_CLOSED"})
    return finish_decision(d, {"again": False}, "child_finished")


def end_wait(d: Draft, c: EndWait) -> Decision:
    run = d.run
    check_run_open(d)
    waits = [w for w in open_waits(d) if w.kind in ("event", "time")]
    if run.status == "waiting_approval":
        raise TenureError(
            "RUN_INVALID_TRANSITION",
            "the run waits for an approval: only a decision ends that wait, not a resume",
        )
    if run.status != "waiting_external" or not waits:
        raise TenureError("RUN_INVALID_TRANSITION", "the run waits for no event and no time")
    add_involved_people(d, c.context, c.involved)
    for wait in waits:
        settle_wait(d, wait, "resumed")
    return finish_decision(d, {"ended": len(waits)}, "end_wait")
