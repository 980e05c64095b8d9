"""How a step opens: work becomes ready to be claimed, a gate opens its wait."""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.kernel.commands import ApprovalSpec, WaitSpec
from tenure.kernel.draft import Draft
from tenure.kernel.machines import APPROVAL
from tenure.kernel.run_rows import ApprovalRow, StepRow, WaitRow


def open_step(d: Draft, step: StepRow) -> None:
    """Open a step whose needs have ended. Skipped steps are closed when the decision ends (`finish_decision`), so
    that a long chain of skipped steps does not recurse."""
    if step.resolution == "skip":
        d.skipping.append(step.idx)
    elif step.resolution == "due":
        d.unresolved.append(step.idx)
    elif step.kind == "approval":
        open_approval_gate(d, step)
    elif step.kind == "wait":
        open_external_gate(d, step)
    else:
        make_ready(d, d.move(step, "ready"))


def make_ready(d: Draft, step: StepRow) -> None:
    """Make a step claimable, unless the run is paused, parked or canceling, or the attempt needs a new input."""
    run = d.run
    if step.resolution == "each":
        step.resolution = "due"
        d.unresolved.append(step.idx)
    step.ready_at = d.now
    step.wake_at = None
    step.eligible_at = None
    step.claimable = (
        step.resolution != "due" and not run.paused and run.parked is None and run.cancel_at is None
    )
    if step.claimable:
        d.ready = True


def open_approval_gate(d: Draft, step: StepRow) -> None:
    spec = msgspec.json.decode(step.spec or "{}", type=ApprovalSpec)
    step = d.move(step, "open_approval_gate")
    step.wait_no = add_approval_wait(
        d, step.idx, spec, label=step.name, gate=True, fatal=True, question_ref=step.input_ref
    ).no


def open_external_gate(d: Draft, step: StepRow) -> None:
    spec = msgspec.json.decode(step.spec or "{}", type=WaitSpec)
    step = d.move(step, "open_external_gate")
    step.wait_no = add_event_wait(d, step.idx, spec, label=step.name, gate=True, fatal=True).no


def add_approval_wait(
    d: Draft,
    idx: int,
    spec: ApprovalSpec,
    *,
    label: str,
    gate: bool,
    fatal: bool,
    question_ref: int | None,
    proposal: bool = False,
) -> WaitRow:
    """Open a question to people. A proposal is the run's own: the requester of the run may accept it."""
    expires_at, wake_at = question_deadlines(d, spec)
    requester = ids.run_text(d.run.id) if proposal else d.spec().requester
    kind = "proposal" if proposal else "approval"
    wait = insert_wait(d, idx, kind, spec.action, label, gate=gate, fatal=fatal, expires_at=expires_at)
    d.add(
        ApprovalRow(
            d.run.id,
            wait.no,
            d.run.tenant,
            spec.tier,
            spec.people,
            requester,
            bytes.fromhex(spec.digest),
            1,
            d.now,
            expires_at,
            question_ref,
            people_in=spec.group,
        )
    )
    if not proposal:
        wait.wake_at = wake_at
    d.notes.setdefault("approval", []).append(
        {
            "no": wait.no,
            "action": spec.action,
            "requested_by": requester,
            "tier": spec.tier,
            "people": spec.people,
            **({"group": spec.group} if spec.group else {}),
            **({"proposal": True} if proposal else {}),
        }
    )
    return wait


def question_deadlines(d: Draft, spec: ApprovalSpec) -> tuple[int | None, int | None]:
    """When a question asked now expires, and when people are reminded: once, after half of the time."""
    within = spec.within_seconds if spec.within_seconds is not None else d.rules.timing.approval_seconds
    if within is None:
        return None, None
    return d.now + us(within), d.now + us(within) // 2


def revise_question(d: Draft, approval: ApprovalRow, digest: bytes, question_ref: int | None) -> ApprovalRow:
    """Ask people anew for another proposal: earlier votes do not count for it."""
    approval = d.edit(approval)
    approval.status = APPROVAL.take(approval.status, "revise").next
    approval.revision += 1
    approval.digest = digest
    approval.votes = ""
    if question_ref is not None:
        approval.question_ref = question_ref
    return approval


def add_event_wait(d: Draft, idx: int, spec: WaitSpec, *, label: str, gate: bool, fatal: bool) -> WaitRow:
    """Open a wait for an event or, without a name, for time."""
    within = spec.within_seconds
    if within is None and spec.event:
        within = d.rules.timing.external_seconds
    expires_at = d.now + us(within) if within is not None else None
    kind = "event" if spec.event else "time"
    wait = insert_wait(d, idx, kind, spec.event, label, gate=gate, fatal=fatal, expires_at=expires_at)
    if kind == "event" and d.run.inbox_buffered:
        d.early.append(wait.no)
    d.notes.setdefault("external", []).append(
        {
            "no": wait.no,
            "event_type": spec.event or "time",
            "source": spec.source,
            "expected_at": expires_at,
            "timeout_ms": None if within is None else round(within * 1000),
        }
    )
    return wait


def insert_wait(
    d: Draft,
    idx: int,
    kind: str,
    name: str,
    label: str,
    *,
    gate: bool = False,
    fatal: bool = False,
    expires_at: int | None = None,
) -> WaitRow:
    run = d.edit_run()
    run.waits_open += 1
    return d.add_wait(
        WaitRow(
            run.id, d.next_no(), idx, kind, name, label, gate, fatal, d.now, expires_at, wake_at=expires_at
        )
    )


def add_timer_wait(d: Draft, idx: int, until: int, *, label: str) -> WaitRow:
    wait = insert_wait(d, idx, "time", "", label, expires_at=max(until, d.now))
    d.notes.setdefault("external", []).append({"no": wait.no, "event_type": "time", "expected_at": until})
    return wait
