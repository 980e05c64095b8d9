"""Acts: I36 to I38, I40, I41 and I58; the parts of I42, I43 and I46 that concern acts; and what a run has spent (I3).

The history of a receipt is the edges that its events took. Rows cannot show that a call was made, or that a policy version was active.
Tests with a service that keeps its own log show the first, and the commit of the intention checks the second.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tenure.doctor.checked_run import Body, CheckedRun, describe
from tenure.doctor.invariants import Finding, checks
from tenure.kernel.act_commands import FIXED_COLUMNS, SAFE_TO_REPEAT, ReliedFacts
from tenure.kernel.act_rows import KEY_HOLDING_RECEIPT
from tenure.kernel.costs import DEFAULT_CURRENCY
from tenure.limits import COST_TOTAL_MAX

WROTE = KEY_HOLDING_RECEIPT | {"reversed"}
"""States of a receipt whose write counts, because it happened or may have happened."""


@checks("I36")
def intents_come_first(view: CheckedRun) -> Iterator[Finding]:
    """Every receipt begins with a commit of its intention, before its call has an outcome. The deadline of the call is not after the end
    of the lease."""
    receipts = view.bundle.receipts
    if len(receipts) != view.run.receipts:
        yield "run", f"counts {view.run.receipts} receipts; there are {len(receipts)}"
    if not receipts:
        return
    created: dict[str, tuple[int, str]] = {}
    for event, no, _ in view.changes("receipt"):
        created.setdefault(no, (event.seq, event.kind))
    for receipt in receipts:
        seq, kind = created.get(str(receipt.no), (0, ""))
        if kind != "intend_act":
            yield describe(receipt), f"was not intended: it was created by {kind or 'no event'}"
        if receipt.state != "reused":
            for taken in view.settled_acts:
                if taken.receipt == receipt.no and taken.seq <= seq:
                    yield (
                        describe(receipt),
                        f"was {taken.edges[-1][2]} in event {taken.seq}, which intends it",
                    )
        for attempt in view.attempts.get(receipt.idx, ()):
            if attempt.n == receipt.n and receipt.call_by > attempt.expires_at:
                yield (
                    describe(receipt),
                    f"may be called until {receipt.call_by}, its lease ends at {attempt.expires_at}",
                )


@checks("I37")
def one_receipt_per_key_here(view: CheckedRun) -> Iterator[Finding]:
    """No two receipts of the run hold the same key. `check_database` compares the runs with each other."""
    holders: dict[str, int] = {}
    for receipt in view.bundle.receipts:
        if receipt.state in KEY_HOLDING_RECEIPT:
            first = holders.setdefault(receipt.name, receipt.no)
            if first != receipt.no:
                yield (
                    describe(receipt),
                    f"holds the key {receipt.name!r}, as does receipt {first}",
                )


@checks("I38")
def repeats_are_safe(view: CheckedRun) -> Iterator[Finding]:
    """A call is repeated only if that is safe, or once for each time that a person asked for it."""
    repeats = {receipt.no: receipt.repeats for receipt in view.bundle.receipts}
    allowed: set[int] = set()
    for taken in view.settled_acts:
        no = taken.receipt or 0
        if taken.move == "settle_retry":
            allowed.add(no)
        elif taken.move == "repeat":
            if repeats.get(no) not in SAFE_TO_REPEAT and no not in allowed:
                yield (
                    f"receipt {no}",
                    f"was called again in event {taken.seq}; its operation repeats {repeats.get(no)}",
                )
            allowed.discard(no)


@checks("I40")
def intents_are_allowed(view: CheckedRun) -> Iterator[Finding]:
    """Each receipt has a verdict of the same act and digest, which is not a denial and names a policy version."""
    verdicts = {verdict.no: verdict for verdict in view.bundle.verdicts}
    for receipt in view.bundle.receipts:
        verdict = verdicts.get(receipt.verdict_no)
        if verdict is None:
            yield describe(receipt), f"names verdict {receipt.verdict_no}, which does not exist"
            continue
        if verdict.digest != receipt.digest or (verdict.idx, verdict.label) != (receipt.idx, receipt.label):
            yield describe(receipt), f"verdict {verdict.no} is of another action"
        if verdict.outcome == "deny" or verdict.version == 0:
            yield (
                describe(receipt),
                f"verdict {verdict.no} of policy version {verdict.version} is {verdict.outcome}",
            )
        if verdict.outcome == "needs_approval" and receipt.approval_no is None and receipt.state != "reused":
            yield describe(receipt), "needs an approval and names none"


@checks("I41")
def errors_deny(view: CheckedRun) -> Iterator[Finding]:
    """A policy error is a denial, and a denial fails its step in the same commit."""
    if not view.bundle.verdicts:
        return
    for verdict in view.bundle.verdicts:
        if verdict.error is not None and verdict.outcome != "deny":
            yield describe(verdict), f"has the error {verdict.error}, but its outcome is {verdict.outcome}"
    failed = {(taken.seq, taken.idx) for taken in view.taken if taken.move == "fail"}
    for event, no, columns in view.changes("verdict"):
        if columns.get("outcome") == "deny" and (event.seq, columns.get("idx")) not in failed:
            yield f"verdict {no}", f"denies in event {event.seq}, which does not fail its step"


@checks("I58")
def relied_facts_hold(view: CheckedRun) -> Iterator[Finding]:
    """The facts that a verdict relied on held in the commit that recorded it: the writes and spending after the events before it, and the
    commit's own time. (A person's roles and groups have no history in a run. The tests of acts show those.)"""
    if not view.bundle.verdicts:
        return
    relied = {str(verdict.no): verdict.relied for verdict in view.bundle.verdicts if verdict.relied}
    run_spend = {"writes": 0, "spent": 0}
    for event, body in view.bodies:
        changes = body.get("set", {})
        for no in changes.get("verdict", {}).keys() & relied.keys():
            yield from _outdated(f"verdict {no}", relied[no], run_spend, event.at)
        run_spend |= changes.get("run_spend", {}).get("", {})


def _outdated(row: str, kept: str, run_spend: dict[str, int], at: int) -> Iterator[Finding]:
    try:
        relied = msgspec.json.decode(kept, type=ReliedFacts)
    except msgspec.DecodeError as fault:
        yield row, f"its relied facts cannot be read: {fault}"
        return
    if relied.writes is not None and not relied.writes[0] <= run_spend["writes"] <= relied.writes[1]:
        low, high = relied.writes
        yield row, f"relied on {low} to {high} writes; the run had made {run_spend['writes']}"
    if relied.spent is not None and relied.spent != run_spend["spent"]:
        yield row, f"relied on {relied.spent} spent; the run had spent {run_spend['spent']}"
    if (relied.since is not None and at < relied.since) or (relied.until is not None and at >= relied.until):
        yield row, f"relied on a time from {relied.since} to {relied.until}; it was recorded at {at}"


@checks("I58")
def fixed_facts_stay(view: CheckedRun) -> Iterator[Finding]:
    """Facts that no commit checks again are written only by the event that creates the run."""
    for event, body in view.bodies[1:]:
        for table, columns in FIXED_COLUMNS.items():
            for changed in body.get("set", {}).get(table, {}).values():
                for column in columns:
                    if column in changed:
                        yield f"{table}.{column}", f"is changed by event {event.seq} ({event.kind})"


@checks("I42")
def approvals_fit_their_actions(view: CheckedRun) -> Iterator[Finding]:
    """An act that needed an approval has one: for the same digest, given before the intention and before its expiry, by as many people as
    the ruling asked for. An approval is used by one act."""
    approvals = {approval.no: approval for approval in view.bundle.approvals}
    verdicts = {verdict.no: verdict for verdict in view.bundle.verdicts}
    acts: dict[int, tuple[int, str]] = {}
    for receipt in view.bundle.receipts:
        if receipt.approval_no is None:
            continue
        row = describe(receipt)
        act = (receipt.idx, receipt.label)
        if acts.setdefault(receipt.approval_no, act) != act:
            yield row, f"uses approval {receipt.approval_no}, which another action has used"
        approval = approvals.get(receipt.approval_no)
        if approval is None or approval.status != "approved" or approval.decided_at is None:
            yield (
                row,
                f"approval {receipt.approval_no} is {'missing' if approval is None else approval.status}",
            )
            continue
        if approval.digest != receipt.digest:
            yield row, f"approval {approval.no} is of another action"
        if approval.decided_at > receipt.intent_at:
            yield row, f"was intended at {receipt.intent_at}, before approval {approval.no} was given"
        if approval.expires_at is not None and approval.expires_at <= receipt.intent_at:
            yield row, f"was intended at {receipt.intent_at}, after approval {approval.no} had expired"
        verdict = verdicts.get(receipt.verdict_no)
        if verdict is not None and approval.people < verdict.people:
            yield row, f"approval {approval.no} asked {approval.people} people, its policy {verdict.people}"
    used = {(receipt.no, receipt.approval_no) for receipt in view.bundle.receipts}
    for approval in view.bundle.approvals:
        if approval.used_no is not None and (approval.used_no, approval.no) not in used:
            yield describe(approval), f"was used by receipt {approval.used_no}, which does not name it"


@checks("I43")
def nobody_involved_decides(view: CheckedRun) -> Iterator[Finding]:
    """Nobody who was involved in the run at that time approved or settled anything in it."""
    approvals = {str(wait.no) for wait in view.bundle.waits if wait.kind == "approval"}
    if not approvals and not view.bundle.receipts:
        return
    involved: set[str] = set()
    voted: dict[str, set[str]] = {}
    for event, body in view.bodies:
        changes = body.get("set", {})
        for no in changes.get("approval", {}).keys() & approvals:
            votes = set(changes["approval"][no].get("votes", "").split())
            for person in (votes - voted.get(no, set())) & involved:
                yield f"approval {no}", f"{person} approves in event {event.seq} and is involved in the run"
            if "votes" in changes["approval"][no]:
                voted[no] = votes
        for no, columns in changes.get("receipt", {}).items():
            if columns.get("settled_by") in involved:
                yield f"receipt {no}", f"{columns['settled_by']} settles it and is involved in the run"
        involved |= involved_in(changes)


def involved_in(changes: Body) -> set[str]:
    """The people whom an event's changes record as involved in the run."""
    columns = changes.get("run_spec", {}).get("", {})
    return {person for name in ("requester", "involved") for person in columns.get(name, "").split()}


@checks("I3")
def spending_is_counted(view: CheckedRun) -> Iterator[Finding]:
    """`run_spend` has the sum of the cost lines in the run's own currency."""
    if view.spec is None:
        return
    own = view.spec.currency or DEFAULT_CURRENCY
    total = min(sum(row.micros for row in view.bundle.cost_lines if row.currency == own), COST_TOTAL_MAX)
    spent = sum(run_spend.spent for run_spend in view.bundle.run_spends)
    if total != spent:
        yield "run_spend", f"has {spent} spent; the sum of its cost lines is {total}"


@checks("I46")
def writes_are_counted(view: CheckedRun) -> Iterator[Finding]:
    """`run_spend` counts the writes that happened or may have happened."""
    wrote = sum(receipt.state in WROTE for receipt in view.bundle.receipts)
    counted = sum(run_spend.writes for run_spend in view.bundle.run_spends)
    if wrote != counted:
        yield "run_spend", f"counts {counted} writes; the receipts have {wrote}"
