"""State machines: I1, I2, I4, I5, I6 and I10.

A history is walked edge by edge. A run starts `created`, a step `pending`, an attempt `created`; a lease is
`granted` with its attempt's `leased`. An attempt is numbered by the order in which its step's attempts were
created: until it is claimed it has no row, and the history is all there is of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tenure.doctor.checked_run import CheckedRun
from tenure.doctor.invariants import Finding, checks
from tenure.kernel.machines import (
    APPROVAL,
    ATTEMPT,
    LEASE,
    LEASED_STEP,
    LIVE_LEASE,
    RECEIPT,
    RUN,
    STEP,
    WAITING_STEP,
)
from tenure.kernel.run_rows import (
    CLOSED_RUN,
    CLOSED_STEP,
    QUESTIONS,
    WAITS_AT_END,
    AttemptRow,
    StepRow,
    WaitRow,
)
from tenure.kernel.state_machine import Machine

_STATES: dict[str, frozenset[str]] = {
    "run": frozenset(RUN.states),
    "step": frozenset(STEP.states),
    "attempt": frozenset(ATTEMPT.states),
    "lease": frozenset(LEASE.states),
    "approval": frozenset(APPROVAL.states),
    "wait": frozenset({"open", "settled", "closed"}),
    "checkpoint": frozenset({"started", "done", "failed"}),
    "child": frozenset({"open", "finished"}),
    "receipt": frozenset(RECEIPT.states),
}
_OUTCOMES = frozenset(
    {"approved", "rejected", "received", "elapsed", "finished", "expired", "resumed", "child_failed"}
)
_KINDS = frozenset({"work", "body", "approval", "wait"})


def _owners(machine: Machine) -> dict[tuple[str, str], frozenset[str]]:
    found: dict[tuple[str, str], frozenset[str]] = {}
    for edge in machine.edges:
        pair = (edge.state, edge.next)
        found[pair] = found.get(pair, frozenset()) | {edge.owner}
    return found


_EDGES = {machine.name: _owners(machine) for machine in (RUN, STEP, ATTEMPT, LEASE, APPROVAL, RECEIPT)}


def describe_step(step: StepRow) -> str:
    """How a step is named in a report."""
    return f"step {step.idx} ({step.name})"


def describe_attempt(attempt: AttemptRow) -> str:
    """How an attempt is named in a report."""
    return f"attempt {attempt.idx}/{attempt.n}"


@checks("I1")
def known_states(view: CheckedRun) -> Iterator[Finding]:
    """Every state of every row is one its machine has."""
    bundle, states = view.bundle, _STATES
    if bundle.run.status not in states["run"]:
        yield "run", f"the status {bundle.run.status!r} is none"
    for step in bundle.steps:
        if step.state not in states["step"]:
            yield describe_step(step), f"the state {step.state!r} is none"
        if step.kind not in _KINDS:
            yield describe_step(step), f"the kind {step.kind!r} is none"
    for attempt in bundle.attempts:
        if attempt.state not in states["attempt"]:
            yield describe_attempt(attempt), f"the state {attempt.state!r} is none"
        if attempt.lease not in states["lease"]:
            yield describe_attempt(attempt), f"the lease state {attempt.lease!r} is none"
    for checkpoint in bundle.checkpoints:
        if checkpoint.state not in states["checkpoint"]:
            yield (
                f"checkpoint {checkpoint.idx}/{checkpoint.name}",
                f"the state {checkpoint.state!r} is none",
            )
    for wait in bundle.waits:
        if wait.state not in states["wait"]:
            yield f"wait {wait.no}", f"the state {wait.state!r} is none"
        if wait.outcome is not None and wait.outcome not in _OUTCOMES:
            yield f"wait {wait.no}", f"the outcome {wait.outcome!r} is none"
    for approval in bundle.approvals:
        if approval.status not in states["approval"]:
            yield f"approval {approval.no}", f"the status {approval.status!r} is none"
    for child in bundle.children:
        if child.state not in states["child"]:
            yield f"child {child.child_id}", f"the state {child.state!r} is none"
    for receipt in bundle.receipts:
        if receipt.state not in states["receipt"]:
            yield f"receipt {receipt.no}", f"the state {receipt.state!r} is none"


class _Walk:
    """Where the run, and each step with its attempt and lease, have got to."""

    __slots__ = ("attempt", "lease", "n", "run", "step")

    def __init__(self) -> None:
        self.run = "created"
        self.step: dict[int, str] = {}
        self.n: dict[int, int] = {}
        """The number of a step's newest attempt, with a row or still without."""
        self.attempt: dict[tuple[int, int], str] = {}
        self.lease: dict[tuple[int, int], str] = {}


