"""The machines of the kernel, as tables.

Laws:
1. A new transition is a new line here. The diagram, the docs, the exhaustive test and the proof of the profiles are
   derived from the tables.
2. Inputs are refined before the look-up: "failed with attempts left" is an input of its own.
3. A run's status is derived from its steps (`status.py`). The run table says which changes of status may be shown. Waits
   are entered only from `running`, and a cancellation always passes `canceling`.
4. Step, attempt and lease change together: a *move* (below) names the inputs that each of them takes, in order. The
   kernel changes states only by moves, and the profiles are proven over moves.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tenure.kernel.state_machine import Edge, Machine, parse_edges

RUN = Machine(
    "run",
    "created",
    ("succeeded", "failed", "canceled", "timed_out"),
    parse_edges("""
        created: plan -> planning
        planning: plan_ready -> queued
        planning: plan_failed -> plan_failed
        plan_failed: finalize -> failed
        queued: start -> running
        queued, running, waiting_approval, waiting_external, retry_wait: time_out -> timed_out
        running: await_approval -> waiting_approval
        running: await_external -> waiting_external
        running: back_off -> retry_wait
        waiting_approval, waiting_external, retry_wait: go_on -> running
        running, waiting_approval, waiting_external: succeed -> succeeded
        running, waiting_approval, waiting_external: fail -> failed
        created, planning, queued, running, waiting_approval, waiting_external, retry_wait: cancel -> canceling
        canceling: canceled -> canceled
    """),
)

STEP = Machine(
    "step",
    "pending",
    ("succeeded", "failed", "canceled", "timed_out", "skipped"),
    parse_edges("""
        pending: needs_met -> ready
        pending: drop -> canceled
        pending: skip -> skipped
        ready: lease -> leased
        ready: ask -> waiting_approval
        ready: await -> waiting_external
        ready: give_up -> failed
        ready, leased, starting, running, uploading, waiting_approval, waiting_external, retry_wait: cancel -> canceling
        leased: ack -> starting
        starting: begin -> running
        running: upload -> uploading [runner]
        uploading: complete -> succeeded
        uploading: await_children -> waiting_external
        uploading: fail -> failed
        uploading: fail_retry -> retry_wait
        running: suspend_approval -> waiting_approval
        running: suspend_external -> waiting_external
        leased, starting, running, uploading: lost -> ready
        leased, running, uploading: time_out -> timed_out
        leased, running, uploading: time_out_retry -> retry_wait
        retry_wait: due -> ready
        waiting_approval, waiting_external: resume -> ready
        waiting_approval, waiting_external: settle -> succeeded
        waiting_approval, waiting_external: refuse -> failed
        canceling: canceled -> canceled
    """),
)

ATTEMPT = Machine(
    "attempt",
    "created",
    ("succeeded", "failed", "timed_out", "stale", "canceled", "suspended", "released"),
    parse_edges("""
        created: queue -> queued
        queued: lease -> leased
        queued, leased, starting, running, uploading: cancel -> canceling
        leased: ack -> starting
        starting: begin -> running
        running: upload -> uploading [runner]
        uploading: complete -> succeeded
        uploading: fail -> failed
        running: suspend -> suspended
        leased, starting, running, uploading: release -> released
        leased, starting, running, uploading: lose -> stale
        leased, running, uploading: time_out -> timed_out
        canceling: canceled -> canceled
    """),
)

LEASE = Machine(
    "lease",
    "granted",
    ("completed", "released", "expired", "revoked", "canceled"),
    parse_edges("""
        granted: ack -> active [runner]
        active: complete -> completed
        active: cancel_ack -> canceled
        granted, active: release -> released
        granted, active: expire -> expired
        granted, active: revoke -> revoked
    """),
)

APPROVAL = Machine(
    "approval",
    "requested",
    ("approved", "rejected", "expired", "canceled"),
    parse_edges("""
        requested: vote -> requested [person]
        requested: approve -> approved [person]
        requested: reject -> rejected [person]
        requested: expire -> expired
        requested: revise -> requested
        requested: cancel -> canceled
    """),
)

RECEIPT = Machine(
    "receipt",
    "intent",
    ("failed", "reversed", "reused"),
    parse_edges("""
        intent: reuse -> reused
        intent: succeed -> succeeded
        intent: found -> succeeded
        intent: fail -> failed
        intent: lose_answer -> unknown
        intent: repeat -> intent
        unknown: found -> succeeded
        unknown: repeat -> intent
        unknown: settle_done -> succeeded [person]
        unknown: settle_not_done -> failed [person]
        unknown: settle_retry -> intent [person]
        succeeded: reverse -> reversed
    """),
)

IDEMPOTENCY = Machine(
    "idempotency record",
    "processing",
    ("dropped", "expired"),
    parse_edges("""
        processing: complete -> completed
        processing: fail -> failed
        processing: take_over -> processing
        processing: drop -> dropped
        failed: retry -> processing
        processing, completed, failed: expire -> expired
    """),
)
"""A record in a terminal state has no row: it was deleted."""

MACHINES: dict[str, Machine] = {
    m.name: m for m in (RUN, STEP, ATTEMPT, LEASE, APPROVAL, RECEIPT, IDEMPOTENCY)
}

LIVE_LEASE = frozenset({"granted", "active"})
LEASED_STEP = frozenset({"leased", "starting", "running", "uploading"})
WAITING_STEP = frozenset({"waiting_approval", "waiting_external"})


# ---------------------------------------------------------------------------------------------- moves


class MoveInputs(msgspec.Struct, frozen=True):
    """The inputs of one part of a move. None: the machine takes no input."""

    step: str | None = None
    attempt: str | None = None
    lease: str | None = None


class JointState(msgspec.Struct, frozen=True):
    """The states of a step, its current attempt and that attempt's lease; '-' if there is none."""

    step: str
    attempt: str = "-"
    lease: str = "-"


