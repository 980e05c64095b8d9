"""A run's status as a pure function of its steps, counted, and a few facts about the run."""

from __future__ import annotations

from tenure.kernel.model import Run

COUNTER: dict[str, str] = {
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
"""Which counter a step in this state adds to; pending steps add to steps_open alone."""


def derive(run: Run, *, past_deadline: bool = False) -> str:
    """The status a planned run has. Closing (a bad step, a deadline) has closed its steps before."""
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
