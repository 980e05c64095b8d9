"""Acts: the ruling of a policy, people's approval of exactly that act, and the intention of a call.

Laws:
1. The messages of an act carry the fence of a lease and no sequence number. A message of a lease that has ended is stale:
   it is recorded once, gets LEASE_STALE, and changes nothing. While the run is being canceled, nothing new is proposed,
   intended or repeated.
2. The commit that intends a call checks everything again, in its own transaction: the policy's version, the facts that
   the ruling used (`ReliedFacts`), freezes, caps, budget, the approval and its approvers, and the holder of the key.
3. An approval is good for one act, by digest. All tries of that act share it; for any other act people are asked in
   another round. A refusal or an expiry ends the step, and code cannot catch it.
4. A denial ends the step. The verdict records the reason and the proposed act. No call is made without a receipt.
5. A call whose answer was lost is intended again only if it is safe to repeat, or if a person says so.
"""

from __future__ import annotations

import msgspec

from tenure.clock import SECOND_US, us
from tenure.errors import TenureError
from tenure.kernel.act_commands import (
    SAFE_TO_REPEAT,
    ActCommand,
    ActReply,
    IntendAct,
    ProposeAct,
    ProposedAct,
    ReliedFacts,
    RepeatAct,
    Ruling,
)
from tenure.kernel.act_rows import KEY_HOLDING_RECEIPT, ReceiptRow, VerdictRow
from tenure.kernel.commands import SYSTEM, TIERS, ApprovalSpec
from tenure.kernel.decide.leases import MESSAGE_TYPES, StaleMessage, check_planner_message
from tenure.kernel.decide.ready_steps import add_approval_wait, question_deadlines, revise_question
from tenure.kernel.decide.receipts import change_receipt, current_run_spend, edit_run_spend, is_same_request
from tenure.kernel.decide.termination import (
    GOOD_OUTCOMES,
    close_wait,
    current_approval,
    end_step,
    finish_decision,
    refusal_code,
)
from tenure.kernel.decide.validation import check_act, check_duration, request_to_keep
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.run_rows import ApprovalRow, AttemptRow, StaleMessageRow, StepRow, WaitRow
from tenure.kernel.separation_of_duties import (
    add_involved_people,
    involved_people,
    may_approve,
    person_id_of,
    unknown_people_error,
)
from tenure.kernel.snapshot import GovernanceFacts
from tenure.limits import CALL_MARGIN_SECONDS, CALL_SECONDS_MIN, OPEN_WAITS_PER_RUN_MAX

DENIED = "POLICY_DENIED"
_OWN_CODES = frozenset({"FROZEN", "WRITES_EXCEEDED", "BUDGET_EXCEEDED"})
"""Denials that have a code of their own; every other denial is POLICY_DENIED."""


def require_act_lease(d: Draft, c: ActCommand) -> tuple[StepRow, AttemptRow]:
    """The step and attempt of a message, if it counts (law 1)."""
    step = d.step(c.idx)
    attempt = d.snap.find_attempt(c.idx, c.n)
    if attempt is None:
        raise TenureError("LEASE_NOT_FOUND", f"step {c.idx} has no attempt {c.n}")
    if c.n != step.attempt or attempt.ended_at is not None or attempt.expires_at <= d.now:
        ended = attempt.lease if attempt.ended_at is not None else "expired"
        raise StaleMessage(
            StaleMessageRow(c.run_id, c.idx, c.n, MESSAGE_TYPES[type(c)], 0, attempt.owner, d.now),
            TenureError("LEASE_STALE", f"the lease of attempt {c.n} is {ended}", lease=ended),
        )
    if attempt.lease != "active":
        raise TenureError("LEASE_NOT_ACTIVE", "acknowledge the lease first")
    if step.kind == "plan":
        check_planner_message(c)
    return step, attempt


# ------------------------------------------------------------------------------------------- proposals


