"""Runs, steps, attempts: I9, I11 to I21.

Law: every count is counted again from the rows it counts, and every budget from the history.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from tenure.doctor.checked_run import CheckedRun
from tenure.doctor.invariants import Finding, checks
from tenure.doctor.states import describe_attempt, describe_step
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import CLOSED_RUN, CLOSED_STEP, CheckpointRow, RunRow, StepRow
from tenure.kernel.status import STATE_COUNTERS, derive_status

CLAIMS = frozenset({"claim", "claim_and_ack"})
RETRIES = frozenset({"fail_retry", "time_out_retry"})
SUSPENSIONS = frozenset({"suspend_approval", "suspend_external"})
CANCEL_ENDS = frozenset(
    {"drop", "close", "cancel_ack", "late_result", "force_cancel", "expire_canceling", "release_canceling"}
)
"""The moves by which a step becomes canceled."""
_COUNTERS = (
    "steps_total",
    "steps_open",
    "steps_ready",
    "steps_live",
    "steps_approval",
    "steps_external",
    "steps_retry",
    "steps_bad",
    "checkpoints",
    "waits_open",
    "inbox_total",
    "inbox_buffered",
    "children_open",
)


def recounted(view: CheckedRun) -> RunRow:
    """The run as its steps, waits, deliveries and children would have it."""
    bundle = view.bundle
    run = copy.copy(view.run)
    counts = dict.fromkeys(_COUNTERS, 0)
    counts["steps_total"] = len(bundle.steps)
    for step in bundle.steps:
        counter = STATE_COUNTERS.get(step.state)
        if counter is not None:
            counts[counter] += 1
        if step.state not in CLOSED_STEP:
            counts["steps_open"] += 1
        elif step.required and step.state != "succeeded":
            counts["steps_bad"] += 1
    counts["checkpoints"] = len(bundle.checkpoints)
    counts["waits_open"] = sum(wait.state == "open" for wait in bundle.waits)
    counts["inbox_total"] = len(bundle.inbox)
    counts["inbox_buffered"] = sum(row.wait_no is None for row in bundle.inbox)
    counts["children_open"] = sum(child.state == "open" for child in bundle.children)
    for name, count in counts.items():
        setattr(run, name, count)
    return run


@checks("I9")
def status_is_derived(view: CheckedRun) -> Iterator[Finding]:
    """The counters are what is counted, and the status is what follows from them."""
    run, counted = view.run, recounted(view)
    for name in _COUNTERS:
        if getattr(run, name) != getattr(counted, name):
            yield "run", f"{name} is {getattr(run, name)}, counted are {getattr(counted, name)}"
    if not run.planned:
        if run.status not in ("created", "planning", "failed", "canceled"):
            yield "run", f"is {run.status} without a plan"
        return
    late = run.status == "timed_out"
    if late and (run.deadline_at is None or run.finished_at is None or run.deadline_at > run.finished_at):
        yield "run", f"timed out at {run.finished_at}; its deadline is {run.deadline_at}"
    status = derive_status(counted, past_deadline=late)
    if status != run.status:
        yield "run", f"is {run.status}, its steps make it {status}"


@checks("I9")
def steps_count_their_checkpoints(view: CheckedRun) -> Iterator[Finding]:
    """A step knows whether it has checkpoints, and how many of them can be neither skipped nor repeated."""
    if not view.bundle.checkpoints and not any(s.recorded or s.unsafe for s in view.bundle.steps):
        return
    unsafe: dict[int, int] = {}
    for row in view.bundle.checkpoints:
        unsafe[row.idx] = unsafe.get(row.idx, 0) + _is_unsafe(row)
    for step in view.bundle.steps:
        if step.recorded != (step.idx in unsafe):
            yield (
                describe_step(step),
                f"has {'no ' if step.recorded else ''}checkpoints; its row says otherwise",
            )
        if step.unsafe != unsafe.get(step.idx, 0):
            yield describe_step(step), f"unsafe is {step.unsafe}, counted are {unsafe.get(step.idx, 0)}"


def _is_unsafe(row: CheckpointRow) -> bool:
    """Neither skipped nor repeated: begun and not known to have ended, or done but not to be reused."""
    if row.idempotent:
        return False
    return row.state == "started" or (row.state == "done" and not row.resumable)


@checks("I11")
def success_is_whole(view: CheckedRun) -> Iterator[Finding]:
    """Succeeded exactly when every step is closed and all required ones succeeded."""
    run = view.run
    steps = view.bundle.steps
    if run.status == "succeeded":
        for step in steps:
            if step.state not in CLOSED_STEP:
                yield describe_step(step), f"is {step.state} in a run that succeeded"
            elif step.required and step.state != "succeeded":
                yield describe_step(step), f"is required and {step.state} in a run that succeeded"
        if not run.planned:
            yield "run", "succeeded without a plan"
        return
    may_succeed = run.planned and run.admitted_at is not None and run.cancel_at is None
    if may_succeed and run.status != "timed_out" and all(map(_is_good, steps)):
        yield "run", f"is {run.status}, but every step is closed and the required ones succeeded"


def _is_good(step: StepRow) -> bool:
    return step.state == "succeeded" or (step.state in CLOSED_STEP and not step.required)


@checks("I12")
def failure_has_a_cause(view: CheckedRun) -> Iterator[Finding]:
    """A failed run had no plan, or a required step of it ended otherwise than succeeded."""
    run = view.run
    if run.status != "failed" or not run.planned:
        return
    if not any(s.required and s.state in CLOSED_STEP and s.state != "succeeded" for s in view.bundle.steps):
        yield "run", "failed, but no required step did"


@checks("I13")
def cancel_was_requested(view: CheckedRun) -> Iterator[Finding]:
    """A canceled run was asked to; a leased step of it acked, passed its deadline, or lost its lease."""
    run = view.run
    if run.status == "canceled" and (run.cancel_at is None or run.cancel_reason is None):
        yield "run", "is canceled, but nobody asked for it"
    if run.cancel_at is not None and view.canceled_seq is None and not view.unreadable:
        yield "run", "has a cancel request that no event tells of"
    for taken in view.taken:
        if taken.idx is None or taken.edges[-1][0] == "run":
            continue
        if not any(machine == "step" and target == "canceled" for machine, _, target, _ in taken.edges):
            continue
        if taken.move not in CANCEL_ENDS:
            yield f"event {taken.seq}", f"step {taken.idx} became canceled by '{taken.move}'"
        elif taken.move == "force_cancel" and taken.kind != "revoke":
            step = view.steps.get(taken.idx)
            if step is not None and (step.cancel_by is None or taken.at < step.cancel_by):
                yield (
                    f"event {taken.seq}",
                    f"step {taken.idx} was forced before its deadline {step.cancel_by}",
                )


@checks("I14")
def ended_run_is_quiet(view: CheckedRun) -> Iterator[Finding]:
    """A terminal run has no open step, live lease, timer or approval; one that succeeded may have open proposals."""
    run = view.run
    if run.status not in CLOSED_RUN:
        return
    if run.wake_at is not None:
        yield "run", f"has ended and wakes at {run.wake_at}"
    for step in view.bundle.steps:
        if step.state not in CLOSED_STEP:
            yield describe_step(step), f"is {step.state} in a run that has ended"
        if step.wake_at is not None or step.claimable:
            yield describe_step(step), "has a timer or can be claimed in a run that has ended"
    for attempt in view.bundle.attempts:
        if attempt.lease in LIVE_LEASE:
            yield describe_attempt(attempt), f"has a lease {attempt.lease} in a run that has ended"
    outlive = {w.no for w in view.bundle.waits if w.kind == "proposal" and run.status == "succeeded"}
    for wait in view.bundle.waits:
        if (wait.state == "open" or wait.wake_at is not None) and wait.no not in outlive:
            yield f"wait {wait.no}", "is open or has a timer in a run that has ended"
    for approval in view.bundle.approvals:
        if approval.status == "requested" and approval.no not in outlive:
            yield f"approval {approval.no}", "is open in a run that has ended"
    for receipt in view.bundle.receipts:
        if receipt.state == "intent":
            yield f"receipt {receipt.no}", "is intended in a run that has ended"


@checks("I15")
def order_is_kept(view: CheckedRun) -> Iterator[Finding]:
    """When a step left `pending`, all it needs had succeeded, or ended where failing is allowed."""
    needs: dict[int, list[int]] = {}
    for step in view.bundle.steps:
        if step.dependents:
            for idx in step.dependents.split(","):
                needs.setdefault(int(idx), []).append(step.idx)
    if not needs:
        return
    state: dict[int, str] = {}
    for taken in view.taken:
        if taken.idx is None:
            continue
        for machine, _, target, _ in taken.edges:
            if machine != "step":
                continue
            if target == "ready" and taken.idx not in state:
                for need in needs.get(taken.idx, ()):
                    was = state.get(need, "pending")
                    if was != "succeeded" and (was not in CLOSED_STEP or view.steps[need].required):
                        yield f"event {taken.seq}", f"step {taken.idx} starts while step {need} is {was}"
            state[taken.idx] = target


@checks("I16")
def attempts_are_numbered(view: CheckedRun) -> Iterator[Finding]:
    """Attempts are 1..n, each granted after the last one ended, and n is the step's fence."""
    for idx in view.attempts.keys() - view.steps.keys():
        yield f"attempt {idx}/{view.attempts[idx][0].n}", "belongs to no step"
    for step in view.bundle.steps:
        attempts = view.attempts.get(step.idx, ())
        last = None
        for n, attempt in enumerate(attempts, start=1):
            if attempt.n != n:
                yield describe_attempt(attempt), f"stands where attempt {n} should"
                break
            if last is not None and (last.ended_at is None or attempt.granted_at < last.ended_at):
                yield describe_attempt(attempt), f"was granted before attempt {last.n} had ended"
            last = attempt
        if step.attempt != len(attempts):
            yield describe_step(step), f"its newest attempt is {step.attempt}, there are {len(attempts)}"
        if step.charged > step.max_attempts:
            yield describe_step(step), f"is charged {step.charged} of {step.max_attempts} attempts"


