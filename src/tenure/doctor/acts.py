"""Acts: I36 to I38, I40, I41 and I58, and what I42, I43 and I46 say of them; and what a run has spent (I3).

A receipt's history is the edges its events have taken; what its rows cannot show (that a call was made at all, that a policy
version was the active one) is seen by tests with a service that keeps its own log, and by the commit that intends.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tenure.doctor.checked_run import Body, CheckedRun
from tenure.doctor.invariants import Finding, checks
from tenure.kernel.act_commands import FIXED_COLUMNS, SAFE_TO_REPEAT, ReliedFacts
from tenure.kernel.act_rows import KEY_HOLDING_RECEIPT, ReceiptRow
from tenure.kernel.costs import DEFAULT_CURRENCY
from tenure.limits import COST_TOTAL_MAX

WROTE = KEY_HOLDING_RECEIPT | {"reversed"}
"""States of a receipt whose write counts: it happened, or may have."""


def describe_receipt(receipt: ReceiptRow) -> str:
    """How a receipt is named in a report."""
    return f"receipt {receipt.no}"


def _made(view: CheckedRun) -> dict[int, tuple[int, str]]:
    """Receipt -> the event that made it, and that event's kind."""
    made: dict[int, tuple[int, str]] = {}
    for event, body in view.bodies:
        for no in body.get("set", {}).get("receipt", {}):
            made.setdefault(int(no), (event.seq, event.kind))
    return made


@checks("I36")
def intents_come_first(view: CheckedRun) -> Iterator[Finding]:
    """A receipt was intended in a commit of its own, before anything was said of how its call ended, and its call had to be over
    before its lease was."""
    receipts = view.bundle.receipts
    if len(receipts) != view.run.receipts:
        yield "run", f"counts {view.run.receipts} receipts; there are {len(receipts)}"
    if not receipts:
        return
    made = _made(view)
    for receipt in receipts:
        seq, kind = made.get(receipt.no, (0, ""))
        if kind != "intend_act":
            yield describe_receipt(receipt), f"was not intended: it was made by {kind or 'no event'}"
        if receipt.state != "reused":
            for taken in view.settled_acts:
                if taken.receipt == receipt.no and taken.seq <= seq:
                    yield (
                        describe_receipt(receipt),
                        f"was {taken.edges[-1][2]} in event {taken.seq}, which intends it",
                    )
        for attempt in view.attempts.get(receipt.idx, ()):
            if attempt.n == receipt.n and receipt.call_by > attempt.expires_at:
                yield (
                    describe_receipt(receipt),
                    f"may be called until {receipt.call_by}, its lease ends at {attempt.expires_at}",
                )


@checks("I37")
def one_receipt_per_key_here(view: CheckedRun) -> Iterator[Finding]:
    """No two receipts of the run hold one key; all runs together are looked at by `whole`."""
    holders: dict[str, int] = {}
    for receipt in view.bundle.receipts:
        if receipt.state in KEY_HOLDING_RECEIPT:
            first = holders.setdefault(receipt.name, receipt.no)
            if first != receipt.no:
                yield (
                    describe_receipt(receipt),
                    f"holds the key {receipt.name!r}, and so does receipt {first}",
                )


@checks("I38")
def repeats_are_safe(view: CheckedRun) -> Iterator[Finding]:
    """A call is made again only where that is safe, or once for each time a person said so."""
    repeats = {receipt.no: receipt.repeats for receipt in view.bundle.receipts}
    told: set[int] = set()
    for taken in view.settled_acts:
        no = taken.receipt or 0
        if taken.move == "settle_retry":
            told.add(no)
        elif taken.move == "repeat":
            if repeats.get(no) not in SAFE_TO_REPEAT and no not in told:
                yield (
                    f"receipt {no}",
                    f"was called again in event {taken.seq}; its operation repeats {repeats.get(no)}",
                )
            told.discard(no)


@checks("I40")
def intents_are_allowed(view: CheckedRun) -> Iterator[Finding]:
    """Each receipt has the verdict of its own act and digest, which does not deny, of a policy that there was."""
    verdicts = {verdict.no: verdict for verdict in view.bundle.verdicts}
    for receipt in view.bundle.receipts:
        verdict = verdicts.get(receipt.verdict_no)
        if verdict is None:
            yield describe_receipt(receipt), f"there is no verdict {receipt.verdict_no}"
            continue
        if verdict.digest != receipt.digest or (verdict.idx, verdict.label) != (receipt.idx, receipt.label):
            yield describe_receipt(receipt), f"verdict {verdict.no} is of another action"
        if verdict.outcome == "deny" or verdict.version == 0:
            yield (
                describe_receipt(receipt),
                f"verdict {verdict.no} of policy version {verdict.version} is {verdict.outcome}",
            )
        if verdict.outcome == "needs_approval" and receipt.approval_no is None and receipt.state != "reused":
            yield describe_receipt(receipt), "needs an approval and names none"


@checks("I41")
def errors_deny(view: CheckedRun) -> Iterator[Finding]:
    """What is broken denies, and a denial ends its step in the commit that records it."""
    if not view.bundle.verdicts:
        return
    for verdict in view.bundle.verdicts:
        if verdict.error is not None and verdict.outcome != "deny":
            yield f"verdict {verdict.no}", f"{verdict.error}, and still it is {verdict.outcome}"
    failed = {(taken.seq, taken.idx) for taken in view.taken if taken.move == "fail"}
    for event, body in view.bodies:
        for no, columns in body.get("set", {}).get("verdict", {}).items():
            if columns.get("outcome") == "deny" and (event.seq, columns.get("idx")) not in failed:
                yield f"verdict {no}", f"denies in event {event.seq}, and its step goes on"


