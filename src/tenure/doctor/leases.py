"""Leases: I22 to I30, and artifacts and logs: I56.

Heartbeats write no events. Their changes are only in the attempt's row, and are checked there.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenure.doctor.checked_run import Body, CheckedRun, describe
from tenure.doctor.invariants import Finding, checks
from tenure.doctor.runs import CLAIMS
from tenure.kernel.ci_rows import LogChunkRow
from tenure.kernel.machines import LEASED_STEP, LIVE_LEASE
from tenure.kernel.run_rows import AttemptRow, EventRow
from tenure.kernel.server_rows import ArtifactRow

SWEEP_BOUND_US = 30_000_000
"""In a system that has settled, everything due is done within this time."""

MESSAGES = frozenset(
    {
        "ack", "begin", "uploading", "cost", "checkpoint", "complete", "fail", "release", "park", "cancel_ack",
        "open_wait", "suspend", "propose_act", "intend_act", "repeat_act", "settle_act",
    }
)  # fmt: skip
"""The kinds of events that record a lease holder's message."""
_COMPLETES = {
    "complete": ("complete",),
    "complete_waiting": ("complete",),
    # An act that is denied, frozen, over a cap or rejected fails its step immediately.
    # So does an invalid plan, which its plan step completes with.
    "fail": ("fail", "suspend", "propose_act", "intend_act", "repeat_act", "complete"),
    "fail_retry": ("fail",),
    "late_result": ("complete", "fail"),
}
"""A move that completes a lease -> the messages that may cause it."""


@checks("I22")
def one_live_lease(view: CheckedRun) -> Iterator[Finding]:
    """A step has a live lease exactly while it is leased or canceling: that of its newest attempt."""
    for step in view.bundle.steps:
        live = [a for a in view.attempts.get(step.idx, ()) if a.lease in LIVE_LEASE]
        if len(live) > 1:
            yield describe(step), f"has {len(live)} live leases: attempts {[a.n for a in live]}"
        held = step.state in LEASED_STEP or step.state == "canceling"
        if held and not live:
            yield describe(step), f"is {step.state} without a live lease"
        for attempt in live:
            if attempt.n != step.attempt:
                yield describe(attempt), f"has a live lease, but the newest attempt is {step.attempt}"
            if not held:
                yield describe(attempt), f"has a live lease while its step is {step.state}"
            elif attempt.state != step.state:
                yield describe(attempt), f"is {attempt.state} while its step is {step.state}"


@checks("I23")
def fence_grows(view: CheckedRun) -> Iterator[Finding]:
    """Every claim raises its step's fence by one, and nothing else changes it."""
    fence: dict[int, int] = {}
    for taken in view.taken:
        if taken.idx is not None and taken.move in CLAIMS:
            if taken.n != fence.get(taken.idx, 0) + 1:
                yield (
                    f"event {taken.seq}",
                    f"step {taken.idx} gets fence {taken.n} after {fence.get(taken.idx, 0)}",
                )
            fence[taken.idx] = taken.n
    for event, key, columns in view.changes("step"):
        attempt = columns.get("attempt")
        if attempt is not None and event.kind not in ("claim", "create"):
            yield f"event {event.seq}", f"{event.kind} changes the fence of step {key} to {attempt}"
    for step in view.bundle.steps:
        if step.attempt != fence.get(step.idx, 0):
            yield describe(step), f"its fence is {step.attempt}, claims gave it {fence.get(step.idx, 0)}"


@checks("I56")
def artifacts_in_time_are_older_than_the_end_of_their_lease(view: CheckedRun) -> Iterator[Finding]:
    """An artifact was recorded before the event that ended its lease. A late artifact was recorded after that event or after the
    lease's expiry. Both were recorded by the worker that held the lease."""
    ended = _lease_ends(view)
    attempts = {(row.idx, row.n): row for row in view.bundle.attempts}
    sizes: dict[str, int] = {}
    for part in view.bundle.upload_parts:
        sizes[part.upload] = sizes.get(part.upload, 0) + part.size
    for row in view.bundle.artifacts:
        place, attempt = f"artifact {row.name!r} of {row.idx}/{row.n}", attempts.get((row.idx, row.n))
        if attempt is None or row.idx not in view.steps:
            yield place, "belongs to no attempt"
            continue
        if (problem := _lateness_problem(row, attempt, ended)) is not None:
            yield place, problem
        expired = row.expires_at is not None and (view.now is None or row.expires_at <= view.now)
        if row.upload and not expired and sizes.get(row.upload, 0) != row.size:
            yield place, f"has {row.size} bytes; its parts have {sizes.get(row.upload, 0)}"
        if row.worker != attempt.owner:
            yield place, f"was uploaded by {row.worker!r}; the lease was held by {attempt.owner!r}"
        if row.tenant != view.run.tenant or row.step != view.steps[row.idx].name:
            yield place, "names another tenant or step than its run"