@checks("I2")
def edges_connect(view: CheckedRun) -> Iterator[Finding]:
    """Every edge is one of its table, starts where the last one ended, and the last one ends at the row."""
    walk = _Walk()
    edges_of = _EDGES
    for taken in view.taken:
        idx = taken.idx
        for machine, state, target, owner in taken.edges:
            owners = edges_of[machine].get((state, target)) if machine in edges_of else None
            if owners is None:
                yield f"event {taken.seq}", f"{machine} {state} -> {target} is not an edge of its table"
            elif owner not in owners:
                yield f"event {taken.seq}", f"{machine} {state} -> {target} is not {owner}'s to take"
            if machine == "run":
                here, walk.run = walk.run, target
            elif idx is None:
                yield f"event {taken.seq}", f"an edge of a {machine} names no step"
                continue
            elif machine == "step":
                here, walk.step[idx] = walk.step.get(idx, "pending"), target
            elif machine == "attempt":
                here = _attempt_at(walk, idx, state)
                walk.attempt[idx, walk.n.get(idx, 0)] = target
                if target == "leased":
                    walk.lease[idx, walk.n.get(idx, 0)] = "granted"
                    if taken.n != walk.n.get(idx, 0):
                        yield (
                            f"event {taken.seq}",
                            f"step {idx} was claimed as attempt {taken.n}, but its next one is {walk.n.get(idx, 0)}",
                        )
            else:
                key = (idx, walk.n.get(idx, 0))
                here, walk.lease[key] = walk.lease.get(key, "none"), target
            if here != state:
                name = machine if idx is None else f"{machine} of step {idx}"
                yield f"event {taken.seq}", f"{name} goes {state} -> {target}, but it was {here}"
    yield from _ends_at_rows(view, walk)


def _attempt_at(walk: _Walk, idx: int, state: str) -> str:
    """The state of the attempt an edge is about; `created` begins the next one when the last has ended."""
    n = walk.n.get(idx, 0)
    here = walk.attempt.get((idx, n))
    if state != "created":
        return "none" if here is None else here
    if here is not None and here not in ATTEMPT.terminal:
        return here
    walk.n[idx] = n + 1
    return "created"


def _ends_at_rows(view: CheckedRun, walk: _Walk) -> Iterator[Finding]:
    if walk.run != view.run.status:
        yield "run", f"is {view.run.status}, but its history ends at {walk.run}"
    for step in view.bundle.steps:
        state = walk.step.get(step.idx, "pending")
        if state != step.state:
            yield describe_step(step), f"is {step.state}, but its history ends at {state}"
    for attempt in view.bundle.attempts:
        key = (attempt.idx, attempt.n)
        state, lease = walk.attempt.get(key, "none"), walk.lease.get(key, "none")
        if state != attempt.state:
            yield describe_attempt(attempt), f"is {attempt.state}, but its history ends at {state}"
        if lease != attempt.lease:
            yield describe_attempt(attempt), f"has a lease {attempt.lease}, but its history ends at {lease}"
    if len(walk.lease) > len(view.bundle.attempts):
        rows = {(attempt.idx, attempt.n) for attempt in view.bundle.attempts}
        for idx, n in walk.lease.keys() - rows:
            yield f"attempt {idx}/{n}", "was claimed, but has no row"


