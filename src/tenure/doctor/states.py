"""State machines: I1, I2, I4, I5, I6 and I10.

The checks walk a history edge by edge. A run starts as `created`, a step as `pending`, an attempt as `created`. A lease
becomes `granted` when its attempt becomes `leased`. The attempts of a step are numbered in the order of their creation.
An attempt that has not been claimed has no row, only a history.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tenure.doctor.checked_run import CheckedRun, describe
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
    StepRow,
    WaitRow,
)
from tenure.kernel.state_machine import Machine

_OUTCOMES = {"approved", "rejected", "received", "elapsed", "finished", "expired", "resumed", "child_failed"}
_KNOWN_VALUES: tuple[tuple[str, str, frozenset[str | None]], ...] = (
    ("steps", "state", frozenset(STEP.states)),
    ("steps", "kind", frozenset({"work", "body", "approval", "wait", "plan"})),
    ("attempts", "state", frozenset(ATTEMPT.states)),
    ("attempts", "lease", frozenset(LEASE.states)),
    ("checkpoints", "state", frozenset({"started", "done", "failed"})),
    ("waits", "state", frozenset({"open", "settled", "closed"})),
    ("waits", "outcome", frozenset({None, *_OUTCOMES})),
    ("approvals", "status", frozenset(APPROVAL.states)),
    ("children", "state", frozenset({"open", "finished"})),
    ("receipts", "state", frozenset(RECEIPT.states)),
)
"""(rows of a RunDump, column, the values it may have)."""

EdgeOwners = dict[tuple[str, str], set[str]]
"""(state, next state) -> who may take the edge."""


def _owners(machine: Machine) -> EdgeOwners:
    found: EdgeOwners = {}
    for edge in machine.edges:
        found.setdefault((edge.state, edge.next), set()).add(edge.owner)
    return found


_EDGES = {machine.name: _owners(machine) for machine in (RUN, STEP, ATTEMPT, LEASE, APPROVAL, RECEIPT)}
_RECEIPT_EDGES = {"receipt": _EDGES["receipt"]}


def _edge_problem(edges: dict[str, EdgeOwners], edge: list[str]) -> str | None:
    machine, state, target, owner = edge
    owners = edges[machine].get((state, target)) if machine in edges else None
    if owners is None:
        return f"{machine} {state} -> {target} is not an edge of its table"
    return None if owner in owners else f"{machine} {state} -> {target} may not be taken by {owner}"


@checks("I1")
def known_states(view: CheckedRun) -> Iterator[Finding]:
    """Every state of every row is one that its machine has."""
    if view.run.status not in RUN.states:
        yield "run", f"the status {view.run.status!r} is unknown"
    for rows, column, known in _KNOWN_VALUES:
        for row in getattr(view.bundle, rows):
            if (value := getattr(row, column)) not in known:
                yield describe(row), f"the {column} {value!r} is unknown"


class _Walk:
    """The states that a history has reached: of the run, and of each step with its attempts and leases."""

    __slots__ = ("attempt", "lease", "n", "run", "step")

    def __init__(self) -> None:
        self.run = "created"
        self.step: dict[int, str] = {}
        self.n: dict[int, int] = {}
        """Step -> the number of its newest attempt, which may have no row yet."""
        self.attempt: dict[tuple[int, int], str] = {}
        self.lease: dict[tuple[int, int], str] = {}


@checks("I2")
def edges_connect(view: CheckedRun) -> Iterator[Finding]:
    """Every edge is in its table and starts at the state that the last one reached. The last one ends at the row's state."""
    walk = _Walk()
    for taken in view.taken:
        idx = taken.idx
        for edge in taken.edges:
            if (problem := _edge_problem(_EDGES, edge)) is not None:
                yield f"event {taken.seq}", problem
            machine, state, target, _ = edge
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
    """The state of the attempt that an edge changes. An edge from `created` begins a new attempt if the last one has ended."""
    n = walk.n.get(idx, 0)
    here = walk.attempt.get((idx, n))
    if state == "created" and (here is None or here in ATTEMPT.terminal):
        walk.n[idx] = n + 1
        return "created"
    return here or "none"