def _lease_ends(view: CheckedRun) -> dict[tuple[int | None, int], int]:
    """Attempt -> the event that ended its lease."""
    return {
        (taken.idx, taken.n): taken.seq
        for taken in view.taken
        for machine, _, after, _ in taken.edges
        if machine == "lease" and after not in LIVE_LEASE
    }


def _lateness_problem(
    row: ArtifactRow | LogChunkRow, attempt: AttemptRow, ended: dict[tuple[int | None, int], int]
) -> str | None:
    end = ended.get((row.idx, row.n))
    over = (end is not None and end <= row.events) or row.at >= attempt.expires_at
    if over and not row.late:
        return "was recorded after its lease had ended, and is not marked late"
    if row.late and not over:
        return "is marked late, but its lease was live"
    return None


@checks("I56")
def chunks_of_logs_follow_each_other(view: CheckedRun) -> Iterator[Finding]:
    """The chunks of an attempt's log are numbered from 1 and have no gap. Late ones follow those that came in time."""
    if not view.bundle.log_chunks:
        return
    ended = _lease_ends(view)
    attempts = {(row.idx, row.n): row for row in view.bundle.attempts}
    before: LogChunkRow | None = None
    for row in view.bundle.log_chunks:
        place, attempt = f"log chunk {row.seq} of {row.idx}/{row.n}", attempts.get((row.idx, row.n))
        if attempt is None:
            yield place, "belongs to no attempt"
            continue
        if before is not None and (before.idx, before.n) != (row.idx, row.n):
            before = None
        seq, byte = (1, 0) if before is None else (before.seq + 1, before.first_byte + before.size)
        if (row.seq, row.first_byte) != (seq, byte):
            yield place, f"begins at byte {row.first_byte}; chunk {seq} at byte {byte} was expected"
        if before is not None and before.late and not row.late:
            yield place, "is not marked late, but the chunk before it is"
        if (problem := _lateness_problem(row, attempt, ended)) is not None:
            yield place, problem
        before = row


@checks("I23")
def leases_expire_at_their_moment(view: CheckedRun) -> Iterator[Finding]:
    """A lease expires at its expiry time, or when its own holder is proven dead."""
    ended_in = {
        (taken.idx, taken.n): taken.seq
        for taken in view.taken
        if any(machine == "lease" and target == "expired" for machine, _, target, _ in taken.edges)
    }
    proven: set[tuple[int, int]] = set()
    for event, body in view.bodies:
        if (dead := body.get("context", {}).get("dead")) is None:
            continue
        lease = (dead["step"], dead["attempt"])
        proven.add(lease)
        if ended_in.get(lease) != event.seq:
            yield (
                f"event {event.seq}",
                f"the holder of attempt {lease} was proven dead, and another lease ended",
            )
        if not event.cause:
            yield f"event {event.seq}", "does not say how the lease's holder was proven dead"
    for attempt in view.bundle.attempts:
        early = attempt.ended_at is not None and attempt.ended_at < attempt.expires_at
        if attempt.lease == "expired" and early and (attempt.idx, attempt.n) not in proven:
            yield (
                describe(attempt),
                f"expired at {attempt.ended_at}, before its expiry {attempt.expires_at}, and its holder was not proven dead",
            )


def _messages(view: CheckedRun) -> Iterator[tuple[EventRow, int, int | None]]:
    """Every accepted message as (event, step, attempt). The attempt is None if the event does not name it."""
    by_edges = {
        taken.seq: (taken.idx, taken.n)
        for taken in reversed(view.taken)
        if taken.idx is not None and taken.n and taken.kind in MESSAGES
    }
    recorded_by: dict[str, int] = {}
    for event, body in view.bodies:
        if event.kind not in MESSAGES:
            continue
        found = by_edges.get(event.seq) or _sender(body, recorded_by)
        if found is not None:
            yield event, *found


def _sender(body: Body, recorded_by: dict[str, int]) -> tuple[int, int | None] | None:
    changes = body.get("set", {})
    for key, columns in changes.get("checkpoint", {}).items():
        n = columns.get("n", recorded_by.get(key))
        if n is not None:
            recorded_by[key] = n
        return int(key.split("/", 1)[0]), n
    for table in ("wait", "receipt", "verdict"):
        for columns in changes.get(table, {}).values():
            if "idx" in columns:
                return columns["idx"], columns.get("n")
    return None


@checks("I24")
def messages_are_current(view: CheckedRun) -> Iterator[Finding]:
    """Every accepted message came from the newest attempt, before its lease expired."""
    claims = [(t.seq, t.idx, t.n) for t in view.taken if t.move in CLAIMS]
    for event, idx, n in _messages(view):
        fence = max((c for seq, i, c in claims if i == idx and seq < event.seq), default=0)
        if n is not None and n != fence:
            yield f"event {event.seq}", f"{event.kind} of attempt {n} was accepted; the fence was {fence}"
        for attempt in view.attempts.get(idx, ()):
            if attempt.n == fence and not attempt.granted_at <= event.at < attempt.expires_at:
                yield (
                    f"event {event.seq}",
                    f"{event.kind} of attempt {fence} at {event.at}, but its lease ran from {attempt.granted_at} to {attempt.expires_at}",
                )