@checks("I2")
def approvals_connect(view: CheckedRun) -> Iterator[Finding]:
    """An approval's status changes along its table, a wait goes from open to settled or closed, once."""
    if not view.bundle.waits:
        return
    asked: dict[str, str] = {}
    waits: dict[str, str] = {}
    for event, body in view.bodies:
        changes = body.get("set", {})
        for no, columns in changes.get("approval", {}).items():
            here, status = asked.get(no, "requested"), columns.get("status")
            if status is not None and status != here:
                if (here, status) not in _EDGES["approval"]:
                    yield (
                        f"event {event.seq}",
                        f"approval {no}: {here} -> {status} is not an edge of its table",
                    )
                asked[no] = status
        for no, columns in changes.get("wait", {}).items():
            here, state = waits.get(no, "open"), columns.get("state")
            if state is not None and state != here:
                if here != "open":
                    yield f"event {event.seq}", f"wait {no}: {here} -> {state}, but it had ended"
                waits[no] = state


@checks("I2")
def receipts_connect(view: CheckedRun) -> Iterator[Finding]:
    """A receipt begins as an intent and changes along its table; its last edge ends at the row."""
    here: dict[int, str] = {}
    for taken in view.settled_acts:
        no = taken.receipt or 0
        for machine, state, target, owner in taken.edges:
            owners = _EDGES["receipt"].get((state, target)) if machine == "receipt" else None
            if owners is None:
                yield f"event {taken.seq}", f"{machine} {state} -> {target} is not an edge of its table"
            elif owner not in owners:
                yield f"event {taken.seq}", f"{machine} {state} -> {target} is not {owner}'s to take"
            if here.get(no, RECEIPT.first) != state:
                was = here.get(no, RECEIPT.first)
                yield f"event {taken.seq}", f"receipt {no} goes {state} -> {target}, but it was {was}"
            here[no] = target
    for receipt in view.bundle.receipts:
        if here.get(receipt.no, RECEIPT.first) != receipt.state:
            ended = here.get(receipt.no, RECEIPT.first)
            yield f"receipt {receipt.no}", f"is {receipt.state}, but its history ends at {ended}"


@checks("I4")
def nothing_after_the_end(view: CheckedRun) -> Iterator[Finding]:
    """Once the run is terminal no event takes an edge; once a step is, none takes an edge of it."""
    ended = view.ended_seq
    closed: set[int] = set()
    for taken in view.taken:
        if ended is not None and taken.seq > ended:
            what = "the run" if taken.idx is None else f"step {taken.idx}"
            yield f"event {taken.seq}", f"{taken.kind} moves {what} after the run had ended"
        if taken.idx is not None:
            if taken.idx in closed:
                yield f"event {taken.seq}", f"{taken.kind} moves step {taken.idx} after it had ended"
            for machine, _, target, _ in taken.edges:
                if machine == "step" and target in CLOSED_STEP:
                    closed.add(taken.idx)


