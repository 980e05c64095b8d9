"""Runs, steps, attempts: I9, I11 to I21.

Law: every counter is counted again from the rows, and every charge from the history.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from tenure.doctor.checked_run import CheckedRun, describe
from tenure.doctor.invariants import Finding, checks
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import CLOSED_RUN, CLOSED_STEP, PLAN_IDX, CheckpointRow, StepRow
from tenure.kernel.status import STATE_COUNTERS, derive_status

CLAIMS = frozenset({"claim", "claim_and_ack"})
RETRIES = frozenset({"fail_retry", "time_out_retry"})
SUSPENSIONS = frozenset({"suspend_approval", "suspend_external"})
CANCEL_ENDS = frozenset(
    {"drop", "close", "cancel_ack", "late_result", "force_cancel", "expire_canceling", "release_canceling"}
)
"""The moves by which a step becomes canceled."""


def _is_bad(step: StepRow) -> bool:
    """Whether a step is required and ended without success."""
    return step.required and step.state in CLOSED_STEP and step.state != "succeeded"


def _count(view: CheckedRun) -> dict[str, int]:
    """The run's counters, counted from its rows."""
    bundle = view.bundle
    counts = dict.fromkeys(STATE_COUNTERS.values(), 0) | {
        "steps_total": len(view.counted),
        "steps_open": sum(step.state not in CLOSED_STEP for step in view.counted),
        "steps_bad": sum(map(_is_bad, view.counted)),
        "checkpoints": len(bundle.checkpoints),
        "waits_open": sum(wait.state == "open" for wait in bundle.waits),
        "inbox_total": len(bundle.inbox),
        "inbox_buffered": sum(row.wait_no is None for row in bundle.inbox),
        "children_open": sum(child.state == "open" for child in bundle.children),
    }
    for step in view.counted:
        if step.state in STATE_COUNTERS:
            counts[STATE_COUNTERS[step.state]] += 1
    return counts


@checks("I9")
def status_is_derived(view: CheckedRun) -> Iterator[Finding]:
    """The counters match the rows, and the status follows from the counters."""
    run, counted = view.run, copy.copy(view.run)
    for name, count in _count(view).items():
        setattr(counted, name, count)
        if getattr(run, name) != count:
            yield "run", f"{name} is {getattr(run, name)}, but the count is {count}"
    yield from _planner_problems(view)
    if not run.planned:
        return
    late = run.status == "timed_out"
    if late and (run.deadline_at is None or run.finished_at is None or run.deadline_at > run.finished_at):
        yield "run", f"timed out at {run.finished_at}; its deadline is {run.deadline_at}"
    status = derive_status(counted, past_deadline=late)
    if status != run.status:
        yield "run", f"is {run.status}, but its steps make it {status}"


def _planner_problems(view: CheckedRun) -> Iterator[Finding]:
    """A run without a plan has a plan step, from which its status follows. A run with a plan has none, or one that succeeded."""
    run, planner = view.run, view.planner
    if planner is None:
        if not run.planned:
            yield "run", f"is {run.status} and has neither a plan nor a plan step"
        return
    if planner.idx != PLAN_IDX:
        yield describe(planner), f"is a plan step with the index {planner.idx}"
    if sum(step.kind == "plan" for step in view.bundle.steps) > 1:
        yield describe(planner), "is not the only plan step"
    if planner.dependents or planner.recorded or any(w.idx == planner.idx for w in view.bundle.waits):
        yield describe(planner), "is a plan step, but other rows depend on it"
    if run.planned or planner.state == "succeeded":
        if not run.planned or planner.state != "succeeded":
            yield describe(planner), f"is {planner.state}; the run has {'a' if run.planned else 'no'} plan"
        return
    ended = "failed" if run.cancel_at is None else "canceled"
    still = "planning" if run.cancel_at is None else "canceling"
    status = ended if planner.state in CLOSED_STEP else still
    if status != run.status:
        yield "run", f"is {run.status}, but its plan step makes it {status}"