def propose(d: Draft, c: ProposeAct) -> Decision:
    check_act(c.act, c.ruling)
    step, _ = require_act_lease(d, c)
    if step.state == "canceling":
        return Decision(ActReply("cancel"))
    if not _still_holds(d, c.ruling.relied):
        return Decision(ActReply("again"))
    if c.ruling.outcome == "deny":
        return _deny(d, c, step, c.ruling, c.ruling.error, "propose_act")
    if c.ruling.outcome != "needs_approval":
        raise TenureError("INVALID_INPUT", "the ruling allows the act: send IntendAct, not ProposeAct")
    frozen = freeze_reason(_outside(d, None, ()), d.run.workflow, c.act.connector)
    if frozen is not None:  # people are not asked about an act that could not be done
        return _deny(d, c, step, msgspec.structs.replace(c.ruling, why=frozen), "FROZEN", "propose_act")
    wait, rounds = _newest_round(d, c.idx, c.act.label)
    if wait is not None and wait.state == "settled" and wait.outcome not in GOOD_OUTCOMES:
        assert wait.outcome is not None, "a settled wait has an outcome"
        code = refusal_code(wait, wait.outcome)
        return end_step_by_governance(d, step, code, f"{wait.name} was {wait.outcome}", "propose_act")
    if wait is not None and wait.state == "open":
        approval = current_approval(d, wait.no)
        if approval.digest != c.act.digest or not _as_strict(approval, c.ruling, c.act):
            _revise(d, c, wait, approval, _record_question(d, c))
            return finish_decision(d, ActReply("wait", no=wait.no), "propose_act")
        return Decision(ActReply("wait", no=wait.no))
    if wait is not None and wait.state == "settled":
        mine = d.snap.receipts_of(c.idx, c.act.label)
        if _suffices(d, current_approval(d, wait.no), c.act, c.ruling, mine):
            return Decision(ActReply("go_on", approval_no=wait.no))
    if d.run.waits_open >= OPEN_WAITS_PER_RUN_MAX:
        raise TenureError("WAIT_LIMIT", f"a run has at most {OPEN_WAITS_PER_RUN_MAX} open waits")
    asked = add_approval_wait(
        d,
        c.idx,
        _question(c.act, c.ruling),
        label=_round_label(c.act.label, rounds + 1),
        gate=False,
        fatal=True,
        question_ref=_record_question(d, c),
    )
    return finish_decision(d, ActReply("wait", no=asked.no), "propose_act")


def _record_question(d: Draft, c: ProposeAct) -> int | None:
    """Store the question and a verdict that refers to it."""
    question_ref = d.payload(c.question)
    _add_verdict(d, c.idx, c.act, c.ruling, request_ref=question_ref, keep_act=True)
    return question_ref


def _round_label(label: str, number: int) -> str:
    """The label of the wait for an act's approval. Code cannot open a wait with such a label (`check_wait`)."""
    return f"act:{label}" if number == 1 else f"act:{label}~{number}"


def _newest_round(d: Draft, idx: int, label: str) -> tuple[WaitRow | None, int]:
    """The newest wait for an act's approval, and how many there were."""
    newest, count = None, 0
    while (found := d.snap.find_labeled_wait(idx, _round_label(label, count + 1))) is not None:
        newest, count = d.current_row(found), count + 1
    return newest, count


def _question(act: ProposedAct, ruling: Ruling) -> ApprovalSpec:
    return ApprovalSpec(
        action=f"{act.connector}.{act.operation}",
        tier=ruling.tier or act.tier,  # type: ignore[arg-type]  # checked: one of the three
        people=max(1, ruling.people),
        within_seconds=ruling.within_seconds,
        digest=act.digest.hex(),
        group=ruling.people_in,
    )


