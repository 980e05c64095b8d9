"""Creation of runs.
Laws:
1. A run with a plan passes through `planning` in the commit that creates it. A run with a plan step stays there (`plan_completion`).
2. The same id with the same idempotency key is the same request; nothing is created twice.
"""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel import history, profiles
from tenure.kernel.commands import CreateRun
from tenure.kernel.decide.admission import admit_if_possible
from tenure.kernel.decide.leases import grant_lease
from tenure.kernel.decide.plans import add_plan, add_plan_step, is_planned_later
from tenure.kernel.decide.termination import finish_decision
from tenure.kernel.decide.validation import refuse_problems, request_problems
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.lease_types import Lease
from tenure.kernel.run_rows import CheckpointRow, IdempotencyRow, RunRow, RunSpecRow, StepRow
from tenure.kernel.separation_of_duties import people_in_new_run


class CreatedRun(msgspec.Struct, gc=False):
    run_id: int
    status: str
    lease: Lease | None = None
    again: bool = False
    """The idempotency key was used for the same request before; this is the run it created."""
    record: IdempotencyRow | None = None
    """The record of the idempotency key, if the request has one."""
    at: int = 0
    """When the run was created; 0 for an existing run."""


def create(d: Draft, c: CreateRun) -> Decision:
    if d.snap.run is not None:
        if c.parent_id is not None and d.snap.find_spec().parent_id == c.parent_id:
            return Decision(CreatedRun(c.run_id, d.snap.run.status, again=True))
        raise TenureError("RUN_ID_TAKEN", f"run {ids.run_text(c.run_id)!r} exists already: choose another id")
    profile = profiles.get(c.profile)
    refuse_problems([*request_problems(c)])
    caps = [d.snap.caps[scope] for scope in ("", f"wf:{c.workflow}") if scope in d.snap.caps]
    rated = any(cap.max_runs_per_min is not None for cap in caps)
    timeout = c.timeout_seconds if c.timeout_seconds is not None else profile.timing.run_timeout_seconds
    timeout_us = us(timeout) if timeout is not None else None
    run = RunRow(
        c.run_id,
        c.tenant,
        c.workspace,
        c.workflow,
        c.code_version,
        c.profile,
        c.trigger.repo,
        c.concurrency_key,
        rated,
        c.parent_id is not None or c.concurrency_key is not None,
        timeout_us,
        d.now,
        c.trace,
        event_at=d.now,
    )
    d.start_run(run)
    if c.wall_clock and timeout_us is not None:
        run.deadline_at = d.now + timeout_us
    salt = d.chance.salt()
    requester = c.context.actor if c.requester is None else c.requester
    spec = RunSpecRow(
        c.run_id,
        c.tenant,
        c.source,
        c.idempotency_key,
        c.request_hash,
        c.trigger.type,
        c.trigger.ref,
        requester,
        c.priority,
        c.concurrency_mode,
        c.not_before,
        c.wall_clock,
        d.payload(c.input),
        c.parent_id,
        c.parent_no,
        c.resumed_from,
        c.resume_count,
        c.rerun_of,
        c.attempt_no,
        c.labels,
        c.metadata,
        salt,
        c.undo_of,
        c.budget,
        c.currency,
        c.compensate,
        people_in_new_run(requester, c.context, c.involved),
    )
    d.changed["run_spec",] = spec
    d.notes["about"] = history.digest(salt, (c.labels + c.metadata).encode())
    d.show("planning")
    lease = None
    if is_planned_later(c.plan):
        add_plan_step(d, c.plan, profile, c.priority, spec.input_ref)
    else:
        add_plan(d, c.plan, profile, c.priority, spec.input_ref)
        run.planned = True
        _reuse_checkpoints(d, c)
        d.show("queued")
        admit_if_possible(d, spec, over_rate=c.over_rate)
    if c.eager is not None and not _capped(d):
        step = next((s for s in d.changed.values() if isinstance(s, StepRow) and s.claimable), None)
        if step is not None:
            lease = grant_lease(d, step, c.eager)
            d.ready = run.steps_ready > 0  # workers need not be woken for the step that was just leased
            lease.input = c.input if step.input_ref == spec.input_ref else None
    decision = finish_decision(d, None, "create")
    decision.result = CreatedRun(c.run_id, d.run.status, lease, at=d.now)
    return decision


def _reuse_checkpoints(d: Draft, c: CreateRun) -> None:
    """Copy the resumable checkpoints of the resumed run to the first step."""
    run = d.edit_run()
    for no, old in enumerate(c.reuse, start=1):
        d.add(
            CheckpointRow(
                run.id, 0, old.name, no, "done", 0, 0, True, old.idempotent, old.arguments, d.now,
                output_ref=d.payload(old.output), meta=old.meta,
            )
        )  # fmt: skip
    if c.reuse:
        run.checkpoints = run.steps_done = len(c.reuse)
        d.edit(d.step(0)).recorded = True


def _capped(d: Draft) -> bool:
    return any(cap.max_concurrency is not None for cap in d.snap.caps.values())