def _ends_at_rows(view: CheckedRun, walk: _Walk) -> Iterator[Finding]:
    if walk.run != view.run.status:
        yield "run", f"is {view.run.status}, but its history ends at {walk.run}"
    for step in view.bundle.steps:
        state = walk.step.get(step.idx, "pending")
        if state != step.state:
            yield describe(step), f"is {step.state}, but its history ends at {state}"
    for attempt in view.bundle.attempts:
        key = (attempt.idx, attempt.n)
        state, lease = walk.attempt.get(key, "none"), walk.lease.get(key, "none")
        if state != attempt.state:
            yield describe(attempt), f"is {attempt.state}, but its history ends at {state}"
        if lease != attempt.lease:
            yield describe(attempt), f"has a lease {attempt.lease}, but its history ends at {lease}"
    for idx, n in walk.lease.keys() - {(attempt.idx, attempt.n) for attempt in view.bundle.attempts}:
        yield f"attempt {idx}/{n}", "was claimed, but has no row"


@checks("I2")
def approvals_connect(view: CheckedRun) -> Iterator[Finding]:
    """The status of an approval changes along its table. A wait changes once, from open to settled or closed."""
    if not view.bundle.waits:
        return
    asked: dict[str, str] = {}
    for event, no, columns in view.changes("approval"):
        here, status = asked.get(no, "requested"), columns.get("status")
        if status is not None and status != here:
            if (here, status) not in _EDGES["approval"]:
                yield f"event {event.seq}", f"approval {no}: {here} -> {status} is not an edge of its table"
            asked[no] = status
    waits: dict[str, str] = {}
    for event, no, columns in view.changes("wait"):
        here, state = waits.get(no, "open"), columns.get("state")
        if state is not None and state != here:
            if here != "open":
                yield f"event {event.seq}", f"wait {no}: {here} -> {state}, but it had ended"
            waits[no] = state


@checks("I2")
def receipts_connect(view: CheckedRun) -> Iterator[Finding]:
    """A receipt begins as an intent and changes along its table. Its last edge ends at the row's state."""
    here: dict[int, str] = {}
    for taken in view.settled_acts:
        no = taken.receipt or 0
        for edge in taken.edges:
            if (problem := _edge_problem(_RECEIPT_EDGES, edge)) is not None:
                yield f"event {taken.seq}", problem
            _, state, target, _ = edge
            if (was := here.get(no, RECEIPT.first)) != state:
                yield f"event {taken.seq}", f"receipt {no} goes {state} -> {target}, but it was {was}"
            here[no] = target
    for receipt in view.bundle.receipts:
        if (ended := here.get(receipt.no, RECEIPT.first)) != receipt.state:
            yield describe(receipt), f"is {receipt.state}, but its history ends at {ended}"


@checks("I4")
def nothing_after_the_end(view: CheckedRun) -> Iterator[Finding]:
    """No event takes an edge of a run that has ended, or of a step that has ended."""
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
    """A row that has ended has a finish time and a reason. Other rows have neither."""
    run = view.run
    ended = run.status in CLOSED_RUN
    for name in ("finished_at", "duration_us", "reason"):
        if (getattr(run, name) is not None) != ended:
            yield "run", f"is {run.status} and {name} is {getattr(run, name)!r}"
    for step in view.bundle.steps:
        ended = step.state in CLOSED_STEP
        if (step.finished_at is not None) != ended or (step.reason is not None) != ended:
            yield (
                describe(step),
                f"is {step.state}, finished_at is {step.finished_at} and reason {step.reason!r}",
            )
    for attempt in view.bundle.attempts:
        ended = attempt.state in ATTEMPT.terminal
        if (attempt.ended_at is not None) != ended or (attempt.reason is not None) != ended:
            yield (
                describe(attempt),
                f"is {attempt.state}, ended_at is {attempt.ended_at} and reason {attempt.reason!r}",
            )
        if (attempt.lease in LIVE_LEASE) == ended:
            yield describe(attempt), f"is {attempt.state} and its lease is {attempt.lease}"
    for wait in view.bundle.waits:
        settled = wait.state == "settled"
        if (wait.outcome is not None) != settled or (wait.settled_at is not None) != settled:
            yield (
                describe(wait),
                f"is {wait.state}, its outcome is {wait.outcome!r}, settled_at {wait.settled_at}",
            )
    for approval in view.bundle.approvals:
        if (approval.decided_at is None) != (approval.status == "requested"):
            yield describe(approval), f"is {approval.status} and decided_at is {approval.decided_at}"
    for receipt in view.bundle.receipts:
        if (receipt.settled_at is None) != (receipt.state in ("intent", "unknown")):
            yield describe(receipt), f"is {receipt.state} and settled_at is {receipt.settled_at}"