def _revise(d: Draft, c: ProposeAct, wait: WaitRow, approval: ApprovalRow, question_ref: int | None) -> None:
    """The act, or what its approval requires, has changed while people were asked."""
    asked = _question(c.act, c.ruling)
    approval = revise_question(d, approval, c.act.digest, question_ref)
    wait = d.edit(wait)
    approval.tier, approval.people, approval.people_in = asked.tier, asked.people, asked.group
    approval.requested_at, approval.reminded_at = d.now, None
    approval.expires_at, wait.wake_at = question_deadlines(d, asked)
    wait.expires_at = approval.expires_at
    wait.name = asked.action


def _as_strict(approval: ApprovalRow, ruling: Ruling, act: ProposedAct) -> bool:
    """Whether an approval requires at least as much as a ruling."""
    wanted = _question(act, ruling)
    if (
        approval.people < wanted.people
        or TIERS.index(approval.tier) < TIERS.index(wanted.tier)
        or (wanted.group and approval.people_in != wanted.group)
    ):
        return False
    if ruling.within_seconds is None:
        return True
    return approval.expires_at is not None and approval.expires_at - approval.requested_at <= us(
        ruling.within_seconds
    )


def _suffices(
    d: Draft, approval: ApprovalRow, act: ProposedAct, ruling: Ruling, mine: list[ReceiptRow]
) -> bool:
    """Whether an approval is good for this act now: approved for exactly this act, not expired, not used by another act,
    and its approvers may still approve."""
    if approval.status != "approved" or approval.digest != act.digest:
        return False
    if approval.expires_at is not None and approval.expires_at <= d.now:
        return False
    if approval.used_no is not None and not any(
        row.no == approval.used_no and row.state == "failed" for row in mine
    ):
        return False
    if not _as_strict(approval, ruling, act):
        return False
    involved = involved_people(d.spec())
    if unknown_people_error(involved) is not None:
        return False
    ties = d.snap.ties(d.run.tenant)
    votes = [one for one in ties.apart(approval.votes.split()) if ties.among(one, involved) is None]
    names = [name for one in votes if (name := person_id_of(one)) is not None]
    people = _outside(d, None, tuple(sorted(names))).people if names else {}
    counted = [one for one in votes if may_approve(one, approval.people_in, people)]
    # All approvers outside of the directory are the one local user.
    local = [one for one in counted if person_id_of(one) is None]
    return len(counted) - max(0, len(local) - 1) >= approval.people


def _outside(d: Draft, name: str | None, people: tuple[str, ...]) -> GovernanceFacts:
    return d.snap.governance_facts(d.run.tenant, name, people)


# --------------------------------------------------------------------------------------------- refusals


def _add_verdict(
    d: Draft,
    idx: int,
    act: ProposedAct,
    ruling: Ruling,
    error: str | None = None,
    *,
    request_ref: int | None = None,
    keep_act: bool = False,
) -> VerdictRow:
    """Record a ruling; `error` makes it a denial. The verdict of an act without a receipt keeps what another policy
    would read (`keep_act`)."""
    return d.add(
        VerdictRow(
            d.run.id,
            d.next_no(),
            d.run.tenant,
            idx,
            act.label,
            act.connector,
            act.operation,
            act.digest,
            ruling.version,
            "deny" if error is not None else ruling.outcome,
            ruling.rules,
            d.now,
            ruling.tier,
            ruling.people,
            ruling.people_in,
            None if ruling.within_seconds is None else us(ruling.within_seconds),
            error if error is not None else ruling.error,
            request_ref,
            act.name if keep_act else "",
            act.tier if keep_act else "",
            relied=None if ruling.relied is None else ruling.relied.verdict_fields(),
        )
    )


def _deny(
    d: Draft,
    c: ProposeAct | IntendAct,
    step: StepRow,
    ruling: Ruling,
    error: str | None,
    kind: str,
) -> Decision:
    request_ref = d.payload(request_to_keep(c))
    _add_verdict(d, c.idx, c.act, ruling, error, request_ref=request_ref, keep_act=True)
    code = error if error in _OWN_CODES else DENIED
    if code == "FROZEN":
        _involve_freezers(d, c.act.connector)
    why = ruling.why or f"{c.act.connector}.{c.act.operation} is denied"
    return end_step_by_governance(d, step, code, why, kind)