@checks("I17")
def one_success(view: CheckedRun) -> Iterator[Finding]:
    """At most one attempt of a step succeeds and none follows it. The step succeeded with it, unless it had to wait
    for its children then."""
    waited = {(taken.idx, taken.n) for taken in view.taken if taken.move == "complete_waiting"}
    for idx, attempts in view.attempts.items():
        for attempt in attempts:
            if attempt.state == "succeeded":
                step = view.steps.get(idx)
                if attempt is not attempts[-1]:
                    yield describe_attempt(attempt), f"succeeded, and attempt {attempts[-1].n} follows it"
                at_end = (idx, attempt.n) in waited
                if step is not None and step.state != "succeeded" and not at_end:
                    yield describe_step(step), f"is {step.state}, but attempt {attempt.n} succeeded"


@checks("I18")
def charges_add_up(view: CheckedRun) -> Iterator[Finding]:
    """Replay what every step was charged: claims less releases and suspensions, since the last progress."""
    charged: dict[int, int] = {}
    states: dict[str, str] = {}
    acts = {row.no: row.idx for row in view.bundle.receipts}
    settled = iter(view.settled_acts)
    act = next(settled, None)
    entries = iter(view.taken)
    taken = next(entries, None)
    for event, body in view.bodies:
        for key, columns in body.get("set", {}).get("checkpoint", {}).items():
            state = columns.get("state")
            if state is None:
                continue
            if (state == "done") if key in states else (state != "started"):
                charged[int(key.split("/", 1)[0])] = 0
            states[key] = state
        while act is not None and act.seq <= event.seq:
            if act.kind == "settle_act" and act.edges[-1][2] == "succeeded":
                charged[acts.get(act.receipt or 0, -1)] = 0
            act = next(settled, None)
        while taken is not None and taken.seq <= event.seq:
            idx, move = taken.idx, taken.move
            if idx is None:
                pass
            elif move in CLAIMS:
                charged[idx] = charged.get(idx, 0) + 1
                step = view.steps.get(idx)
                if step is not None and charged[idx] > step.max_attempts:
                    yield (
                        f"event {event.seq}",
                        f"step {idx} is claimed for the {charged[idx]}th time of {step.max_attempts}",
                    )
            elif move == "release" or move in SUSPENSIONS:
                charged[idx] = max(0, charged.get(idx, 0) - 1)
            elif move in ("complete", "complete_waiting"):
                charged[idx] = 0
            taken = next(entries, None)
    for step in view.bundle.steps:
        if step.charged != charged.get(step.idx, 0):
            yield (
                describe_step(step),
                f"is charged {step.charged}, its history makes it {charged.get(step.idx, 0)}",
            )