class Move(msgspec.Struct, frozen=True):
    """A change of a step with its attempt and lease."""

    name: str
    start: JointState
    end: JointState
    path: tuple[JointState, ...]
    edges: tuple[tuple[str, Edge], ...]
    """(machine name, row), in the order taken."""


_NEW_ATTEMPT = (MoveInputs(attempt="new"), MoveInputs(attempt="queue"))
_QUEUED = JointState("ready", "queued")
_LEASED = JointState("leased", "leased", "granted")
_STARTING = JointState("starting", "starting", "active")
_RUNNING = JointState("running", "running", "active")
_UPLOADING = JointState("uploading", "uploading", "active")
_ACK = MoveInputs("ack", "ack", "ack")
_BEGIN = MoveInputs("begin", "begin")
_UPLOAD = MoveInputs("upload", "upload")
_LIVE = (_LEASED, _STARTING, _RUNNING, _UPLOADING)
_WAITING = tuple(JointState(w, "suspended", "released") for w in ("waiting_approval", "waiting_external"))
_GATES = tuple(JointState(w) for w in ("waiting_approval", "waiting_external"))
_AT_END = JointState("waiting_external", "succeeded", "completed")
_BACKOFFS = tuple(
    JointState("retry_wait", a, lease) for a, lease in (("failed", "completed"), ("timed_out", "revoked"))
)
_CANCEL = MoveInputs("cancel", "cancel")
_CANCELED = MoveInputs("canceled", "canceled")


def _through(start: JointState, *last: MoveInputs) -> tuple[MoveInputs, ...]:
    """An accepted Complete or Fail walks the states that the runner skipped, so that the history has every edge."""
    skipped = {_STARTING: (_BEGIN, _UPLOAD), _RUNNING: (_UPLOAD,), _UPLOADING: ()}[start]
    return (*skipped, *last)