def end_step_by_governance(d: Draft, step: StepRow, code: str, why: str, kind: str) -> Decision:
    """End a live step that may not continue."""
    error_ref = d.payload(why.encode())
    step = d.move(step, "fail")
    step.last_error = code
    d.edit(d.attempt_of(step)).reason = code
    end_step(d, step, code, error_ref=error_ref)
    return finish_decision(d, ActReply("refused", error=code), kind)


# --------------------------------------------------------------------------------------------- intentions


def intend(d: Draft, c: IntendAct) -> Decision:
    check_act(c.act, c.ruling)
    check_duration("call_seconds", c.call_seconds)
    step, attempt = require_act_lease(d, c)
    if step.state == "canceling":
        return Decision(ActReply("cancel"))
    mine = d.snap.receipts_of(c.idx, c.act.label)
    if any(row.digest != c.act.digest for row in mine):
        raise TenureError("ACTION_CHANGED", f"another action was recorded as {c.act.label!r} of this step")
    if mine and (known := _receipt_reply(mine[-1], d.now)) is not None:
        return Decision(known)
    outside = _outside(d, c.act.name, ())
    governance = outside.governance
    version = 0 if governance is None else governance.version
    if c.ruling.version != version or not _still_holds(d, c.ruling.relied):
        return Decision(ActReply("again"))
    denied = _denied(d, c, outside)
    if denied is not None:
        error, why = denied
        return _deny(d, c, step, msgspec.structs.replace(c.ruling, why=why), error, "intend_act")
    approval = None
    if c.ruling.outcome == "needs_approval":
        approval = None if c.approval_no is None else d.snap.find_approval(c.approval_no)
        if approval is None or not _suffices(d, approval, c.act, c.ruling, mine):
            return Decision(ActReply("ask"))
    holder = _key_holder(d, c.act.name, outside)
    if holder is not None:
        return _reuse(d, c, holder, outside, len(mine))
    call_by = _call_by(d, attempt, c.call_seconds)
    verdict = _add_verdict(d, c.idx, c.act, c.ruling)
    receipt = d.add(_receipt(d, c, verdict, len(mine) + 1, call_by))
    if approval is not None:
        approval = d.edit(approval)
        approval.used_no = receipt.no
        receipt.approval_no = approval.no
    d.edit_run().receipts += 1
    edit_run_spend(d).writes += 1
    return finish_decision(d, _call(d, receipt.no, call_by), "intend_act")


def _still_holds(d: Draft, relied: ReliedFacts | None) -> bool:
    """Whether the facts that a ruling relied on are the same in this commit (I58)."""
    if relied is None:
        return True
    if relied.writes is not None or relied.spent is not None:
        run_spend = current_run_spend(d)
        if relied.writes is not None and not relied.writes[0] <= run_spend.writes <= relied.writes[1]:
            return False
        if relied.spent not in (None, run_spend.spent):
            return False
    if (relied.since is not None and d.now < relied.since) or (
        relied.until is not None and d.now >= relied.until
    ):
        return False
    if relied.person is None:
        return True
    name, roles, groups = relied.person
    person = _outside(d, None, (name,)).people.get(name)
    if person is None or person.closed_at is not None:
        return (roles, groups) == ("[]", "[]")
    return (roles, groups) == (person.roles, person.groups)


def _receipt_reply(newest: ReceiptRow, now: int) -> ActReply | None:
    """The reply to an act that has a receipt. None: the act may be intended again."""
    if newest.state in ("succeeded", "reused"):
        source = None if newest.source_run is None else (newest.source_run, newest.source_no or 0)
        return ActReply(
            "done", no=newest.no, receipt_state=newest.state, result_ref=newest.result_ref, source=source
        )
    if newest.state in ("intent", "unknown"):
        return ActReply("open", no=newest.no, receipt_state=newest.state)
    if newest.state == "failed" and (newest.eligible_at is None or newest.eligible_at > now):
        return ActReply(
            "failed",
            no=newest.no,
            receipt_state="failed",
            eligible_at=newest.eligible_at,
            result_ref=newest.result_ref,
            error=newest.error,
        )
    return None