@checks("I58")
def relied_facts_hold(view: CheckedRun) -> Iterator[Finding]:
    """What a verdict relied on was so in the commit that recorded it: writes and spending as the events before had left them, and
    the commit's own time. (Roles and groups of a person have no history in a run: the tests of acts show those.)"""
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
        yield row, f"what it relied on cannot be read: {fault}"
        return
    if relied.writes is not None and not relied.writes[0] <= run_spend["writes"] <= relied.writes[1]:
        low, high = relied.writes
        yield row, f"relied on {low} to {high} writes; the run had made {run_spend['writes']}"
    if relied.spent is not None and relied.spent != run_spend["spent"]:
        yield row, f"relied on {relied.spent} spent; the run had spent {run_spend['spent']}"
    if (relied.since is not None and at < relied.since) or (relied.until is not None and at >= relied.until):
        yield row, f"relied on a moment from {relied.since} to {relied.until}; it was recorded at {at}"


@checks("I58")
def fixed_facts_stay(view: CheckedRun) -> Iterator[Finding]:
    """Facts that no commit checks again are written by the event that creates the run, and by no other."""
    for event, body in view.bodies[1:]:
        for table, columns in FIXED_COLUMNS.items():
            for changed in body.get("set", {}).get(table, {}).values():
                for column in columns:
                    if column in changed:
                        yield f"{table}.{column}", f"is changed by event {event.seq} ({event.kind})"


@checks("I42")
def approvals_fit_their_actions(view: CheckedRun) -> Iterator[Finding]:
    """What needed approval was approved for exactly this digest, before it was intended and before it expired, by as many as the
    ruling asked for; and an approval is used by one action."""
    approvals = {approval.no: approval for approval in view.bundle.approvals}
    verdicts = {verdict.no: verdict for verdict in view.bundle.verdicts}
    acts: dict[int, tuple[int, str]] = {}
    for receipt in view.bundle.receipts:
        if receipt.approval_no is None:
            continue
        row = describe_receipt(receipt)
        act = (receipt.idx, receipt.label)
        if acts.setdefault(receipt.approval_no, act) != act:
            yield row, f"uses approval {receipt.approval_no}, which another action has used"
        approval = approvals.get(receipt.approval_no)
        if approval is None or approval.status != "approved" or approval.decided_at is None:
            yield row, f"approval {receipt.approval_no} is {'none' if approval is None else approval.status}"
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
    used = {receipt.no: receipt for receipt in view.bundle.receipts}
    for approval in view.bundle.approvals:
        if approval.used_no is not None:
            by = used.get(approval.used_no)
            if by is None or by.approval_no != approval.no:
                yield (
                    f"approval {approval.no}",
                    f"was used by receipt {approval.used_no}, which knows nothing of it",
                )


@checks("I43")
def nobody_involved_decides(view: CheckedRun) -> Iterator[Finding]:
    """Who stood behind the run at that time has neither approved nor settled anything of it."""
    approvals = {str(wait.no) for wait in view.bundle.waits if wait.kind == "approval"}
    if not approvals and not view.bundle.receipts:
        return
    behind: set[str] = set()
    voted: dict[str, set[str]] = {}
    for event, body in view.bodies:
        changes = body.get("set", {})
        for no in changes.get("approval", {}).keys() & approvals:
            votes = set(changes["approval"][no].get("votes", "").split())
            for person in (votes - voted.get(no, set())) & behind:
                yield f"approval {no}", f"{person} approves in event {event.seq} and is involved in the run"
            if "votes" in changes["approval"][no]:
                voted[no] = votes
        for no, columns in changes.get("receipt", {}).items():
            if columns.get("settled_by") in behind:
                yield f"receipt {no}", f"{columns['settled_by']} settles it and is involved in the run"
        behind |= _involved(changes.get("run_spec", {}).get("", {}))


def _involved(columns: Body) -> set[str]:
    return {person for name in ("requester", "involved") for person in columns.get(name, "").split()}


@checks("I3")
def spending_is_counted(view: CheckedRun) -> Iterator[Finding]:
    """`run_spend` has the sum of the lines in the run's own currency."""
    if view.spec is None:
        return
    own = view.spec.currency or DEFAULT_CURRENCY
    told = min(sum(row.micros for row in view.bundle.cost_lines if row.currency == own), COST_TOTAL_MAX)
    counted = sum(run_spend.spent for run_spend in view.bundle.run_spends)
    if told != counted:
        yield "run_spend", f"has {counted} spent; its lines tell of {told}"


@checks("I46")
def writes_are_counted(view: CheckedRun) -> Iterator[Finding]:
    """`run_spend` counts the writes that happened, or may have."""
    wrote = sum(receipt.state in WROTE for receipt in view.bundle.receipts)
    counted = sum(run_spend.writes for run_spend in view.bundle.run_spends)
    if wrote != counted:
        yield "run_spend", f"counts {counted} writes; the receipts tell of {wrote}"
