"""Approvals without policies: I42 to I45, and who may not decide them: I59. Skipped steps: I61."""

from __future__ import annotations

from collections.abc import Iterator

from tenure.doctor.acts import involved_in
from tenure.doctor.checked_run import CheckedRun, describe
from tenure.doctor.invariants import Finding, checks
from tenure.kernel.machines import LEASED_STEP
from tenure.kernel.run_rows import CONDITION_FALSE, QUESTIONS, REUSED
from tenure.kernel.separation_of_duties import MORE_PEOPLE

GATES = ("approval", "wait")

_BY_HAND = frozenset({"create", "metadata", "end_wait", "cancel", "cancel_step", "revoke", "involve"})
"""Kinds of events by which a user causes or changes a run."""


@checks("I42")
def approved_in_time(view: CheckedRun) -> Iterator[Finding]:
    """An approval was given by enough people for its newest revision, before it expired. Its wait has the same outcome."""
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
            yield describe(approval), "has no wait"
            continue
        if wait.state == "settled" and wait.outcome != approval.status:
            yield describe(approval), f"is {approval.status}, but the outcome of its wait is {wait.outcome!r}"
        if wait.expires_at != approval.expires_at:
            yield describe(approval), f"expires at {approval.expires_at}, its wait at {wait.expires_at}"
        if approval.status != "approved":
            continue
        if (
            approval.expires_at is not None
            and approval.decided_at is not None
            and approval.decided_at >= approval.expires_at
        ):
            yield describe(approval), f"was approved at {approval.decided_at}, after it expired"
        if len(approval.votes.split()) < approval.people and (
            approval.used_no is not None or approval.no not in withdrawn
        ):
            yield describe(approval), f"was approved by {approval.votes!r}; it needs {approval.people} people"
    yield from _votes_of_revision(view)
    for step in view.bundle.steps:
        if step.kind == "approval" and step.state == "succeeded" and step.reason != CONDITION_FALSE:
            no = step.wait_no
            if not any(a.no == no and a.status == "approved" for a in view.bundle.approvals):
                yield describe(step), "succeeded without an approval"


def _votes_of_revision(view: CheckedRun) -> Iterator[Finding]:
    """Votes of an older revision do not count for a newer one."""
    for event, no, columns in view.changes("approval"):
        if "revision" in columns and "requested_at" not in columns and columns.get("votes", ""):
            yield f"event {event.seq}", f"approval {no} was revised and kept the votes {columns['votes']!r}"
        if "digest" in columns and "revision" not in columns:
            yield f"event {event.seq}", f"approval {no} has another digest with the same revision"


@checks("I43")
def approvers_are_others(view: CheckedRun) -> Iterator[Finding]:
    """The requester does not approve, and no person counts twice."""
    for approval in view.bundle.approvals:
        votes = approval.votes.split()
        if approval.requester in votes or approval.decided_by == approval.requester:
            yield describe(approval), f"was requested and decided by {approval.requester}"
        if len(set(votes)) != len(votes):
            yield describe(approval), f"counts a person twice: {approval.votes!r}"


@checks("I59")
def deciders_had_no_hand_in_it(view: CheckedRun) -> Iterator[Finding]:
    """Everybody who started, changed or sent data to the run is recorded as involved, and decided no approval that was asked for later."""
    approvals = {str(wait.no) for wait in view.bundle.waits if wait.kind == "approval"}
    involved: set[str] = set()
    acted: set[str] = set()
    senders: dict[str, set[str]] = {}
    asked: dict[str, frozenset[str]] = {}
    for event, body in view.bodies:
        changes = body.get("set", {})
        involved |= involved_in(changes)
        new = {event.actor} if event.kind in _BY_HAND and event.initiator == "user" else set()
        for no, columns in changes.get("inbox", {}).items():
            senders.setdefault(no, set()).update(columns.get("senders", "").split())
            new |= senders[no] if columns.get("wait_no") is not None else set()
        if MORE_PEOPLE not in involved:
            for person in sorted(new - involved):
                yield (
                    f"event {event.seq}",
                    f"{person} started, changed or sent data to the run ({event.kind}) and is not recorded as involved",
                )
        acted |= new
        for no in changes.get("approval", {}).keys() & approvals:
            if "requested_at" in changes["approval"][no]:
                asked[no] = frozenset(acted)
        for decided in body.get("context", {}).get("approval", ()):
            if decided.get("decided_by") in asked.get(str(decided.get("no")), ()):
                yield (
                    f"approval {decided['no']}",
                    f"{decided['decided_by']} started, changed or sent data to the run before the approval was asked for",
                )