@checks("I9")
def steps_count_their_checkpoints(view: CheckedRun) -> Iterator[Finding]:
    """A step's row says whether it has checkpoints, and how many of them can be neither skipped nor repeated."""
    if not view.bundle.checkpoints and not any(s.recorded or s.unsafe for s in view.bundle.steps):
        return
    unsafe: dict[int, int] = {}
    for row in view.bundle.checkpoints:
        unsafe[row.idx] = unsafe.get(row.idx, 0) + _is_unsafe(row)
    for step in view.bundle.steps:
        if step.recorded != (step.idx in unsafe):
            yield (
                describe(step),
                f"has {'no ' if step.recorded else ''}checkpoints; its row says otherwise",
            )
        if step.unsafe != unsafe.get(step.idx, 0):
            yield describe(step), f"unsafe is {step.unsafe}, but the count is {unsafe.get(step.idx, 0)}"


def _is_unsafe(row: CheckpointRow) -> bool:
    """Whether a checkpoint can be neither skipped nor repeated: it began and may not have ended, or it is done but cannot be reused."""
    return not row.idempotent and (row.state == "started" or (row.state == "done" and not row.resumable))


@checks("I11")
def success_is_whole(view: CheckedRun) -> Iterator[Finding]:
    """A run has succeeded exactly if every step is closed and all required ones succeeded."""
    run = view.run
    unfinished = [step for step in view.counted if step.state not in CLOSED_STEP or _is_bad(step)]
    if run.status == "succeeded":
        for step in unfinished:
            required = "required and " if step.state in CLOSED_STEP else ""
            yield describe(step), f"is {required}{step.state} in a run that succeeded"
        if not run.planned:
            yield "run", "succeeded without a plan"
        return
    may_succeed = run.planned and run.admitted_at is not None and run.cancel_at is None
    if may_succeed and run.status != "timed_out" and not unfinished:
        yield "run", f"is {run.status}, but every step is closed and the required ones succeeded"


@checks("I12")
def failure_has_a_cause(view: CheckedRun) -> Iterator[Finding]:
    """A failed run had no plan, or one of its required steps ended without success."""
    if view.run.status == "failed" and view.run.planned and not any(map(_is_bad, view.counted)):
        yield "run", "failed, but no required step did"


@checks("I13")
def cancel_was_requested(view: CheckedRun) -> Iterator[Finding]:
    """A canceled run has a cancel request. Each leased step of it acknowledged, passed its deadline, or lost its lease."""
    run = view.run
    if run.status == "canceled" and (run.cancel_at is None or run.cancel_reason is None):
        yield "run", "is canceled without a request"
    if run.cancel_at is not None and view.canceled_seq is None and not view.unreadable:
        yield "run", "has a cancel request that is in no event"
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
                    f"step {taken.idx} was canceled by force before its deadline {step.cancel_by}",
                )


@checks("I14")
def ended_run_is_quiet(view: CheckedRun) -> Iterator[Finding]:
    """A run that has ended has no open step, live lease, timer or approval. One that succeeded may have open proposals."""
    run = view.run
    if run.status not in CLOSED_RUN:
        return
    if run.wake_at is not None:
        yield "run", f"has ended and has a timer at {run.wake_at}"
    for step in view.bundle.steps:
        if step.state not in CLOSED_STEP:
            yield describe(step), f"is {step.state} in a run that has ended"
        if step.wake_at is not None or step.claimable:
            yield describe(step), "has a timer or can be claimed in a run that has ended"
    for attempt in view.bundle.attempts:
        if attempt.lease in LIVE_LEASE:
            yield describe(attempt), f"has a lease {attempt.lease} in a run that has ended"
    outlive = {w.no for w in view.bundle.waits if w.kind == "proposal" and run.status == "succeeded"}
    for wait in view.bundle.waits:
        if (wait.state == "open" or wait.wake_at is not None) and wait.no not in outlive:
            yield describe(wait), "is open or has a timer in a run that has ended"
    for approval in view.bundle.approvals:
        if approval.status == "requested" and approval.no not in outlive:
            yield describe(approval), "is open in a run that has ended"
    for receipt in view.bundle.receipts:
        if receipt.state == "intent":
            yield describe(receipt), "is an intent in a run that has ended"


@checks("I15")
def order_is_kept(view: CheckedRun) -> Iterator[Finding]:
    """When a step became ready, every step that it needs had succeeded, or had ended and may fail."""
    needs: dict[int, list[int]] = {}
    for step in view.bundle.steps:
        if step.dependents:
            for idx in step.dependents.split(","):
                needs.setdefault(int(idx), []).append(step.idx)
    if not needs:
        return
    state: dict[int, str] = {}
    for taken in view.taken:
        for machine, _, target, _ in taken.edges:
            if machine != "step" or taken.idx is None:
                continue
            if target == "ready" and taken.idx not in state:
                for need in needs.get(taken.idx, ()):
                    was = state.get(need, "pending")
                    if was != "succeeded" and (was not in CLOSED_STEP or view.steps[need].required):
                        yield f"event {taken.seq}", f"step {taken.idx} starts while step {need} is {was}"
            state[taken.idx] = target


