"""How steps, waits and runs end, and what an ended run owes others.
Laws:
1. A step ends once. In the same commit its dependents, its waits and the run move.
2. When a required step ends badly, or the deadline passes, the same commit closes everything that is open: leases are
   revoked, dependents of the failed step are skipped, the other steps are canceled.
3. A run that ends owes its parent, its children and the next holder of its concurrency key an outbox row. A canceled
   run that wrote to the world, and compensates, owes a run that undoes that.
4. If a step and its run succeed, their proposals stay open until they are decided or expire. Otherwise they are
   withdrawn.
5. When a plan step ends without a plan, its run ends in the same commit: canceled if that was requested, else failed
   (PLAN_FAILED), with the step's code and message as its error.
"""

from __future__ import annotations

from collections.abc import Collection

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.commands import SYSTEM
from tenure.kernel.decide.backoff import follow_deadline
from tenure.kernel.decide.ready_steps import make_ready, open_step
from tenure.kernel.decide.receipts import current_run_spend, lose_intended_receipts
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.machines import APPROVAL, LEASED_STEP, WAITING_STEP
from tenure.kernel.run_rows import (
    CLOSED_RUN,
    CONDITION_FALSE,
    PLAN_IDX,
    QUESTIONS,
    WAITS_AT_END,
    ApprovalRow,
    InboxRow,
    PayloadRow,
    StepRow,
    WaitRow,
)
from tenure.kernel.separation_of_duties import add_involved_people, join_people
from tenure.limits import PAYLOAD_BYTES_MAX

RESOLVED_TOGETHER_MAX = 100
"""How many inputs of a run are made and committed together."""


def check_run_open(d: Draft) -> None:
    """Refuse a command about a run that has ended."""
    if d.run.status in CLOSED_RUN:
        raise TenureError("RUN_TERMINAL_STATE", f"the run is {d.run.status} already")


def dependents_of(step: StepRow) -> list[int]:
    return [int(idx) for idx in step.dependents.split(",")] if step.dependents else []


def end_step(
    d: Draft,
    step: StepRow,
    reason: str,
    *,
    output_ref: int | None = None,
    error_ref: int | None = None,
    closing: bool = False,
) -> None:
    """What follows when a step has reached a terminal state. With `closing`, no dependent is opened."""
    run = d.edit_run()
    step.finished_at = d.now
    step.reason = reason
    step.wake_at = None
    step.eligible_at = None
    step.waits_on = ""
    if output_ref is not None:
        step.output_ref = output_ref
    if error_ref is not None:
        step.error_ref = error_ref
    if step.kind == "plan":
        return  # it has no waits, receipts and dependents, and does not count
    run.steps_open -= 1
    if run.waits_open:
        close_waits(d, step.idx, proposals=step.state != "succeeded")
    if run.receipts:
        lose_intended_receipts(d, step.idx)
    succeeded = step.state == "succeeded"
    if succeeded and step.kind != "body":
        run.steps_done += 1
    if succeeded and output_ref is not None:
        run.output_ref = output_ref
    if step.required and not succeeded:
        run.steps_bad += 1
        if run.steps_bad == 1 and run.cancel_at is None:
            run.error_ref = step.error_ref
            d.notes.setdefault("failed_step", step.idx)
            d.notes.setdefault("reason", reason)
    elif run.cancel_at is None and not closing:
        behind_it = dependents_of(step)
        d.snap.check_room(len(behind_it))
        d.need("step", behind_it)
        for idx in behind_it:
            dependent = d.step(idx)
            if dependent.state == "pending":
                dependent = d.edit(dependent)
                dependent.needs_left -= 1
                if dependent.needs_left == 0 and run.admitted_at is not None:
                    open_step(d, dependent)


def close_waits(
    d: Draft, idx: int | None = None, *, proposals: bool = True, keep: Collection[int] = ()
) -> None:
    """Close the open waits of a step or, without an index, of the run; open questions are canceled. Without
    `proposals` those stay open, and so do the waits in `keep`."""
    waits = open_waits(d) if idx is None else d.open_waits_of(idx)
    if keep:
        waits = [wait for wait in waits if wait.no not in keep]
    if not proposals:
        waits = [wait for wait in waits if wait.kind != "proposal"]
    d.need("approval", (wait.no for wait in waits if wait.kind in QUESTIONS))
    for wait in waits:
        close_wait(d, wait)