def _script() -> list[tuple[str, JointState, tuple[MoveInputs, ...]]]:
    """Every move: (name, start, inputs in order)."""
    out: list[tuple[str, JointState, tuple[MoveInputs, ...]]] = []

    def move(name: str, start: JointState, *strides: MoveInputs) -> None:
        out.append((name, start, strides))

    pending = JointState("pending")
    move("ready", pending, MoveInputs("needs_met", "new"), MoveInputs(attempt="queue"))
    move("open_approval_gate", pending, MoveInputs("needs_met"), MoveInputs("ask"))
    move("open_external_gate", pending, MoveInputs("needs_met"), MoveInputs("await"))
    move("drop", pending, MoveInputs("drop"))
    move("skip", pending, MoveInputs("skip"))
    # A step whose condition is false passes like a gate that settles at once, without an attempt and a lease.
    move("skip_condition", pending, MoveInputs("needs_met"), MoveInputs("await"), MoveInputs("settle"))
    # A step that has the result of an earlier one passes in the same way.
    move("reuse", pending, MoveInputs("needs_met"), MoveInputs("await"), MoveInputs("settle"))
    # A step whose input cannot be made: before the first try there is no attempt, later a queued attempt is canceled.
    move("fail_resolution", pending, MoveInputs("needs_met"), MoveInputs("give_up"))
    move("fail_resolution", _QUEUED, MoveInputs("give_up", "cancel"), MoveInputs(attempt="canceled"))

    move("claim", _QUEUED, MoveInputs("lease", "lease", "new"))
    move("claim_and_ack", _QUEUED, MoveInputs("lease", "lease", "new"), _ACK, _BEGIN)
    move("ack", _LEASED, _ACK)
    move("ack", JointState("canceling", "canceling", "granted"), MoveInputs(lease="ack"))
    move("begin", _STARTING, _BEGIN)
    move("upload", _RUNNING, _UPLOAD)
    move("upload", _STARTING, _BEGIN, _UPLOAD)

    for here in (_STARTING, _RUNNING, _UPLOADING):
        move("complete", here, *_through(here, MoveInputs("complete", "complete", "complete")))
        # The work is done; the step succeeds when the children that it waits for have ended.
        move("complete_waiting", here, *_through(here, MoveInputs("await_children", "complete", "complete")))
        move("fail", here, *_through(here, MoveInputs("fail", "fail", "complete")))
        move("fail_retry", here, *_through(here, MoveInputs("fail_retry", "fail", "complete")))
    for here in (_STARTING, _RUNNING):
        walk = (_BEGIN,) if here is _STARTING else ()
        move("suspend_approval", here, *walk, MoveInputs("suspend_approval", "suspend", "release"))
        move("suspend_external", here, *walk, MoveInputs("suspend_external", "suspend", "release"))

    for here in _LIVE:
        move("release", here, MoveInputs("lost", "release", "release"), *_NEW_ATTEMPT)
        move("expire", here, MoveInputs("lost", "lose", "expire"), *_NEW_ATTEMPT)
        # A step that is given up after a lost lease goes back to the queue and fails there: the documents have
        # RUNNING -> QUEUED for a lost lease, and none of them has RUNNING -> FAILED without a runner.
        move("expire_final", here, MoveInputs("lost", "lose", "expire"), MoveInputs("give_up"))
        move("revoke", here, MoveInputs("lost", "lose", "revoke"), *_NEW_ATTEMPT)
        move("revoke_final", here, MoveInputs("lost", "lose", "revoke"), MoveInputs("give_up"))
        # The kernel must not acknowledge a lease for its runner, so a timeout walks through `running` only from
        # `starting`.
        walk = (_BEGIN,) if here is _STARTING else ()
        move("time_out", here, *walk, MoveInputs("time_out", "time_out", "revoke"))
        move("time_out_retry", here, *walk, MoveInputs("time_out_retry", "time_out", "revoke"))
        move("request_cancel", here, _CANCEL)
        move("close", here, MoveInputs("cancel", "cancel", "revoke"), _CANCELED)

    for lease in ("granted", "active"):
        here = JointState("canceling", "canceling", lease)
        move("force_cancel", here, MoveInputs("canceled", "canceled", "revoke"))
        move("expire_canceling", here, MoveInputs("canceled", "canceled", "expire"))
        move("release_canceling", here, MoveInputs("canceled", "canceled", "release"))
        move("close", here, MoveInputs("canceled", "canceled", "revoke"))
    canceling = JointState("canceling", "canceling", "active")
    move("cancel_ack", canceling, MoveInputs("canceled", "canceled", "cancel_ack"))
    move("late_result", canceling, MoveInputs("canceled", "canceled", "complete"))

    move("close", _QUEUED, _CANCEL, _CANCELED)
    for here in _BACKOFFS:
        move("due", here, MoveInputs("due", "new"), MoveInputs(attempt="queue"))
    for here in _WAITING:
        move("resume", here, MoveInputs("resume", "new"), MoveInputs(attempt="queue"))
    for here in (*_GATES, _AT_END):
        move("settle", here, MoveInputs("settle"))
    for here in (*_WAITING, *_GATES, _AT_END):
        move("refuse", here, MoveInputs("refuse"))
    for here in (*_WAITING, *_GATES, _AT_END, *_BACKOFFS):
        move("close", here, MoveInputs("cancel"), MoveInputs("canceled"))
    return out