@checks("I6")
def times_in_order(view: CheckedRun) -> Iterator[Finding]:
    """Nothing starts before it is created or ends before it starts, and the run's duration matches its times."""
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
            yield describe(step), f"was created at {step.created_at}, before its run"
        end = step.finished_at
        if end is not None and (end < step.created_at or (step.ready_at is not None and end < step.ready_at)):
            yield describe(step), f"finished at {end}, before it was created or ready"
    for attempt in view.bundle.attempts:
        if attempt.granted_at < run.created_at:
            yield describe(attempt), f"was granted at {attempt.granted_at}, before its run was created"
        if attempt.ended_at is not None and attempt.ended_at < attempt.granted_at:
            yield describe(attempt), f"ended at {attempt.ended_at}, before it was granted"
    for wait in view.bundle.waits:
        if wait.settled_at is not None and wait.settled_at < wait.opened_at:
            yield describe(wait), f"settled at {wait.settled_at}, before it was opened"


# --------------------------------------------------------------------------------------------- wake-ups


@checks("I10")
def run_wakes(view: CheckedRun) -> Iterator[Finding]:
    """A run that is planning, is not admitted or has a deadline has a timer."""
    run = view.run
    if run.status in CLOSED_RUN or run.cancel_at is not None:
        return
    if not run.planned or run.admitted_at is None:
        if run.wake_at is None:
            yield "run", f"is {'not admitted' if run.planned else 'planning'} and has no timer"
    elif (
        run.deadline_at is not None
        and run.human_since is None
        and (run.wake_at is None or run.wake_at > run.deadline_at)
    ):
        yield "run", f"has a deadline at {run.deadline_at} and wakes at {run.wake_at}"


@checks("I10")
def steps_wake(view: CheckedRun) -> Iterator[Finding]:
    """Every open step waits for something that will come: a claim, a time, a person, an event or another step."""
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
                problem = _input_problem(view, step)
        elif state == "ready":
            if step.resolution == "due":
                problem = _input_problem(view, step)
            elif step.claimable == held:
                problem = f"is ready and {'' if step.claimable else 'not '}claimable; the run is {'' if held else 'not '}held"
        elif state in LEASED_STEP or state == "canceling":
            problem = _lease_problem(view, step)
        elif state == "retry_wait":
            if step.eligible_at is None or step.wake_at is None or step.wake_at > step.eligible_at:
                problem = f"backs off until {step.eligible_at} and wakes at {step.wake_at}"
        elif state in WAITING_STEP:
            problem = _waits_problem(view, step)
        if problem is not None:
            yield describe(step), problem


def _input_problem(view: CheckedRun, step: StepRow) -> str | None:
    """A step that waits only for its input has an outbox row that asks for it."""
    if step.resolution != "due":
        return "is pending, but no step that it needs is open"
    if step.claimable:
        return "is claimable, but its input is not resolved"
    wanted = [step.idx, step.attempt + 1]
    for row in view.bundle.outbox:
        if row.topic == "resolve" and wanted in msgspec.msgpack.decode(row.body)["steps"]:
            return None
    return "waits for its input, and no outbox row asks for it"


def _lease_problem(view: CheckedRun, step: StepRow) -> str | None:
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


def _waits_problem(view: CheckedRun, step: StepRow) -> str | None:
    numbers = [str(step.wait_no)]
    if step.wait_no is None:  # the waits that it suspended on, or has to wait for at its end
        numbers = step.waits_on.removeprefix(f"{WAITS_AT_END},").split(",")
    if numbers == [""]:
        return f"is {step.state} and waits for nothing"
    still_open = {wait.no for wait in view.bundle.waits if wait.state == "open"}
    closed = [no for no in numbers if int(no) not in still_open]
    return f"is {step.state}, but wait {closed[0]} is no longer open" if closed else None


@checks("I10")
def waits_wake(view: CheckedRun) -> Iterator[Finding]:
    """Every open wait has a timer, an open question or an open child."""
    for wait in view.bundle.waits:
        if wait.state == "open" and (problem := _wait_problem(view, wait)) is not None:
            yield describe(wait), problem


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
