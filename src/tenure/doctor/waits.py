"""Approvals: I42 to I45, as far as they bind by themselves (what policies ask for comes later), and who may not decide them (I59); steps
that are not done: I61."""

from __future__ import annotations

from collections.abc import Iterator

from tenure.doctor.checked_run import CheckedRun
from tenure.doctor.invariants import Finding, checks
from tenure.doctor.states import describe_step
from tenure.kernel.machines import LEASED_STEP
from tenure.kernel.run_rows import CONDITION_FALSE, QUESTIONS, ApprovalRow
from tenure.kernel.separation_of_duties import MORE_PEOPLE

GATES = ("approval", "wait")

_BY_HAND = frozenset({"create", "metadata", "end_wait", "cancel", "cancel_step", "revoke", "involve"})
"""Events by which a user causes or changes a run."""


def _row(approval: ApprovalRow) -> str:
    return f"approval {approval.no}"


@checks("I42")
def approved_in_time(view: CheckedRun) -> Iterator[Finding]:
    """Approved means: by enough people for the newest revision, before it expired; the wait says the same."""
    if not view.bundle.approvals:
        return
    waits = {wait.no: wait for wait in view.bundle.waits}
    withdrawn = {
        body["context"]["withdrawn"]["no"]
        for _, body in view.bodies
        if "withdrawn" in body.get("context", {})
    }
    for approval in view.bundle.approvals:
        wait = waits.get(approval.no)
        if wait is None or wait.kind not in QUESTIONS:
            yield _row(approval), "has no wait"
            continue
        if wait.state == "settled" and wait.outcome != approval.status:
            yield _row(approval), f"is {approval.status}, its wait was told {wait.outcome!r}"
        if wait.expires_at != approval.expires_at:
            yield _row(approval), f"expires at {approval.expires_at}, its wait at {wait.expires_at}"
        if approval.status != "approved":
            continue
        if (
            approval.expires_at is not None
            and approval.decided_at is not None
            and approval.decided_at >= approval.expires_at
        ):
            yield _row(approval), f"was approved at {approval.decided_at}, after it expired"
        if len(approval.votes.split()) < approval.people and (
            approval.used_no is not None or approval.no not in withdrawn
        ):
            yield _row(approval), f"was approved by {approval.votes!r}; it takes {approval.people}"
    yield from _votes_of_revision(view)
    for step in view.bundle.steps:
        if step.kind == "approval" and step.state == "succeeded" and step.reason != CONDITION_FALSE:
            no = step.wait_no
            if not any(a.no == no and a.status == "approved" for a in view.bundle.approvals):
                yield describe_step(step), "succeeded without an approval"


def _votes_of_revision(view: CheckedRun) -> Iterator[Finding]:
    """Votes of an older revision do not count for a newer one."""
    for event, body in view.bodies:
        for no, columns in body.get("set", {}).get("approval", {}).items():
            if "revision" in columns and "requested_at" not in columns and columns.get("votes", ""):
                yield (
                    f"event {event.seq}",
                    f"approval {no} was revised and kept the votes {columns['votes']!r}",
                )
            if "digest" in columns and "revision" not in columns:
                yield f"event {event.seq}", f"approval {no} asks for something else under the same revision"


@checks("I43")
def approvers_are_others(view: CheckedRun) -> Iterator[Finding]:
    """Whoever asked does not approve, and nobody counts twice."""
    for approval in view.bundle.approvals:
        votes = approval.votes.split()
        if approval.requester in votes or approval.decided_by == approval.requester:
            yield _row(approval), f"was asked for and decided by {approval.requester}"
        if len(set(votes)) != len(votes):
            yield _row(approval), f"counts somebody twice: {approval.votes!r}"