def close_wait(d: Draft, wait: WaitRow) -> None:
    """Close a wait; an open question is canceled."""
    if wait.kind in QUESTIONS:
        end_question(d, wait.no, "cancel")
    wait = d.edit(wait)
    wait.state = "closed"
    wait.wake_at = None
    d.edit_run().waits_open -= 1


def open_waits(d: Draft) -> list[WaitRow]:
    """The open waits, oldest first."""
    waits = [d.current_row(w) for w in d.snap.open_waits()]
    waits += [w for w in d.changed.values() if isinstance(w, WaitRow) and w.no not in d.snap.waits]
    return [w for w in waits if w.state == "open"]


def current_approval(d: Draft, no: int) -> ApprovalRow:
    changed = d.changed.get(("approval", no))
    found = changed if isinstance(changed, ApprovalRow) else d.snap.find_approval(no)
    if found is None:
        raise TenureError("APPROVAL_NOT_FOUND", f"the run has no approval {no}")
    return found


def end_question(d: Draft, no: int, given: str) -> None:
    """End a question that people have not decided: `given` is `cancel` or `expire`."""
    approval = d.edit(current_approval(d, no))
    approval.status = APPROVAL.take(approval.status, given).next
    approval.decided_at = d.now


GOOD_OUTCOMES = frozenset({"approved", "received", "elapsed", "finished", "resumed"})
_REFUSED = {"rejected": "APPROVAL_REJECTED", "child_failed": "CHILD_FAILED"}
"""The code of a wait by its outcome."""
_EXPIRED = {"approval": "APPROVAL_EXPIRED", "receipt": "RECEIPT_UNKNOWN"}
"""The code of an expired wait by its kind."""


def refusal_code(wait: WaitRow, outcome: str) -> str:
    return _REFUSED.get(outcome) or _EXPIRED.get(wait.kind, "WAIT_EXPIRED")


def settle_wait(d: Draft, wait: WaitRow, outcome: str, result_ref: int | None = None) -> None:
    """A wait has its result: a gate moves, a suspended step is woken once, a live lease continues, and a step that
    only waits for its children succeeds with the last one."""
    wait = d.edit(wait)
    wait.state = "settled"
    wait.outcome = outcome
    wait.settled_at = d.now
    wait.result_ref = result_ref
    wait.wake_at = None
    d.edit_run().waits_open -= 1
    step = d.step(wait.idx)
    bad = outcome not in GOOD_OUTCOMES
    waits_on = step.waits_on.split(",") if step.state in WAITING_STEP else []
    waits_for_it = str(wait.no) in waits_on
    if wait.gate and not bad:
        end_step(d, d.move(step, "settle"), "done", output_ref=result_ref)
    elif bad and wait.fatal and (wait.gate or waits_for_it):
        end_step(d, d.move(step, "refuse"), refusal_code(wait, outcome))
    elif waits_for_it and waits_on[0] == WAITS_AT_END:
        waits_on.remove(str(wait.no))
        if len(waits_on) > 1:
            d.edit(step).waits_on = ",".join(waits_on)
        else:
            end_step(d, d.move(step, "settle"), "done", output_ref=step.output_ref)
    elif waits_for_it:
        step = d.move(step, "resume")
        step.waits_on = ""
        make_ready(d, step)


def take_early_events(d: Draft) -> None:
    """Give buffered events to the waits that this decision has opened, first in, first out."""
    if not d.early:
        return
    taken = {row.no for row in d.changed.values() if isinstance(row, InboxRow) and row.wait_no is not None}
    while d.early:
        no = d.early.pop(0)
        wait = d.changed["wait", no]
        if not isinstance(wait, WaitRow) or wait.state != "open" or not d.run.inbox_buffered:
            continue
        row = d.snap.first_buffered_event(wait.name, taken)
        if row is not None:
            taken.add(row.no)
            give_event(d, row, wait)