@checks("I5")
def ends_are_complete(view: CheckedRun) -> Iterator[Finding]:
    """A terminal row has its finish time and its reason; a row that is not has neither."""
    run = view.run
    ended = run.status in CLOSED_RUN
    for name in ("finished_at", "duration_us", "reason"):
        if (getattr(run, name) is not None) != ended:
            yield "run", f"is {run.status} and {name} is {getattr(run, name)!r}"
    for step in view.bundle.steps:
        ended = step.state in CLOSED_STEP
        if (step.finished_at is not None) != ended or (step.reason is not None) != ended:
            yield (
                describe_step(step),
                f"is {step.state}, finished_at is {step.finished_at} and reason {step.reason!r}",
            )
    for attempt in view.bundle.attempts:
        ended = attempt.state in ATTEMPT.terminal
        if (attempt.ended_at is not None) != ended or (attempt.reason is not None) != ended:
            yield (
                describe_attempt(attempt),
                f"is {attempt.state}, ended_at is {attempt.ended_at} and reason {attempt.reason!r}",
            )
        if (attempt.lease in LIVE_LEASE) == ended:
            yield describe_attempt(attempt), f"is {attempt.state} and its lease is {attempt.lease}"
    for wait in view.bundle.waits:
        settled = wait.state == "settled"
        if (wait.outcome is not None) != settled or (wait.settled_at is not None) != settled:
            yield (
                f"wait {wait.no}",
                f"is {wait.state}, its outcome is {wait.outcome!r}, settled_at {wait.settled_at}",
            )
    for approval in view.bundle.approvals:
        decided = approval.status != "requested"
        if (approval.decided_at is not None) != decided:
            yield f"approval {approval.no}", f"is {approval.status} and decided_at is {approval.decided_at}"
    for receipt in view.bundle.receipts:
        if (receipt.settled_at is None) != (receipt.state in ("intent", "unknown")):
            yield f"receipt {receipt.no}", f"is {receipt.state} and settled_at is {receipt.settled_at}"


@checks("I6")
def times_in_order(view: CheckedRun) -> Iterator[Finding]:
    """Nothing starts before it was made or ends before it started, and the duration agrees."""
    run = view.run
    started = run.created_at if run.started_at is None else run.started_at
    if started < run.created_at:
        yield "run", f"started at {started}, before it was created at {run.created_at}"
    if run.finished_at is not None:
        if run.finished_at < started:
            yield "run", f"finished at {run.finished_at}, before it started at {started}"
        if run.duration_us is not None and run.duration_us != run.finished_at - started:
            yield "run", f"took {run.finished_at - started} us, but its duration says {run.duration_us}"
    for step in view.bundle.steps:
        if step.created_at < run.created_at:
            yield describe_step(step), f"was made at {step.created_at}, before its run"
        end = step.finished_at
        if end is not None and (end < step.created_at or (step.ready_at is not None and end < step.ready_at)):
            yield describe_step(step), f"finished at {end}, before it was made or ready"
    for attempt in view.bundle.attempts:
        if attempt.granted_at < run.created_at:
            yield describe_attempt(attempt), f"was granted at {attempt.granted_at}, before its run was made"
        if attempt.ended_at is not None and attempt.ended_at < attempt.granted_at:
            yield describe_attempt(attempt), f"ended at {attempt.ended_at}, before it was granted"
    for wait in view.bundle.waits:
        if wait.settled_at is not None and wait.settled_at < wait.opened_at:
            yield f"wait {wait.no}", f"settled at {wait.settled_at}, before it was opened"


# --------------------------------------------------------------------------------------------- wake-ups


@checks("I10")
def run_wakes(view: CheckedRun) -> Iterator[Finding]:
    """A run that is held back or has a deadline looks again by itself."""
    run = view.run
    if run.status in CLOSED_RUN or run.cancel_at is not None:
        return
    if not run.planned:
        if run.wake_at is None:
            yield "run", "is planning and nothing ends that"
    elif run.admitted_at is None:
        if run.wake_at is None:
            yield "run", "is held back and nothing makes it look again"
    elif (
        run.deadline_at is not None
        and run.human_since is None
        and (run.wake_at is None or run.wake_at > run.deadline_at)
    ):
        yield "run", f"has a deadline at {run.deadline_at} and wakes at {run.wake_at}"