@checks("I44")
def decided_once(view: CheckedRun) -> Iterator[Finding]:
    """An approval is decided once in the history, and its row names the decider."""
    if not view.bundle.approvals:
        return
    decided: dict[str, int] = {}
    for event, no, columns in view.changes("approval"):
        if columns.get("status", "requested") != "requested":
            if no in decided:
                yield f"event {event.seq}", f"approval {no} was already decided in event {decided[no]}"
            decided[no] = event.seq
    for approval in view.bundle.approvals:
        if (approval.status in ("approved", "rejected")) != (approval.decided_by is not None):
            yield describe(approval), f"is {approval.status}, decided by {approval.decided_by!r}"


@checks("I61")
def what_is_skipped_was_never_leased(view: CheckedRun) -> Iterator[Finding]:
    """A step that its condition skips has no attempts and no output, and gives its reason. A step is not leased before its input is
    resolved."""
    count = sum(step.reason == CONDITION_FALSE for step in view.bundle.steps)
    if count != view.run.steps_skipped:
        yield "run", f"counts {view.run.steps_skipped} skipped steps; there are {count}"
    for step in view.bundle.steps:
        skipped = step.reason == CONDITION_FALSE
        leased = step.attempt or step.claimable or step.idx in view.attempts
        if skipped and (leased or step.state != "succeeded" or step.output_ref is not None):
            yield describe(step), f"was skipped, but it is {step.state} and was leased {step.attempt} times"
        elif skipped and step.condition is None:
            yield describe(step), "was skipped without a condition"
        elif step.resolution == "skip" and (leased or step.state == "succeeded") and not skipped:
            yield describe(step), f"must be skipped, but it is {step.state}: {step.reason}"
        elif step.resolution == "due" and (step.claimable or step.state in LEASED_STEP):
            yield describe(step), f"is {step.state}, but its input is not resolved"
        elif (
            step.state == "succeeded"
            and not leased
            and not skipped
            and step.reused_run is None
            and step.kind not in GATES
        ):
            yield describe(step), f"succeeded without an attempt: {step.reason}"


@checks("I61")
def a_reused_step_never_ran(view: CheckedRun) -> Iterator[Finding]:
    """A step with the result of an earlier step has no attempt, and names that step. No other step does."""
    for step in view.bundle.steps:
        linked = step.reused_run is not None and step.reused_step is not None
        if (step.reason == REUSED) != linked or (step.reused_run is None) != (step.reused_step is None):
            yield describe(step), f"its reason is {step.reason}, and it names {step.reused_run}"
        if linked and (step.state != "succeeded" or step.attempt or step.idx in view.attempts):
            yield describe(step), f"has an earlier result, but it is {step.state} in attempt {step.attempt}"
        if linked and (step.reuse is None or step.reuse_key is None):
            yield describe(step), "has an earlier result that it could not have found"
        if step.reuse is not None and step.attempt and step.resolution == "due" and step.template_ref is None:
            yield describe(step), "looks for an earlier result although it was begun"


@checks("I45")
def gates_are_never_leased(view: CheckedRun) -> Iterator[Finding]:
    """A gate has no attempts and cannot be claimed."""
    for step in view.bundle.steps:
        leased = step.attempt or step.claimable or step.idx in view.attempts
        if leased and step.kind in GATES:
            yield (
                describe(step),
                f"is a gate; it was leased {step.attempt} times, claimable: {step.claimable}",
            )
