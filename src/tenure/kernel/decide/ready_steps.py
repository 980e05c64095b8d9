"""How a step opens: work becomes ready to be claimed, a gate opens its wait."""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.kernel.commands import ApprovalSpec, WaitSpec
from tenure.kernel.draft import Draft
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
    """Open the approval of a gate, which is never leased."""
    spec = msgspec.json.decode(step.spec or "{}", type=ApprovalSpec)
    step = d.move(step, "open_approval_gate")
    wait = add_approval_wait(
        d, step.idx, spec, label=step.name, gate=True, fatal=True, question_ref=step.input_ref
    )
    step.wait_no = wait.no


def open_external_gate(d: Draft, step: StepRow) -> None:
    """Open a declared wait for an event or for time. An event that came early is taken at once."""
    spec = msgspec.json.decode(step.spec or "{}", type=WaitSpec)
    step = d.move(step, "open_external_gate")
    wait = add_event_wait(d, step.idx, spec, label=step.name, gate=True, fatal=True)
    step.wait_no = wait.no


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
    wait = _add_wait(d, idx, kind, spec.action, label, gate, fatal, expires_at)
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


def add_event_wait(d: Draft, idx: int, spec: WaitSpec, *, label: str, gate: bool, fatal: bool) -> WaitRow:
    """Open a wait for an event or, without a name, for time."""
    within = spec.within_seconds
    if within is None and spec.event:
        within = d.rules.timing.external_seconds
    expires_at = d.now + us(within) if within is not None else None
    kind = "event" if spec.event else "time"
    wait = _add_wait(d, idx, kind, spec.event, label, gate, fatal, expires_at)
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


def _add_wait(
    d: Draft, idx: int, kind: str, name: str, label: str, gate: bool, fatal: bool, expires_at: int | None
) -> WaitRow:
    run = d.edit_run()
    run.waits_open += 1
    no = d.next_no()
    wait = WaitRow(run.id, no, idx, kind, name, label, gate, fatal, d.now, expires_at, wake_at=expires_at)
    return d.add_wait(wait)


def add_timer_wait(d: Draft, idx: int, until: int, *, label: str) -> WaitRow:
    wait = _add_wait(d, idx, "time", "", label, False, False, max(until, d.now))
    d.notes.setdefault("external", []).append({"no": wait.no, "event_type": "time", "expected_at": until})
    return wait


def add_receipt_wait(d: Draft, idx: int, name: str, *, label: str, within_seconds: float) -> WaitRow:
    """Open a wait for a person who settles a receipt. Without an answer the step ends."""
    return _add_wait(d, idx, "receipt", name, label, False, True, d.now + us(within_seconds))


def add_child_wait(d: Draft, idx: int, child_id: int, *, label: str, fatal: bool) -> WaitRow:
    return _add_wait(d, idx, "child", str(child_id), label, False, fatal, None)