@checks("I16")
def attempts_are_numbered(view: CheckedRun) -> Iterator[Finding]:
    """The attempts of a step are numbered 1..n, each is granted after the last one ended, and n is the step's fence."""
    for idx in view.attempts.keys() - view.steps.keys():
        yield f"attempt {idx}/{view.attempts[idx][0].n}", "belongs to no step"
    for step in view.bundle.steps:
        attempts = view.attempts.get(step.idx, ())
        last = None
        for n, attempt in enumerate(attempts, start=1):
            if attempt.n != n:
                yield describe(attempt), f"is in the place of attempt {n}"
                break
            if last is not None and (last.ended_at is None or attempt.granted_at < last.ended_at):
                yield describe(attempt), f"was granted before attempt {last.n} had ended"
            last = attempt
        if step.attempt != len(attempts):
            yield describe(step), f"its newest attempt is {step.attempt}, there are {len(attempts)}"
        if step.charged > step.max_attempts:
            yield describe(step), f"is charged {step.charged} of {step.max_attempts} attempts"


@checks("I17")
def one_success(view: CheckedRun) -> Iterator[Finding]:
    """At most one attempt of a step succeeds, and none follows it. The step succeeds with it, unless it waits for its children."""
    waited = {(taken.idx, taken.n) for taken in view.taken if taken.move == "complete_waiting"}
    for idx, attempts in view.attempts.items():
        for attempt in attempts:
            if attempt.state == "succeeded":
                step = view.steps.get(idx)
                if attempt is not attempts[-1]:
                    yield describe(attempt), f"succeeded, and attempt {attempts[-1].n} follows it"
                at_end = (idx, attempt.n) in waited
                if step is not None and step.state != "succeeded" and not at_end:
                    yield describe(step), f"is {step.state}, but attempt {attempt.n} succeeded"


@checks("I18")
def charges_add_up(view: CheckedRun) -> Iterator[Finding]:
    """A step is charged its claims minus its releases and suspensions since its last progress."""
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
                describe(step),
                f"is charged {step.charged}, but its history has {charged.get(step.idx, 0)}",
            )


@checks("I19")
def retries_are_due(view: CheckedRun) -> Iterator[Finding]:
    """A step is retried only if its run is not being canceled, and not before its backoff ends."""
    eligible: dict[int, int] = {}
    canceled = view.canceled_seq
    by_seq = None
    for taken in view.taken:
        idx, move = taken.idx, taken.move
        if idx is None:
            continue
        if move in RETRIES:
            if canceled is not None and taken.seq >= canceled:
                yield (
                    f"event {taken.seq}",
                    f"step {idx} is scheduled for a retry although the run is canceling",
                )
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
    """steps_done never decreases, and is the number of succeeded steps and done checkpoints."""
    last = 0
    for event, _, columns in view.changes("run"):
        done = columns.get("steps_done", last)
        if done < last:
            yield f"event {event.seq}", f"steps_done goes from {last} to {done}"
        last = done
    counted = sum(s.state == "succeeded" and s.kind != "body" for s in view.counted)
    counted += sum(row.state == "done" for row in view.bundle.checkpoints)
    if view.run.steps_done != counted:
        yield "run", f"steps_done is {view.run.steps_done}, but the count is {counted}"


@checks("I21")
def optional_steps_fail_alone(view: CheckedRun) -> Iterator[Finding]:
    """No run fails because of an optional step."""
    for event, body in view.bodies:
        failed = body.get("context", {}).get("failed_step")
        if failed is not None and failed in view.steps and not view.steps[failed].required:
            yield f"event {event.seq}", f"the run fails because of step {failed}, which is optional"
    run = view.run
    if run.status == "failed" and run.planned:
        bad = [s for s in view.counted if s.state in CLOSED_STEP and s.state != "succeeded"]
        if bad and not any(step.required for step in bad):
            yield describe(bad[0]), "is optional, but nothing else can have failed the run"
