"""A run's status as a pure function of its counted steps and a few facts."""

from __future__ import annotations

from tenure.kernel.run_rows import RunRow

STATE_COUNTERS: dict[str, str] = {
    "ready": "steps_ready",
    "leased": "steps_live",
    "starting": "steps_live",
    "running": "steps_live",
    "uploading": "steps_live",
    "canceling": "steps_live",
    "waiting_approval": "steps_approval",
    "waiting_external": "steps_external",
    "retry_wait": "steps_retry",
}
"""The counter that a step in this state adds to. Pending steps add to `steps_open` only."""


def derive_status(run: RunRow, *, past_deadline: bool = False) -> str:
    """The status of a planned run. Its steps were closed before, if a step ended badly or the deadline passed."""
    if run.cancel_at is not None:
        return "canceling" if run.steps_open else "canceled"
    if past_deadline:
        return "timed_out"
    if run.steps_bad:
        return "failed"
    if run.admitted_at is None:
        return "queued"
    if not run.steps_open:
        return "succeeded"
    if run.steps_live:
        return "running"
    if run.steps_ready:
        return "running" if run.started_at is not None else "queued"
    if run.steps_approval:
        return "waiting_approval"
    if run.steps_external:
        return "waiting_external"
    if run.steps_retry:
        return "retry_wait"
    return "running" if run.started_at is not None else "queued"
