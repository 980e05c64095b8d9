"""How long a failed step waits before it is tried again.

Laws:
1. No backoff reaches past the run's deadline (`kernel/retry.py`, law 2). While a person is asked, the deadline stands
   still and limits nothing.
2. So when the deadline stops, a backoff that was cut gets its full length again, counted from the failure. When the
   deadline runs again, a backoff that now reaches past it is cut.
"""

from __future__ import annotations

import msgspec

from tenure.kernel import retry
from tenure.kernel.commands import BackoffSpec
from tenure.kernel.draft import Draft
from tenure.kernel.run_rows import StepRow


def delay_us(d: Draft, step: StepRow, cap: int | None) -> int:
    """The delay after a step's newest failure, by its own backoff or its profile's, and at most the cap."""
    timing = d.rules.timing
    backoff, jitter = timing.backoff, timing.jitter
    if step.spec and step.kind in ("work", "plan"):
        own = msgspec.json.decode(step.spec, type=BackoffSpec)
        backoff, jitter = retry.Backoff("list", seconds=own.seconds), own.jitter
    return retry.delay_us(backoff, max(1, step.charged), jitter, d.chance, cap)


def follow_deadline(d: Draft) -> None:
    """Apply law 2 if this decision has stopped or restarted the run's deadline."""
    run, before = d.run, d.snap.run
    if before is None or not run.steps_retry or run.deadline_at is None:
        return
    if (before.human_since is None) == (run.human_since is None):
        return
    waiting = [
        s for s in d.open_steps() if s.state == "retry_wait" and (s.eligible_at or 0) >= run.deadline_at
    ]
    if run.human_since is not None:
        d.need_attempts(waiting)
    for step in waiting:
        moment = run.deadline_at
        if run.human_since is not None:
            ended = d.attempt_of(step).ended_at
            assert ended is not None, "a step backs off after its attempt has ended"
            moment = max(moment, ended + delay_us(d, step, None))
        if step.eligible_at != moment:
            step = d.edit(step)
            step.eligible_at = step.wake_at = moment