def _denied(d: Draft, c: IntendAct, outside: GovernanceFacts) -> tuple[str | None, str] | None:
    """Why the call is denied, as (code, message). None: it is not."""
    act, run = c.act, d.run
    if outside.governance is None or c.ruling.version == 0:
        return "POLICY_MISSING", "the tenant has no active policy, so every act is denied: activate a policy"
    if c.ruling.outcome == "deny":
        return c.ruling.error, c.ruling.why
    frozen = freeze_reason(outside, run.workflow, act.connector)
    if frozen is not None:
        return "FROZEN", frozen
    run_spend = current_run_spend(d)
    for scope in ("", f"wf:{run.workflow}"):
        cap = outside.caps.get(scope)
        most = None if cap is None else cap.max_writes_per_run
        if most is not None and run_spend.writes >= most:
            return (
                "WRITES_EXCEEDED",
                f"the run has made {run_spend.writes} writes, and max_writes_per_run is {most}",
            )
    budget = d.spec().budget
    if budget is not None and run_spend.spent > budget:
        return "BUDGET_EXCEEDED", "the run has spent more than its budget"
    return None


def freeze_reason(outside: GovernanceFacts, workflow: str, connector: str) -> str | None:
    """Why an act is frozen. None: it is not."""
    found = _frozen(outside, workflow, connector)
    return None if not found else f"{found[0][0]} is frozen: no act is done until it is unfrozen"


def _frozen(outside: GovernanceFacts, workflow: str, connector: str) -> list[tuple[str, str]]:
    """The freezes that concern an act: what is frozen, and by whom."""
    if outside.governance is None:
        return []
    frozen = msgspec.json.decode(outside.governance.frozen, type=dict[str, str])
    scopes = {
        "*": "the tenant",
        f"wf:{workflow}": f"workflow {workflow}",
        f"cn:{connector}": f"connector {connector}",
    }
    return [(words, frozen[scope]) for scope, words in scopes.items() if scope in frozen]


def _involve_freezers(d: Draft, connector: str) -> None:
    """Involve the people who froze the act: they have changed what the run does."""
    for _, people in _frozen(_outside(d, None, ()), d.run.workflow, connector):
        add_involved_people(d, SYSTEM, people)


def _key_holder(d: Draft, name: str, outside: GovernanceFacts) -> ReceiptRow | None:
    """The receipt that holds a key. The run's own receipts may have changed in this transaction, before the database
    knows."""
    found = outside.holder
    if found is None or found.run_id != d.run.id:
        return d.snap.find_own_key_holder(name) or found
    mine = current_receipt(d, found.no)
    return mine if mine.state in KEY_HOLDING_RECEIPT else d.snap.find_own_key_holder(name)


def _reuse(d: Draft, c: IntendAct, holder: ReceiptRow, outside: GovernanceFacts, tries: int) -> Decision:
    """Another receipt holds the key: reuse its effect, if its outcome is known."""
    act = c.act
    if (holder.connector, holder.operation) != (act.connector, act.operation):
        raise TenureError(
            "IDEMPOTENCY_KEY_REUSED", f"the key was used for {holder.connector}.{holder.operation} already"
        )
    if not is_same_request(d, c.request, holder, outside.request):
        raise TenureError(
            "IDEMPOTENCY_KEY_REUSED", "the key was used for another target or other fields already"
        )
    if holder.state != "succeeded":
        return Decision(ActReply("busy"))
    verdict = _add_verdict(d, c.idx, act, c.ruling)
    receipt = d.add(_receipt(d, c, verdict, tries + 1, d.now))
    change_receipt(d, receipt, "reuse")
    receipt.source_run, receipt.source_no = holder.run_id, holder.no
    receipt.settled_at = d.now
    # A copy of the result: the other run may be deleted before this one.
    receipt.result_ref = holder.result_ref if holder.run_id == d.run.id else d.payload(outside.result)
    d.edit_run().receipts += 1
    reply = ActReply(
        "done",
        no=receipt.no,
        receipt_state="reused",
        result_ref=receipt.result_ref,
        source=(holder.run_id, holder.no),
    )
    return finish_decision(d, reply, "intend_act")