@checks("I59")
def deciders_had_no_hand_in_it(view: CheckedRun) -> Iterator[Finding]:
    """Whoever caused, changed or fed the run stands behind it from then on, and has decided nothing that was asked later."""
    approvals = {str(wait.no) for wait in view.bundle.waits if wait.kind == "approval"}
    behind: set[str] = set()
    hands: set[str] = set()
    senders: dict[str, set[str]] = {}
    asked: dict[str, frozenset[str]] = {}
    for event, body in view.bodies:
        changes = body.get("set", {})
        for name in ("requester", "involved"):
            behind |= set(changes.get("run_spec", {}).get("", {}).get(name, "").split())
        new = {event.actor} if event.kind in _BY_HAND and event.initiator == "user" else set()
        for no, columns in changes.get("inbox", {}).items():
            senders.setdefault(no, set()).update(columns.get("senders", "").split())
            new |= senders[no] if columns.get("wait_no") is not None else set()
        if MORE_PEOPLE not in behind:
            for one in sorted(new - behind):
                yield (
                    f"event {event.seq}",
                    f"{one} had a hand in the run ({event.kind}) and is not recorded as involved",
                )
        hands |= new
        for no in changes.get("approval", {}).keys() & approvals:
            if "requested_at" in changes["approval"][no]:
                asked[no] = frozenset(hands)
        for told in body.get("context", {}).get("approval", ()):
            if told.get("decided_by") in asked.get(str(told.get("no")), ()):
                yield (
                    f"approval {told['no']}",
                    f"{told['decided_by']} had a hand in the run before it was asked",
                )


@checks("I44")
def decided_once(view: CheckedRun) -> Iterator[Finding]:
    """The history decides an approval once, and the row says by whom."""
    if not view.bundle.approvals:
        return
    decided: dict[str, int] = {}
    for event, body in view.bodies:
        for no, columns in body.get("set", {}).get("approval", {}).items():
            if columns.get("status", "requested") != "requested":
                if no in decided:
                    yield f"event {event.seq}", f"approval {no} was decided in event {decided[no]} already"
                decided[no] = event.seq
    for approval in view.bundle.approvals:
        if (approval.status in ("approved", "rejected")) != (approval.decided_by is not None):
            yield _row(approval), f"is {approval.status}, decided by {approval.decided_by!r}"


@checks("I61")
def what_is_skipped_was_never_leased(view: CheckedRun) -> Iterator[Finding]:
    """A step that its condition skips has no attempts and no output, and says why; nobody is handed a step whose input has yet
    to be made."""
    count = sum(step.reason == CONDITION_FALSE for step in view.bundle.steps)
    if count != view.run.steps_skipped:
        yield "run", f"counts {view.run.steps_skipped} skipped steps; there are {count}"
    for step in view.bundle.steps:
        skipped = step.reason == CONDITION_FALSE
        leased = step.attempt or step.claimable or step.idx in view.attempts
        if skipped and (leased or step.state != "succeeded" or step.output_ref is not None):
            yield describe_step(step), f"was skipped; it is {step.state}, was leased {step.attempt} times"
        elif skipped and step.condition is None:
            yield describe_step(step), "was skipped, and has no condition"
        elif step.resolution == "skip" and (leased or step.state == "succeeded") and not skipped:
            yield describe_step(step), f"is to be skipped; it is {step.state}: {step.reason}"
        elif step.resolution == "due" and (step.claimable or step.state in LEASED_STEP):
            yield describe_step(step), f"is {step.state}, and its input has yet to be made"
        elif step.state == "succeeded" and not leased and not skipped and step.kind not in GATES:
            yield describe_step(step), f"succeeded without an attempt: {step.reason}"


@checks("I45")
def gates_are_never_leased(view: CheckedRun) -> Iterator[Finding]:
    """A gate has no attempts and cannot be claimed."""
    for step in view.bundle.steps:
        leased = step.attempt or step.claimable or step.idx in view.attempts
        if leased and step.kind in GATES:
            yield (
                describe_step(step),
                f"is a gate; it was leased {step.attempt} times, claimable: {step.claimable}",
            )