@checks("I25")
def stale_changes_nothing(view: CheckedRun) -> Iterator[Finding]:
    """The history has no message of an attempt that had ended."""
    ended: dict[str, int] = {}
    for event, key, columns in view.changes("attempt"):
        if columns.get("ended_at") is not None:
            ended.setdefault(key, event.seq)
    for event, idx, n in _messages(view):
        seq = ended.get(f"{idx}/{n}")
        if seq is not None and seq < event.seq:
            yield (
                f"event {event.seq}",
                f"{event.kind} of attempt {idx}/{n} changed rows after it ended in event {seq}",
            )


@checks("I26")
def heartbeats_extend(view: CheckedRun) -> Iterator[Finding]:
    """A lease expires at most one lease length after its last heartbeat, and never after the step's timeout."""
    for attempt in view.bundle.attempts:
        if attempt.expires_at < attempt.granted_at:
            yield describe(attempt), f"expires at {attempt.expires_at}, before it was granted"
        if attempt.timeout_at is not None and attempt.expires_at > attempt.timeout_at:
            yield (
                describe(attempt),
                f"expires at {attempt.expires_at}, past its timeout {attempt.timeout_at}",
            )
        if attempt.beat_at < attempt.granted_at:
            yield describe(attempt), f"has its last heartbeat at {attempt.beat_at}, before it was granted"
        step = view.steps.get(attempt.idx)
        if step is not None:
            if attempt.expires_at > attempt.beat_at + step.lease_us:
                yield (
                    describe(attempt),
                    f"expires at {attempt.expires_at}, more than its lease after its last heartbeat {attempt.beat_at}",
                )
            timeout = None if step.timeout_us is None else attempt.granted_at + step.timeout_us
            if attempt.timeout_at != timeout:
                yield describe(attempt), f"times out at {attempt.timeout_at}, not at {timeout}"


@checks("I27")
def answers_are_kept(view: CheckedRun) -> Iterator[Finding]:
    """An attempt's last message, heartbeats aside, has a sequence number and an answer."""
    for attempt in view.bundle.attempts:
        if attempt.last_message:
            number = attempt.last_message.rpartition(" ")[2]
            if not number.isdecimal() or not 0 < int(number) <= attempt.seq:
                yield (
                    describe(attempt),
                    f"sent {attempt.last_message!r}; its last sequence number is {attempt.seq}",
                )
        if bool(attempt.last_message) != bool(attempt.answer):
            yield (
                describe(attempt),
                f"sent {attempt.last_message!r} and was answered {attempt.answer!r}",
            )


@checks("I28")
def leases_end_for_a_reason(view: CheckedRun) -> Iterator[Finding]:
    """A lease is completed exactly by a Complete or a Fail, and canceled exactly by a CancelAck."""
    for taken in view.taken:
        for machine, _, target, _ in taken.edges:
            if machine != "lease":
                continue
            if target == "completed" and taken.kind not in _COMPLETES.get(taken.move, ()):
                yield (
                    f"event {taken.seq}",
                    f"'{taken.move}' by {taken.kind} completed the lease of step {taken.idx}",
                )
            elif target == "canceled" and (taken.move, taken.kind) != ("cancel_ack", "cancel_ack"):
                yield (
                    f"event {taken.seq}",
                    f"'{taken.move}' by {taken.kind} canceled the lease of step {taken.idx}",
                )
    for attempt in view.bundle.attempts:
        if attempt.state in ("succeeded", "failed") and attempt.lease != "completed":
            yield describe(attempt), f"{attempt.state}, but its lease is {attempt.lease}"
        elif attempt.lease == "completed" and attempt.state not in ("succeeded", "failed", "canceled"):
            yield describe(attempt), f"its lease was completed, but it is {attempt.state}"
        elif attempt.lease == "canceled" and attempt.state != "canceled":
            yield describe(attempt), f"its lease was canceled, but it is {attempt.state}"


@checks("I29")
def expired_leases_are_swept(view: CheckedRun) -> Iterator[Finding]:
    """In a system that has settled, no lease is live long after its expiry."""
    if not view.settled or view.now is None:
        return
    for attempt in view.bundle.attempts:
        if attempt.lease in LIVE_LEASE and attempt.expires_at + SWEEP_BOUND_US < view.now:
            yield describe(attempt), f"expired at {attempt.expires_at} and is still {attempt.lease}"


@checks("I30")
def leases_keep_their_tenant(view: CheckedRun) -> Iterator[Finding]:
    """The tenant and workflow of a lease, by which caps count it, are those of its run."""
    run = view.run
    for attempt in view.bundle.attempts:
        if attempt.tenant != run.tenant or attempt.workflow != run.workflow:
            yield (
                describe(attempt),
                f"counts for {attempt.tenant}/{attempt.workflow}, its run belongs to {run.tenant}/{run.workflow}",
            )