def give_event(d: Draft, row: InboxRow, wait: WaitRow) -> None:
    """Let a wait take an event, in the commit that records its result."""
    row = d.edit(row)
    row.wait_no = wait.no
    add_involved_people(d, SYSTEM, row.senders)
    d.edit_run().inbox_buffered -= 1
    d.notes.setdefault("external", []).append(
        {"no": wait.no, "event_type": row.name, "source": row.source, "event_id": row.event_id}
    )
    settle_wait(d, wait, "received", row.payload_ref)


def close_open_steps(d: Draft, failed: StepRow | None = None) -> None:
    """End every open step. The steps that need the failed one are skipped."""
    steps = d.open_steps()
    d.need_attempts(steps)
    if d.run.waits_open:
        close_waits(d)
    skipped: set[int] = set()
    todo = dependents_of(failed) if failed is not None else []
    by_idx = {s.idx: s for s in steps}
    while todo:
        idx = todo.pop()
        if idx in by_idx and idx not in skipped:
            skipped.add(idx)
            todo += dependents_of(by_idx[idx])
    for step in steps:
        if step.state == "pending":
            skip = step.idx in skipped
            ended = d.move(step, "skip" if skip else "drop")
            end_step(d, ended, "STEP_SKIPPED" if skip else "RUN_CLOSED", closing=True)
        else:
            leased = step.state in LEASED_STEP or step.state == "canceling"
            ended = d.move(step, "close")
            if leased:
                d.edit(d.attempt_of(ended)).reason = "RUN_CLOSED"
            end_step(d, ended, "RUN_CLOSED", closing=True)


def end_over_budget(d: Draft, result: object, kind: str) -> Decision:
    """The run exceeds its budget: close everything that is open, as after its deadline."""
    d.notes["reason"] = "BUDGET_EXCEEDED"
    close_open_steps(d)
    return finish_decision(d, result, kind)


def time_out_run(d: Draft) -> Decision:
    """The run's deadline has passed: close everything that is open."""
    close_open_steps(d)
    d.timed_out = True
    return finish_decision(d, None, "time_out")


def finish_decision(d: Draft, result: object, kind: str) -> Decision:
    """Derive the run's status from its steps, and complete the decision."""
    take_early_events(d)
    while d.skipping:
        skip_by_condition(d)
        take_early_events(d)
    run = d.run
    if not run.planned:
        settle_planning(d)
        run = d.run
    elif run.status not in CLOSED_RUN:
        if run.steps_bad and run.steps_open and run.cancel_at is None:
            failed = d.step(d.notes["failed_step"]) if "failed_step" in d.notes else None
            close_open_steps(d, failed)
        d.settle_status()
        follow_deadline(d)
        run = d.run
    if run.status in CLOSED_RUN and run.finished_at is None:
        end_run(d)
    elif run.status not in CLOSED_RUN:
        set_run_wake(d)
    if d.unresolved:
        owe_resolution(d)
    return d.decision(result, kind)


def skip_by_condition(d: Draft) -> None:
    """Close the open steps whose condition is false: they succeed without output and without a lease."""
    todo, d.skipping = d.skipping, []
    for idx in todo:
        step = d.step(idx)
        if step.state == "pending" and d.run.cancel_at is None:
            step = d.move(step, "skip_condition")
            d.edit_run().steps_skipped += 1
            d.notes.setdefault("skipped", []).append(
                {
                    "step": step.idx,
                    "name": step.name,
                    "reason": CONDITION_FALSE,
                    "condition": step.condition,
                }
            )
            end_step(d, step, CONDITION_FALSE)


def owe_resolution(d: Draft) -> None:
    """Owe the inputs of steps that wait for them; `ResolveSteps` brings them."""
    waiting = [s for idx in dict.fromkeys(d.unresolved) if is_unresolved(s := d.step(idx))]
    if d.run.status in CLOSED_RUN or d.run.cancel_at is not None:
        return
    for at in range(0, len(waiting), RESOLVED_TOGETHER_MAX):
        steps = [[step.idx, step.attempt + 1] for step in waiting[at : at + RESOLVED_TOGETHER_MAX]]
        d.owe("resolve", d.run.id, {"steps": steps})


