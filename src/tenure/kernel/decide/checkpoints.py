"""Checkpoints: results inside a step, recorded while its lease is live.
Laws:
1. A checkpoint is recognised by its name and sequence number: a repeat gets the same answer.
2. A done, resumable checkpoint is not recorded again. A done checkpoint stays done.
3. A checkpoint that is new, or done for the first time, is progress: the step's charge is reset to zero.
"""

from __future__ import annotations

from tenure.errors import TenureError
from tenure.kernel.commands import RecordCheckpoint
from tenure.kernel.decide.budget import add_spending
from tenure.kernel.decide.leases import OK_REPLY, OVER_BUDGET_REPLY, check_planner_message, require_lease
from tenure.kernel.decide.termination import close_wait, end_over_budget
from tenure.kernel.decide.validation import check_checkpoint
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.lease_types import LeaseReply
from tenure.kernel.run_rows import CheckpointRow
from tenure.limits import CHECKPOINT_OUTPUT_BYTES_MAX, CHECKPOINTS_PER_RUN_MAX

ABANDONED_WAIT_KINDS = frozenset({"approval", "event", "time"})
"""The kinds of waits that code can abandon. A child keeps running, even if no step waits for it."""


def checkpoint(d: Draft, c: RecordCheckpoint) -> Decision:
    new = write_checkpoint(d, c)
    canceling = d.step(c.idx).state == "canceling"
    if new and c.spent and add_spending(d, c.spent) and not canceling:
        return end_over_budget(d, OVER_BUDGET_REPLY, "checkpoint")
    if not new and d.run.reason == "BUDGET_EXCEEDED":
        return Decision(OVER_BUDGET_REPLY)
    reply = LeaseReply(cancel=True) if canceling else OK_REPLY
    counted = c.closes is None and not c.spent
    return d.decision(reply, "checkpoint", counted=counted) if new else Decision(reply)


def write_checkpoint(d: Draft, c: RecordCheckpoint) -> bool:
    """Record a checkpoint. Returns whether it is new."""
    check_checkpoint(c)
    old = d.snap.find_checkpoint(c.idx, c.name)
    step = d.step(c.idx)
    if old is not None and old.n == c.n and old.seq == c.seq:
        return False
    attempt = d.snap.find_attempt(c.idx, c.n)
    if attempt is None or c.n != step.attempt or attempt.ended_at is not None or attempt.expires_at <= d.now:
        require_lease(d, c)  # raises the error
        raise AssertionError("require_lease accepts what write_checkpoint refuses")
    if attempt.lease != "active":
        raise TenureError("LEASE_NOT_ACTIVE", "acknowledge the lease first")
    if step.kind == "plan":
        check_planner_message(c)
    if old is not None and old.n == c.n and c.seq < old.seq:
        raise TenureError("MESSAGE_OUT_OF_ORDER", f"message {c.seq} came after {old.seq}")
    if old is not None and old.state == "done" and old.resumable:
        raise TenureError("CHECKPOINT_CONFLICT", f"checkpoint {c.name!r} was recorded already")
    run = d.edit_run()
    if old is None:
        run.checkpoints += 1
        if run.checkpoints > CHECKPOINTS_PER_RUN_MAX:
            raise TenureError(
                "CHECKPOINT_LIMIT",
                f"a run has at most {CHECKPOINTS_PER_RUN_MAX} checkpoints; tenure.restart(…) continues as a new run",
            )
    state = c.state if old is None or old.state != "done" else "done"
    salt = output = None
    if old is not None and c.state != state:
        output_ref = old.output_ref  # a done checkpoint keeps its result
        salt, output = old.salt, old.output
    elif (
        state == "done"
        and c.resumable
        and c.output is not None
        and len(c.output) <= CHECKPOINT_OUTPUT_BYTES_MAX
    ):
        output = c.output  # it is never recorded again, so its output stays
        output_ref, salt = d.kept(output)
    else:
        output_ref = d.payload(c.message if state == "failed" else c.output)
    first_done = state == "done" and (old is None or old.state != "done")
    if first_done:
        run.steps_done += 1
    row = CheckpointRow(
        c.run_id,
        c.idx,
        c.name,
        old.no if old is not None else run.checkpoints,
        state,
        c.n,
        c.seq,
        c.resumable,
        c.idempotent,
        c.arguments,
        d.now,
        c.tries,
        c.next_at,
        output_ref,
        c.error,
        c.meta,
        d.payload(c.input) if c.input is not None else old.input_ref if old is not None else None,
        salt,
        output,
    )
    unsafe = row.unsafe
    was_unsafe = old is not None and old.unsafe
    progress = step.charged and (first_done or (old is None and state != "started"))
    if not step.recorded or progress or unsafe != was_unsafe:
        step = d.edit(step)
        step.recorded = True
        if progress:
            step.charged = 0
        step.unsafe += unsafe - was_unsafe
    d.add(row)
    if c.closes is not None:
        wait = d.snap.find_wait(c.closes)
        if wait is None or wait.idx != c.idx:
            raise TenureError("WAIT_NOT_FOUND", f"step {step.name!r} has no wait {c.closes}")
        if wait.state == "open" and wait.kind in ABANDONED_WAIT_KINDS:
            close_wait(d, wait)
    return True