@checks("I10")
def steps_wake(view: CheckedRun) -> Iterator[Finding]:
    """Every open step waits for something that will come: a claim, a moment, a person, an event, a step."""
    run = view.run
    if run.status in CLOSED_RUN:
        return
    needs: dict[int, int] = {}
    for step in view.bundle.steps:
        if step.finished_at is None and step.dependents:
            for idx in step.dependents.split(","):
                needs[int(idx)] = needs.get(int(idx), 0) + 1
    held = run.paused or run.parked is not None
    for step in view.bundle.steps:
        if step.finished_at is not None:
            continue
        state, problem = step.state, None
        if state == "pending":
            left = needs.get(step.idx, 0)
            if left != step.needs_left:
                problem = f"waits for {step.needs_left} steps, but {left} of those it needs are open"
            elif left == 0 and run.admitted_at is not None:
                problem = _is_resolved(view, step)
        elif state == "ready":
            if step.resolution == "due":
                problem = _is_resolved(view, step)
            elif step.claimable == held:
                problem = f"is ready and {'' if step.claimable else 'not '}claimable; the run is {'' if held else 'not '}held"
        elif state in LEASED_STEP or state == "canceling":
            problem = _lease_wakes(view, step)
        elif state == "retry_wait":
            if step.eligible_at is None or step.wake_at is None or step.wake_at > step.eligible_at:
                problem = f"backs off until {step.eligible_at} and wakes at {step.wake_at}"
        elif state in WAITING_STEP:
            problem = _waits_open(view, step)
        if problem is not None:
            yield describe_step(step), problem


def _is_resolved(view: CheckedRun, step: StepRow) -> str | None:
    """A step that waits for nothing but its input is owed one."""
    if step.resolution != "due":
        return "is pending, but needs nothing any more"
    if step.claimable:
        return "is claimable, and its input has yet to be made"
    wanted = [step.idx, step.attempt + 1]
    for row in view.bundle.outbox:
        if row.topic == "resolve" and wanted in msgspec.msgpack.decode(row.body)["steps"]:
            return None
    return "waits for its input, and nobody is asked to make it"


def _lease_wakes(view: CheckedRun, step: StepRow) -> str | None:
    attempt = view.live_attempt(step)
    if attempt is None:
        return f"is {step.state} without a live lease"
    by = attempt.expires_at
    if step.state == "canceling":
        if step.cancel_by is None:
            return "is canceling without a deadline"
        by = min(by, step.cancel_by)
    if step.wake_at is None or step.wake_at > by:
        return f"its lease or cancel deadline ends at {by} and it wakes at {step.wake_at}"
    return None


def _waits_open(view: CheckedRun, step: StepRow) -> str | None:
    numbers = [step.wait_no] if step.wait_no is not None else _numbers(step.waits_on)
    if not numbers:
        return f"is {step.state} and waits for nothing"
    still_open = {wait.no for wait in view.bundle.waits if wait.state == "open"}
    gone = [no for no in numbers if no not in still_open]
    return f"is {step.state}, but wait {gone[0]} is not open any more" if gone else None


def _numbers(text: str) -> list[int]:
    """The waits a step suspended on, or has to wait for at its end."""
    return [int(no) for no in text.removeprefix(f"{WAITS_AT_END},").split(",")] if text else []


@checks("I10")
def waits_wake(view: CheckedRun) -> Iterator[Finding]:
    """Every open wait has its moment, or its question or child is still open."""
    for wait in view.bundle.waits:
        if wait.state == "open" and (problem := _wait_problem(view, wait)) is not None:
            yield f"wait {wait.no}", problem


def _wait_problem(view: CheckedRun, wait: WaitRow) -> str | None:
    if wait.expires_at is not None and (wait.wake_at is None or wait.wake_at > wait.expires_at):
        return f"expires at {wait.expires_at} and wakes at {wait.wake_at}"
    if wait.kind in QUESTIONS:
        if not any(a.no == wait.no and a.status == "requested" for a in view.bundle.approvals):
            return "waits for an approval that is not asked for"
    elif wait.kind == "child":
        if not any(child.wait_no == wait.no and child.state == "open" for child in view.bundle.children):
            return "waits for a child that is not open"
    elif wait.kind == "time" and wait.expires_at is None:
        return "waits for a time that never comes"
    return None