def is_unresolved(step: StepRow) -> bool:
    """Whether a step waits only for its input."""
    return step.resolution == "due" and (
        step.state == "ready" or (step.state == "pending" and not step.needs_left)
    )


def set_run_wake(d: Draft) -> None:
    """Set the moment at which time alone changes the run."""
    run = d.run
    if not run.planned:
        wake = None
        if run.cancel_at is None:
            wake = run.created_at + us(d.rules.timing.planning_seconds)
            if run.deadline_at is not None:
                wake = min(wake, run.deadline_at)
    elif run.admitted_at is None:
        return  # admission sets its own moment
    elif run.cancel_at is not None or run.human_since is not None:
        wake = None
    else:
        wake = run.deadline_at
    if wake != run.wake_at:
        d.edit_run().wake_at = wake


def end_run(d: Draft) -> None:
    run = d.edit_run()
    run.finished_at = d.now
    run.duration_us = d.now - (run.started_at if run.started_at is not None else run.created_at)
    run.wake_at = None
    run.human_since = None
    if run.status == "canceled":
        run.reason = run.cancel_reason
    elif run.status == "failed":
        run.reason = run.reason or str(d.notes.get("reason", "STEP_FAILED"))
    else:
        run.reason = "done" if run.status == "succeeded" else "RUN_TIMED_OUT"
    if run.waits_open:
        close_waits(d, proposals=run.status != "succeeded")
    for child in d.snap.open_children() if run.children_open else ():
        if child.on_close != "leave":
            d.owe("cancel", child.child_id, {"reason": "PARENT_CLOSED"})
    if run.linked:
        spec = d.spec()
        if spec.parent_id is not None:
            message = {"child_id": run.id, "outcome": run.status}
            if spec.involved:  # otherwise only the requester, who is the parent's requester, too
                message["involved"] = join_people(spec.requester, spec.involved)
            if "restarted_as" in d.notes:
                message["successor"] = d.notes["restarted_as"]
            d.owe("child_finished", spec.parent_id, message)
        if run.concurrency_key is not None:
            d.owe("key_freed", None, {"tenant": run.tenant, "key": run.concurrency_key})
    if run.receipts and run.status == "canceled" and d.spec().compensate and current_run_spend(d).writes:
        d.owe("compensate", None)


PLAN_ERRORS = {
    "STEP_LOST": b"every worker that planned was lost",
    "STEP_TIMED_OUT": b"the planner exceeded its own timeout",
}
"""The message of a planner that could not leave one."""


def settle_planning(d: Draft) -> None:
    """Derive the status of a run without a plan from its plan step, if this decision has changed it (law 5)."""
    step = d.changed.get(("step", PLAN_IDX))
    if not isinstance(step, StepRow) or d.run.status in CLOSED_RUN:
        return
    if step.finished_at is None:
        if d.run.cancel_at is not None:
            d.show("canceling")
    elif d.run.cancel_at is not None:
        d.show("canceled")
    else:
        run = d.edit_run()
        run.reason = str(d.notes.get("reason", "PLAN_FAILED"))  # or BUDGET_EXCEEDED
        if run.error_ref is None and "reason" not in d.notes:
            run.error_ref = d.payload(_planning_error(d, step))
        d.show("failed")


def _planning_error(d: Draft, step: StepRow) -> bytes:
    """The code and message of a planner's last failure."""
    code = step.reason or "STEP_FAILED"
    message = PLAN_ERRORS.get(code, b"")
    found = d.changed.get(("payload", step.error_ref))
    if isinstance(found, PayloadRow):
        message = found.body
    if code == "PLAN_FAILED":
        return message or b"the planner failed"
    return (code.encode() + b": " + message if message else code.encode())[:PAYLOAD_BYTES_MAX]


def time_out_planning(d: Draft) -> Decision:
    """The run still has no plan at the end of its planning time, or at its deadline: planning -> plan_failed -> failed."""
    d.edit_run().error_ref = d.payload(b"the planner took too long")
    close_open_steps(d)
    return finish_decision(d, None, "plan_failed")