@checks("I19")
def retries_are_due(view: CheckedRun) -> Iterator[Finding]:
    """A step is tried again only while tries are left, not while canceling, and not before its backoff."""
    eligible: dict[int, int] = {}
    canceled = view.canceled_seq
    by_seq = None
    for taken in view.taken:
        idx, move = taken.idx, taken.move
        if idx is None:
            continue
        if move in RETRIES:
            if canceled is not None and taken.seq >= canceled:
                yield f"event {taken.seq}", f"step {idx} is to be tried again although the run is canceling"
            if by_seq is None:
                by_seq = {event.seq: body for event, body in view.bodies}
            columns = by_seq.get(taken.seq, {}).get("set", {}).get("step", {}).get(str(idx), {})
            at = columns.get("eligible_at")
            if at is not None:
                eligible[idx] = at
            elif columns.get("state") == "retry_wait":
                yield f"event {taken.seq}", f"step {idx} backs off without an end"
        elif move == "due" or move in CLAIMS:
            if taken.at < eligible.get(idx, 0):
                yield (
                    f"event {taken.seq}",
                    f"'{move}' of step {idx} before its backoff ends at {eligible[idx]}",
                )
            if move != "due":
                eligible.pop(idx, None)


@checks("I20")
def completed_only_grows(view: CheckedRun) -> Iterator[Finding]:
    """steps_done never goes down, and equals the succeeded steps and finished checkpoints."""
    last = 0
    for event, body in view.bodies:
        done = body.get("set", {}).get("run", {}).get("", {}).get("steps_done")
        if done is not None:
            if done < last:
                yield f"event {event.seq}", f"steps_done goes from {last} to {done}"
            last = done
    counted = sum(s.state == "succeeded" and s.kind != "body" for s in view.bundle.steps)
    counted += sum(row.state == "done" for row in view.bundle.checkpoints)
    if view.run.steps_done != counted:
        yield "run", f"steps_done is {view.run.steps_done}, counted are {counted}"


@checks("I21")
def optional_steps_fail_alone(view: CheckedRun) -> Iterator[Finding]:
    """No run failed because of a step that was allowed to."""
    for event, body in view.bodies:
        failed = body.get("context", {}).get("failed_step")
        if failed is not None and failed in view.steps and not view.steps[failed].required:
            yield f"event {event.seq}", f"the run fails because of step {failed}, which is optional"
    run = view.run
    if run.status == "failed" and run.planned:
        bad = [s for s in view.bundle.steps if s.state in CLOSED_STEP and s.state != "succeeded"]
        if bad and not any(step.required for step in bad):
            yield describe_step(bad[0]), "is optional, and nothing else can have failed the run"
