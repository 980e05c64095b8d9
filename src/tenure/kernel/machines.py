"""The machines of the kernel, as tables.

Laws:
1. A new transition is a new line here; the diagram, the docs, the exhaustive test and the profiles'
   proof follow by themselves.
2. Inputs are refined before the look-up: "failed with tries left" is its own input.
3. A run's status is derived from its steps (`status.py`); the run table says which changes that
   derivation may show. Waits are entered only from `running`; a cancel always passes `canceling`.
4. Step, attempt and lease move together: a *move* (below) names the inputs each of them takes, in
   order. The kernel carries out moves and nothing else, and the profiles are proven over moves.
"""

from __future__ import annotations

import msgspec

from tenure.kernel.machine import Edge, Machine, rows

RUN = Machine(
    "run",
    "created",
    ("succeeded", "failed", "canceled", "timed_out"),
    rows("""
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
    rows("""
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
    rows("""
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
    rows("""
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
    rows("""
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
    rows("""
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
    rows("""
        processing: complete -> completed
        processing: fail -> failed
        processing: take_over -> processing
        processing: drop -> dropped
        failed: retry -> processing
        processing, completed, failed: expire -> expired
    """),
)
"""Its terminal states are no rows: a record that is dropped or expired is deleted."""

MACHINES: dict[str, Machine] = {
    m.name: m for m in (RUN, STEP, ATTEMPT, LEASE, APPROVAL, RECEIPT, IDEMPOTENCY)
}

LIVE_LEASE = frozenset({"granted", "active"})
LEASED_STEP = frozenset({"leased", "starting", "running", "uploading"})
WAITING_STEP = frozenset({"waiting_approval", "waiting_external"})


# ---------------------------------------------------------------------------------------------- moves


class Inputs(msgspec.Struct, frozen=True):
    """What one stride of a move feeds to each machine; None leaves that machine alone."""

    step: str | None = None
    attempt: str | None = None
    lease: str | None = None


class Joint(msgspec.Struct, frozen=True):
    """A step with its current attempt and that attempt's lease; '-' where there is none."""

    step: str
    attempt: str = "-"
    lease: str = "-"


class Move(msgspec.Struct, frozen=True):
    """A joint change: where it starts, the edges it takes in order, where it ends."""

    name: str
    start: Joint
    end: Joint
    path: tuple[Joint, ...]
    edges: tuple[tuple[str, Edge], ...]
    """(machine name, row), in the order taken."""


_NEW_ATTEMPT = (Inputs(attempt="new"), Inputs(attempt="queue"))
_QUEUED = Joint("ready", "queued")
_LEASED = Joint("leased", "leased", "granted")
_STARTING = Joint("starting", "starting", "active")
_RUNNING = Joint("running", "running", "active")
_UPLOADING = Joint("uploading", "uploading", "active")
_ACK = Inputs("ack", "ack", "ack")
_BEGIN = Inputs("begin", "begin")
_UPLOAD = Inputs("upload", "upload")
_LIVE = (_LEASED, _STARTING, _RUNNING, _UPLOADING)
_WAITING = tuple(Joint(w, "suspended", "released") for w in ("waiting_approval", "waiting_external"))
_GATES = tuple(Joint(w) for w in ("waiting_approval", "waiting_external"))
_AT_END = Joint("waiting_external", "succeeded", "completed")
_BACKOFFS = tuple(
    Joint("retry_wait", a, lease) for a, lease in (("failed", "completed"), ("timed_out", "revoked"))
)
_CANCEL = Inputs("cancel", "cancel")
_CANCELED = Inputs("canceled", "canceled")


def _through(start: Joint, *last: Inputs) -> tuple[Inputs, ...]:
    """An accepted Complete or Fail walks the states a runner skipped, so that every history is whole."""
    skipped = {_STARTING: (_BEGIN, _UPLOAD), _RUNNING: (_UPLOAD,), _UPLOADING: ()}[start]
    return (*skipped, *last)


def _script() -> list[tuple[str, Joint, tuple[Inputs, ...]]]:
    """Every move: (name, where it starts, strides)."""
    out: list[tuple[str, Joint, tuple[Inputs, ...]]] = []

    def move(name: str, start: Joint, *strides: Inputs) -> None:
        out.append((name, start, strides))

    pending = Joint("pending")
    move("ready", pending, Inputs("needs_met", "new"), Inputs(attempt="queue"))
    move("open_approval_gate", pending, Inputs("needs_met"), Inputs("ask"))
    move("open_external_gate", pending, Inputs("needs_met"), Inputs("await"))
    move("drop", pending, Inputs("drop"))
    move("skip", pending, Inputs("skip"))
    # A step whose condition is false goes the way of a gate that is over at once: no attempt, no lease.
    move("skip_condition", pending, Inputs("needs_met"), Inputs("await"), Inputs("settle"))
    # A step whose input cannot be made: before its first try it has no attempt, later a queued one ends with it.
    move("fail_resolution", pending, Inputs("needs_met"), Inputs("give_up"))
    move("fail_resolution", _QUEUED, Inputs("give_up", "cancel"), Inputs(attempt="canceled"))

    move("claim", _QUEUED, Inputs("lease", "lease", "new"))
    move("claim_and_ack", _QUEUED, Inputs("lease", "lease", "new"), _ACK, _BEGIN)
    move("ack", _LEASED, _ACK)
    move("ack", Joint("canceling", "canceling", "granted"), Inputs(lease="ack"))
    move("begin", _STARTING, _BEGIN)
    move("upload", _RUNNING, _UPLOAD)
    move("upload", _STARTING, _BEGIN, _UPLOAD)

    for here in (_STARTING, _RUNNING, _UPLOADING):
        move("complete", here, *_through(here, Inputs("complete", "complete", "complete")))
        # Its work is done and its result is there; it succeeds when the children it has to wait for have ended.
        move("complete_waiting", here, *_through(here, Inputs("await_children", "complete", "complete")))
        move("fail", here, *_through(here, Inputs("fail", "fail", "complete")))
        move("fail_retry", here, *_through(here, Inputs("fail_retry", "fail", "complete")))
    for here in (_STARTING, _RUNNING):
        walk = (_BEGIN,) if here is _STARTING else ()
        move("suspend_approval", here, *walk, Inputs("suspend_approval", "suspend", "release"))
        move("suspend_external", here, *walk, Inputs("suspend_external", "suspend", "release"))

    for here in _LIVE:
        move("release", here, Inputs("lost", "release", "release"), *_NEW_ATTEMPT)
        move("expire", here, Inputs("lost", "lose", "expire"), *_NEW_ATTEMPT)
        # A step given up after a lost lease goes back to the queue and fails there: the documents know
        # RUNNING -> QUEUED for a lost lease, and none of them knows a runner-less RUNNING -> FAILED.
        move("expire_final", here, Inputs("lost", "lose", "expire"), Inputs("give_up"))
        move("revoke", here, Inputs("lost", "lose", "revoke"), *_NEW_ATTEMPT)
        move("revoke_final", here, Inputs("lost", "lose", "revoke"), Inputs("give_up"))
        # The kernel may not ack for a runner that never did, so only from `starting` on does a timeout
        # walk the state in between.
        walk = (_BEGIN,) if here is _STARTING else ()
        move("time_out", here, *walk, Inputs("time_out", "time_out", "revoke"))
        move("time_out_retry", here, *walk, Inputs("time_out_retry", "time_out", "revoke"))
        move("request_cancel", here, _CANCEL)
        move("close", here, Inputs("cancel", "cancel", "revoke"), _CANCELED)

    for lease in ("granted", "active"):
        here = Joint("canceling", "canceling", lease)
        move("force_cancel", here, Inputs("canceled", "canceled", "revoke"))
        move("expire_canceling", here, Inputs("canceled", "canceled", "expire"))
        move("release_canceling", here, Inputs("canceled", "canceled", "release"))
        move("close", here, Inputs("canceled", "canceled", "revoke"))
    canceling = Joint("canceling", "canceling", "active")
    move("cancel_ack", canceling, Inputs("canceled", "canceled", "cancel_ack"))
    move("late_result", canceling, Inputs("canceled", "canceled", "complete"))

    move("close", _QUEUED, _CANCEL, _CANCELED)
    for here in _BACKOFFS:
        move("due", here, Inputs("due", "new"), Inputs(attempt="queue"))
    for here in _WAITING:
        move("resume", here, Inputs("resume", "new"), Inputs(attempt="queue"))
    for here in (*_GATES, _AT_END):
        move("settle", here, Inputs("settle"))
    for here in (*_WAITING, *_GATES, _AT_END):
        move("refuse", here, Inputs("refuse"))
    for here in (*_WAITING, *_GATES, _AT_END, *_BACKOFFS):
        move("close", here, Inputs("cancel"), Inputs("canceled"))
    return out


def _stride(machine: Machine, state: str, given: str | None) -> tuple[str, Edge | None]:
    if given is None:
        return state, None
    if given == "new":
        return machine.first, None
    edge = machine.take(state, given)
    return edge.next, edge


def _walk(name: str, start: Joint, strides: tuple[Inputs, ...]) -> Move:
    here, path, edges = start, [], []
    for given in strides:
        step, step_edge = _stride(STEP, here.step, given.step)
        attempt, attempt_edge = _stride(ATTEMPT, here.attempt, given.attempt)
        if given.attempt == "new":
            here = Joint(here.step, here.attempt)  # a new attempt has no lease yet
        lease, lease_edge = _stride(LEASE, here.lease, given.lease)
        here = Joint(step, attempt, lease)
        path.append(here)
        taken = (("step", step_edge), ("attempt", attempt_edge), ("lease", lease_edge))
        edges += [(machine, edge) for machine, edge in taken if edge is not None]
    return Move(name, start, here, tuple(path), tuple(edges))


MOVES: dict[tuple[str, Joint], Move] = {
    (name, start): _walk(name, start, strides) for name, start, strides in _script()
}
"""(move, joint state) -> what happens: the only joint changes there are."""


# ------------------------------------------------------------------------------------------ run paths


def _run_path(old: str, new: str) -> tuple[Edge, ...] | None:
    """The edges by which a derived change of status is shown: direct, or through one state between.

    None where there are none, and where the change is never derived: `plan_failed` is only passed through; a
    run stays in `canceling` only for a live lease, which no state but `running` has; a backoff follows a claim.
    """
    if "plan_failed" in (old, new) or (new == "canceling" and old != "running"):
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
"""(status shown, status derived) -> the edges taken. A pair that is missing is a defect of the kernel."""
