"""Admission: when a run that was created may begin.
Law: there is one mechanism for a delayed start, a concurrency key and max_runs_per_min. A run that is not admitted is
queued with nothing ready, and is checked again at `wake_at`. A run that supersedes cancels the older runs with its
key whenever its admission is decided.
"""

from __future__ import annotations

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.commands import Admit
from tenure.kernel.decide.ready_steps import open_step
from tenure.kernel.decide.termination import finish_decision, time_out_planning, time_out_run
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.run_rows import CLOSED_RUN, RunRow, RunSpecRow, StepRow
from tenure.kernel.snapshot import AdmissionFacts, NotLoaded
from tenure.limits import KEY_LINE_POLL_SECONDS, KEY_POLL_SECONDS


def admit_if_possible(d: Draft, spec: RunSpecRow, *, over_rate: str) -> None:
    """Admit the run, or set the moment of the next check."""
    run = d.edit_run()
    if spec.not_before is not None and spec.not_before > d.now:
        _look_again(run, spec.not_before)
        return
    supersedes = run.concurrency_key is not None and spec.concurrency_mode == "supersede"
    if run.rated:
        full_until = _facts(d, run, supersedes).rate_full_until
        if full_until is not None:
            if over_rate == "refuse":
                wait = max(1, -((d.now - full_until) // 1_000_000))
                raise TenureError(
                    "TENANT_RATE_LIMITED",
                    f"too many runs this minute; try again in {wait} s",
                    retry_at=full_until,
                    retry_after=wait,
                )
            _look_again(run, full_until)
            return
    if run.concurrency_key is not None:
        facts = _facts(d, run, supersedes)
        if supersedes and facts.live_ids:
            d.notes["supersedes"] = len(facts.live_ids)  # makes an event, which outbox rows need
            for run_id in facts.live_ids:
                d.owe("cancel", run_id, {"reason": "SUPERSEDED"})
        first = facts.first_waiting_id in (None, run.id)
        if facts.holder_id is not None or not first:
            # The first run in line is also woken when the key is freed, so the others check rarely.
            _look_again(run, d.now + us(KEY_POLL_SECONDS if first else KEY_LINE_POLL_SECONDS))
            return
    run.admitted_at = d.now
    run.wake_at = None
    created = [s for s in d.changed.values() if isinstance(s, StepRow)]
    for step in created if d.snap.run is None or not d.snap.run.planned else d.open_steps():
        if step.needs_left == 0 and step.state == "pending":
            open_step(d, step)


def _facts(d: Draft, run: RunRow, supersedes: bool) -> AdmissionFacts:
    """What is known of other runs. The older runs with its key are loaded only if it supersedes them."""
    if d.snap.facts is None:
        raise NotLoaded(("admission", run.tenant, run.concurrency_key, run.workflow, supersedes))
    return d.snap.facts


def _look_again(run: RunRow, moment: int) -> None:
    """Set the next check, at the run's deadline at the latest."""
    run.wake_at = moment if run.deadline_at is None else min(moment, run.deadline_at)


def admit(d: Draft, _c: Admit) -> Decision:
    run = d.run
    if run.status == "planning" and run.wake_at is not None and run.wake_at <= d.now:
        return time_out_planning(d)
    if (
        run.status in CLOSED_RUN
        or run.admitted_at is not None
        or not run.planned
        or run.cancel_at is not None
    ):
        return Decision({"admitted": run.admitted_at is not None})
    if run.deadline_at is not None and run.deadline_at <= d.now:
        return time_out_run(d)
    admit_if_possible(d, d.spec(), over_rate="delay")
    return finish_decision(d, {"admitted": d.run.admitted_at is not None}, "admit")