def _stride(machine: Machine, state: str, given: str | None) -> tuple[str, Edge | None]:
    if given is None:
        return state, None
    if given == "new":
        return machine.first, None
    edge = machine.take(state, given)
    return edge.next, edge


def _walk(name: str, start: JointState, strides: tuple[MoveInputs, ...]) -> Move:
    here, path, edges = start, [], []
    for given in strides:
        step, step_edge = _stride(STEP, here.step, given.step)
        attempt, attempt_edge = _stride(ATTEMPT, here.attempt, given.attempt)
        if given.attempt == "new":
            here = JointState(here.step, here.attempt)  # a new attempt has no lease yet
        lease, lease_edge = _stride(LEASE, here.lease, given.lease)
        here = JointState(step, attempt, lease)
        path.append(here)
        taken = (("step", step_edge), ("attempt", attempt_edge), ("lease", lease_edge))
        edges += [(machine, edge) for machine, edge in taken if edge is not None]
    return Move(name, start, here, tuple(path), tuple(edges))


MOVES: dict[tuple[str, JointState], Move] = {
    (name, start): _walk(name, start, strides) for name, start, strides in _script()
}
"""(move, start) -> the move. There are no other changes of these states."""


# ------------------------------------------------------------------------------------------ run paths


def _run_path(old: str, new: str) -> tuple[Edge, ...] | None:
    """The edges that show a change of status: a direct edge, or two edges through a state in between.

    None if there are none, or if the change is never derived: `plan_failed` is only passed through; a run stays in
    `canceling` only for a live lease, and only `planning` and `running` have one; a backoff follows a claim.
    """
    if "plan_failed" in (old, new) or (new == "canceling" and old not in ("planning", "running")):
        return None
    if (old, new) == ("queued", "retry_wait"):
        return None
    direct = [e for e in RUN.edges if e.state == old and e.next == new]
    if direct:
        return (direct[0],)
    via = (
        "canceling"
        if new == "canceled"
        else "plan_failed"
        if new == "failed" and old == "planning"
        else "running"
    )
    first = [e for e in RUN.edges if e.state == old and e.next == via]
    second = [e for e in RUN.edges if e.state == via and e.next == new]
    return (first[0], second[0]) if first and second else None


RUN_PATHS: dict[tuple[str, str], tuple[Edge, ...]] = {
    (old, new): path
    for old in RUN.states
    for new in RUN.states
    if old != new and old not in RUN.terminal and (path := _run_path(old, new)) is not None
}
"""(status shown, status derived) -> the edges taken. A change without a path is a defect of the kernel."""


# ------------------------------------------------------------------------------------- compiled for decisions


def _edges_json(edges: Iterable[tuple[str, Edge]]) -> msgspec.Raw:
    """Edges as an event has them."""
    return msgspec.Raw(msgspec.json.encode([(machine, e.state, e.next, e.owner) for machine, e in edges]))


class CompiledMove(msgspec.Struct, gc=False, frozen=True):
    joint: JointState
    """Where the move starts."""
    step: str
    attempt: str
    lease: str
    """The last states of the attempt and lease that the move began with; it may have created a new attempt."""
    ended: bool
    edges: msgspec.Raw


def _compile(move: Move) -> CompiledMove:
    closing = move.start
    for place in move.path:
        if place.attempt == ATTEMPT.first:
            break
        closing = place
    return CompiledMove(
        move.start,
        move.end.step,
        closing.attempt,
        closing.lease,
        closing.lease not in LIVE_LEASE,
        _edges_json(move.edges),
    )


COMPILED_MOVES: dict[tuple[str, str, str, str], CompiledMove] = {
    (name, start.step, start.attempt, start.lease): _compile(move) for (name, start), move in MOVES.items()
}
COMPILED_PATHS = {pair: _edges_json([("run", e) for e in path]) for pair, path in RUN_PATHS.items()}