def _receipt(d: Draft, c: IntendAct, verdict: VerdictRow, try_no: int, call_by: int) -> ReceiptRow:
    act = c.act
    reverses_run, reverses_no = act.reverses or (None, None)
    return ReceiptRow(
        d.run.id,
        d.next_no(),
        d.run.tenant,
        c.idx,
        act.label,
        try_no,
        act.connector,
        act.operation,
        act.tier,
        act.name,
        act.digest,
        act.repeats,
        act.reversible,
        verdict.no,
        None,
        c.n,
        d.now,
        call_by,
        d.payload(c.request),
        d.payload(c.before),
        reverses_run,
        reverses_no,
    )


def _call_by(d: Draft, attempt: AttemptRow, seconds: float) -> int:
    """The end of the call, some time before the lease ends."""
    until = min(d.now + us(seconds), attempt.expires_at - us(CALL_MARGIN_SECONDS))
    if until - d.now < us(min(seconds, CALL_SECONDS_MIN)):
        raise TenureError(
            "LEASE_TOO_SHORT", "the lease ends too soon for a call: try again after the next heartbeat"
        )
    return until


def _call(d: Draft, no: int, call_by: int) -> ActReply:
    return ActReply(
        "call", no=no, receipt_state="intent", call_by=call_by, call_seconds=(call_by - d.now) / SECOND_US
    )


def repeat(d: Draft, c: RepeatAct) -> Decision:
    check_duration("call_seconds", c.call_seconds)
    step, attempt = require_act_lease(d, c)
    if step.state == "canceling":
        return Decision(ActReply("cancel"))
    receipt = current_receipt(d, c.no)
    if receipt.idx != c.idx:
        raise TenureError("RECEIPT_NOT_FOUND", f"step {step.name!r} has no receipt {c.no}")
    if receipt.state not in ("intent", "unknown"):
        return Decision(
            _receipt_reply(receipt, d.now) or ActReply("failed", no=c.no, receipt_state=receipt.state)
        )
    by_person = receipt.state == "intent" and receipt.settled_by is not None
    if receipt.repeats not in SAFE_TO_REPEAT and not by_person:
        return Decision(ActReply("open", no=c.no, receipt_state=receipt.state))
    frozen = freeze_reason(_outside(d, None, ()), d.run.workflow, receipt.connector)
    if frozen is not None:
        _involve_freezers(d, receipt.connector)
        # The receipt becomes unknown when the step ends, because nobody knows whether the first call was made.
        return end_step_by_governance(d, step, "FROZEN", frozen, "repeat_act")
    call_by = _call_by(d, attempt, c.call_seconds)
    receipt = change_receipt(d, receipt, "repeat")
    receipt.n, receipt.call_by = c.n, call_by
    end_receipt_wait(d, receipt)
    receipt.settled_by = None  # a person's `retry` is good for one call
    return finish_decision(d, _call(d, c.no, call_by), "repeat_act")


def current_receipt(d: Draft, no: int) -> ReceiptRow:
    found = d.snap.find_receipt(no)
    if found is None:
        raise TenureError("RECEIPT_NOT_FOUND", f"the run has no receipt {no}")
    return d.current_row(found)


def end_receipt_wait(d: Draft, receipt: ReceiptRow) -> None:
    """Close the wait for a person who settles a receipt."""
    wait = None if receipt.wait_no is None else d.snap.find_wait(receipt.wait_no)
    receipt.wait_no = None
    if wait is not None and wait.state == "open":
        close_wait(d, d.current_row(wait))
