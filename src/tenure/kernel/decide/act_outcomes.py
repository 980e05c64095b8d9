"""The outcomes of acts: from the holder of the lease, from a person, or from a run that undoes the act.

Laws:
1. The holder of the lease reports how its own call ended, also while the run is being canceled. About a call of an
   earlier attempt it can report that the effect was found or that nothing is known, but not that the call failed.
2. An unknown receipt waits for a person who is not involved in the run: done, not done, or retry. If nobody settles it
   in time, the step ends and the receipt stays unknown.
3. A receipt can be settled after its run's end. That changes only the receipt; `retry` is refused, because nobody would
   make the call.
4. When an act that undoes another act has succeeded, it owes the other act's run a message.
5. Each command is recognised by its contents: a repeat changes nothing.
"""

from __future__ import annotations

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.act_commands import ActReply, MarkReversed, SettleAct, SettleReceipt
from tenure.kernel.act_rows import ReceiptRow
from tenure.kernel.commands import SYSTEM
from tenure.kernel.decide.acts import current_receipt, end_receipt_wait, require_act_lease
from tenure.kernel.decide.ready_steps import insert_wait
from tenure.kernel.decide.receipts import change_receipt, give_back_write
from tenure.kernel.decide.termination import finish_decision, settle_wait
from tenure.kernel.decide.validation import check_approver, check_duration
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.run_rows import CLOSED_RUN, StepRow
from tenure.kernel.separation_of_duties import (
    add_involved_people,
    check_distinct_person,
    involved_people,
    unknown_people_error,
)
from tenure.limits import RECEIPT_SECONDS


def settle(d: Draft, c: SettleAct) -> Decision:
    check_duration("retry_after_seconds", c.retry_after_seconds)
    check_duration("settle_within_seconds", c.settle_within_seconds)
    receipt = current_receipt(d, c.no)
    if receipt.idx == c.idx and receipt.n == c.n and receipt.state == c.state:
        return Decision(_reply(receipt))
    step, _ = require_act_lease(d, c)
    if receipt.idx != c.idx:
        raise TenureError("RECEIPT_NOT_FOUND", f"step {step.name!r} has no receipt {c.no}")
    if receipt.state not in ("intent", "unknown"):
        raise TenureError("RECEIPT_SETTLED", f"the receipt is {receipt.state} already", state=receipt.state)
    own = receipt.state == "intent" and receipt.n == c.n
    if c.state == "succeeded":
        receipt = change_receipt(d, receipt, "succeed" if own else "found")
        _succeeded(d, receipt, c.result)
        if step.charged:
            d.edit(step).charged = 0  # progress, like a checkpoint
    elif c.state == "failed":
        if not own:
            raise TenureError(
                "RUN_INVALID_TRANSITION",
                "nobody knows whether the call of an earlier attempt was made, so it cannot be reported as failed",
            )
        receipt = change_receipt(d, receipt, "fail")
        receipt.settled_at = d.now
        receipt.error = c.error
        receipt.result_ref = d.payload(c.result)
        if c.retry_after_seconds is not None:
            receipt.eligible_at = d.now + us(c.retry_after_seconds)
        give_back_write(d)
    elif receipt.state == "unknown":
        return Decision(_reply(receipt))
    else:
        receipt = change_receipt(d, receipt, "lose_answer")
        receipt.error = c.error
        if step.state != "canceling":  # a canceled step waits for nobody
            _ask_people(d, c, step, receipt)
    return finish_decision(d, _reply(receipt), "settle_act")


def _reply(receipt: ReceiptRow) -> ActReply:
    if receipt.state == "unknown" and receipt.wait_no is not None:
        return ActReply("wait", no=receipt.wait_no, receipt_state="unknown")
    return ActReply(
        "settled",
        no=receipt.no,
        receipt_state=receipt.state,
        result_ref=receipt.result_ref,
        eligible_at=receipt.eligible_at,
    )


def _ask_people(d: Draft, c: SettleAct, step: StepRow, receipt: ReceiptRow) -> None:
    """Open the wait for a person (law 2)."""
    within = c.settle_within_seconds
    if within is None:
        within = d.rules.timing.approval_seconds or RECEIPT_SECONDS
    wait = insert_wait(
        d,
        step.idx,
        "receipt",
        f"{receipt.connector}.{receipt.operation}",
        f"receipt:{receipt.no}",
        fatal=True,
        expires_at=d.now + us(within),
    )
    wait.result_ref = d.payload(c.question)
    receipt.wait_no = wait.no


def _succeeded(d: Draft, receipt: ReceiptRow, result: bytes | None) -> None:
    receipt.settled_at = d.now
    receipt.error = None
    receipt.result_ref = d.payload(result)
    end_receipt_wait(d, receipt)
    if receipt.reverses_run is not None:
        message = {"no": receipt.reverses_no, "by_run": d.run.id, "by_no": receipt.no}
        d.owe("reversed", receipt.reverses_run, message)


# ----------------------------------------------------------------------------------------------- people


def settle_by_person(d: Draft, c: SettleReceipt) -> Decision:
    check_approver(c.person, "")
    receipt = current_receipt(d, c.no)
    ended = {"done": "succeeded", "not_done": "failed", "retry": "intent"}[c.how]
    if receipt.state == ended and receipt.settled_by == c.person:
        return Decision({"state": receipt.state, "again": True})
    if receipt.state != "unknown":
        raise TenureError("RECEIPT_SETTLED", f"the receipt is {receipt.state}", state=receipt.state)
    involved = involved_people(d.spec())
    if c.how != "not_done" and (refused := unknown_people_error(involved)) is not None:
        raise refused  # `not_done` feeds the run with nothing, so it stays possible
    check_distinct_person(d, c.person, involved, "may not settle its receipts; ask another person")
    if c.how == "retry" and d.run.status in CLOSED_RUN:
        raise TenureError("RUN_TERMINAL_STATE", f"the run is {d.run.status}: nobody would repeat the call")
    if c.how == "retry" and d.run.cancel_at is not None:
        raise TenureError("RUN_CANCELING", "the run is being canceled: nobody would repeat the call")
    d.notes["receipt"] = {"no": c.no, "how": c.how, "settled_by": c.person}
    reason_ref = d.payload(c.reason)
    if reason_ref is not None:
        d.notes["receipt"]["reason_ref"] = reason_ref
    if c.how == "done" and c.result is not None:  # the person feeds the run with this result
        add_involved_people(d, SYSTEM, c.person)
    wait_no = receipt.wait_no
    receipt = change_receipt(d, receipt, f"settle_{c.how}")
    receipt.settled_by = c.person
    receipt.wait_no = None
    if c.how == "done":
        _succeeded(d, receipt, c.result)
    elif c.how == "not_done":
        receipt.settled_at = d.now
        receipt.error = "ACTION_FAILED"
        give_back_write(d)
    wait = None if wait_no is None else d.snap.find_wait(wait_no)
    if wait is not None and wait.state == "open":
        settle_wait(d, wait, "received", wait.result_ref)
    return finish_decision(d, {"state": receipt.state, "again": False}, "settle_receipt")


def mark_reversed(d: Draft, c: MarkReversed) -> Decision:
    """Another run has undone the effect of a receipt. The message may be repeated and counts once."""
    receipt = current_receipt(d, c.no)
    if receipt.state == "reversed" and (receipt.reversed_run, receipt.reversed_no) == (c.by_run, c.by_no):
        return Decision({"again": True})
    receipt = change_receipt(d, receipt, "reverse")
    receipt.reversed_run, receipt.reversed_no = c.by_run, c.by_no
    return finish_decision(d, {"again": False}, "reversed")
