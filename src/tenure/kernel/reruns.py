"""A finished run once more: what `build_resumed_run` and `build_rerun` ask for, built from the rows of the first run. Pure.

Laws:
1. Resuming goes on: steps that succeeded are left out and the needs of the others trimmed; a body (or the first
   step left) gets the resumable checkpoints with their outputs. External keys stay the first run's, so an
   effect that had happened is recognised.
2. What was begun and can be neither skipped nor repeated is not begun again by resuming either: whoever resumes says
   of every such checkpoint that it happened (with what it returned) or that it may be repeated.
3. Rerunning starts afresh: the same plan, new keys, nothing reused; attempt + 1, linked.
4. Neither takes over an idempotency key, a parent or a delay: those belonged to the first request. Whoever stood behind the
   first run stands behind this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import (
    ApprovalSpec,
    BackoffSpec,
    Context,
    CreateRun,
    ReusedCheckpoint,
    RunRequest,
    StepSpec,
    Trigger,
    WaitSpec,
)
from tenure.kernel.new_run import build_create_run
from tenure.kernel.run_rows import CLOSED_RUN, CheckpointRow, PayloadRow, RunRow, RunSpecRow, StepRow
from tenure.kernel.separation_of_duties import join_people


class FinishedRun(msgspec.Struct, frozen=True):
    """The rows of a run that has ended."""

    run: RunRow
    spec: RunSpecRow
    steps: list[StepRow]
    checkpoints: list[CheckpointRow]
    payloads: list[PayloadRow]


def build_resumed_run(
    old: FinishedRun,
    run_id: int,
    context: Context,
    *,
    happened: Mapping[str, bytes | None] = MappingProxyType({}),
    repeat: Collection[str] = (),
) -> CreateRun:
    """A new run that goes on where this one ended; a succeeded one has nothing left to do. `happened` (checkpoint ->
    what it returned) and `repeat` settle what may not simply be begun again; see law 2."""
    run, spec = old.run, old.spec
    _must_be_finished(run)
    if run.status == "succeeded":
        raise TenureError("RUN_TERMINAL_STATE", "the run succeeded: there is nothing to resume, rerun it")
    bodies = {p.ref: p.body for p in old.payloads}
    done = {step.idx for step in old.steps if step.state == "succeeded"}
    left = [step for step in old.steps if step.idx not in done]
    if run.planned and not left:
        raise TenureError("RUN_TERMINAL_STATE", "every step succeeded: there is nothing to resume, rerun it")
    _must_be_settled(old, left, happened, repeat)
    reuse = reusable_checkpoints(old.checkpoints, left[0].idx, bodies, happened) if left else ()
    request = msgspec.structs.replace(
        _request_again(old, left, bodies, context, keep_keys=True),
        resumed_from=run.id,
        resume_count=spec.resume_count + 1,
        rerun_of=spec.rerun_of,
        attempt_no=spec.attempt_no,
        reuse=reuse,
    )
    return build_create_run(request, run_id=run_id, tenant=run.tenant, workspace=run.workspace)


def build_rerun(old: FinishedRun, first: FinishedRun, run_id: int, context: Context) -> CreateRun:
    """A fresh run of the whole plan: of the run itself or, where it was resumed, of the one it began as."""
    _must_be_finished(old.run)
    bodies = {p.ref: p.body for p in first.payloads}
    request = msgspec.structs.replace(
        _request_again(first, first.steps, bodies, context, keep_keys=False),
        labels=old.spec.labels,
        metadata=old.spec.metadata,
        involved=join_people(
            first.spec.requester, first.spec.involved, old.spec.requester, old.spec.involved
        ),
        rerun_of=old.run.id,
        attempt_no=old.spec.attempt_no + 1,
    )
    return build_create_run(request, run_id=run_id, tenant=first.run.tenant, workspace=first.run.workspace)


def _must_be_finished(run: RunRow) -> None:
    if run.status not in CLOSED_RUN:
        raise TenureError(
            "RUN_INVALID_TRANSITION", f"the run is {run.status}: only a finished run starts again"
        )


def _must_be_settled(
    old: FinishedRun, left: list[StepRow], happened: Mapping[str, bytes | None], repeat: Collection[str]
) -> None:
    """Refuse to go on past something of which nobody knows, or nobody says, whether it happened."""
    step_of = {step.idx: step for step in left}
    open_marks = [row for row in old.checkpoints if row.unsafe and row.idx in step_of]
    for row in open_marks:
        # What happened is handed to the first step only: of the others nobody could skip it.
        if row.name in repeat or (row.name in happened and row.idx == left[0].idx):
            continue
        how = "was begun and not seen to end" if row.state == "started" else "is done and cannot be reused"
        raise TenureError(
            "RUN_RESUME_FAILED",
            f"checkpoint {row.name!r} of step {step_of[row.idx].name!r} {how}: find out whether it happened",
            checkpoint=row.name,
        )
    unknown = {*happened, *repeat} - {row.name for row in open_marks}
    if unknown:
        raise TenureError("INVALID_INPUT", f"there is nothing to settle about checkpoint {min(unknown)!r}")


def reusable_checkpoints(
    checkpoints: Iterable[CheckpointRow],
    idx: int,
    bodies: dict[int, bytes],
    happened: Mapping[str, bytes | None] = MappingProxyType({}),
) -> tuple[ReusedCheckpoint, ...]:
    """The resumable checkpoints of a step, and those that are said to have happened, as they were recorded."""
    reused = []
    for c in sorted((c for c in checkpoints if c.idx == idx), key=lambda c: c.no):
        if c.unsafe and c.name in happened:
            reused.append(ReusedCheckpoint(c.name, c.arguments, happened[c.name], c.idempotent, c.meta))
        elif c.state == "done" and c.resumable:
            output = _body(bodies, c.output_ref, f"checkpoint {c.name!r}")
            reused.append(ReusedCheckpoint(c.name, c.arguments, output, c.idempotent, c.meta))
    return tuple(reused)


def _body(bodies: dict[int, bytes], ref: int | None, whose: str) -> bytes | None:
    if ref is None:
        return None
    if ref not in bodies:
        raise TenureError("INVALID_INPUT", f"the payload of {whose} has been erased: start a new run")
    return bodies[ref]


def _request_again(
    old: FinishedRun, steps: list[StepRow], bodies: dict[int, bytes], context: Context, *, keep_keys: bool
) -> RunRequest:
    run, spec = old.run, old.spec
    assert spec.trigger_type in ("ui", "cli", "webhook", "scheduled", "api", "child")
    trigger = Trigger(spec.trigger_type, spec.trigger_ref, run.repo)  # type: ignore[arg-type]  # asserted above
    assert spec.concurrency_mode in ("queue", "supersede")
    return RunRequest(
        context=context,
        workflow=run.workflow,
        code_version=run.code_version,
        profile=run.profile,
        plan=rebuild_plan(old, steps, bodies, keep_keys=keep_keys) if run.planned else None,
        input=_body(bodies, spec.input_ref, "the run's input"),
        trigger=trigger,
        source=spec.source,
        priority=spec.priority,
        concurrency_key=run.concurrency_key,
        concurrency_mode=spec.concurrency_mode,  # type: ignore[arg-type]  # asserted above
        timeout_seconds=None if run.timeout_us is None else run.timeout_us / 1e6,
        wall_clock=spec.wall_clock,
        labels=spec.labels,
        metadata=spec.metadata,
        trace=run.trace,
        undo_of=spec.undo_of,
        budget=spec.budget,
        currency=spec.currency,
        compensate=spec.compensate,
        involved=join_people(spec.requester, spec.involved),
    )


def rebuild_plan(
    old: FinishedRun, steps: list[StepRow], bodies: dict[int, bytes], *, keep_keys: bool
) -> tuple[StepSpec, ...]:
    """These steps as a plan again; needs of steps that are not among them are dropped."""
    kept = {step.idx for step in steps}
    needs: dict[int, list[str]] = {idx: [] for idx in kept}
    for step in steps:
        for idx in step.dependents.split(",") if step.dependents else ():
            if int(idx) in kept:
                needs[int(idx)].append(step.name)
    strict = profiles.for_run(old.run.profile).strict_sequence
    plan = []
    for before, step in zip([None, *steps[:-1]], steps, strict=True):
        wanted = needs[step.idx]
        in_order = wanted == ([] if before is None else [before.name])
        plan.append(_spec_of(old, step, bodies, None if strict or in_order else tuple(wanted), keep_keys))
    return tuple(plan)


def _spec_of(
    old: FinishedRun, step: StepRow, bodies: dict[int, bytes], needs: tuple[str, ...] | None, keep_keys: bool
) -> StepSpec:
    made = f"{ids.run_text(old.run.id)}/{step.name}"
    own_input = step.input_ref is not None and step.input_ref != old.spec.input_ref
    gate = step.spec or "{}"
    template = step.template_ref is not None
    assert step.kind in ("work", "body", "approval", "wait")
    return StepSpec(
        name=step.name,
        kind=step.kind,  # type: ignore[arg-type]  # asserted above
        tool=step.tool,
        needs=needs,
        required=step.required,
        queue=step.queue,
        retries=step.max_attempts - 1,
        backoff=msgspec.json.decode(gate, type=BackoffSpec) if step.kind == "work" and step.spec else None,
        timeout_seconds=None if step.timeout_us is None else step.timeout_us / 1e6,
        lease_seconds=step.lease_us / 1e6,
        idempotency_key=step.idempotency_key if keep_keys or step.idempotency_key != made else "",
        input=_body(bodies, step.input_ref, f"step {step.name!r}") if own_input and not template else None,
        approval=msgspec.json.decode(gate, type=ApprovalSpec) if step.kind == "approval" else None,
        wait=msgspec.json.decode(gate, type=WaitSpec) if step.kind == "wait" else None,
        template=_body(bodies, step.template_ref, f"the template of step {step.name!r}"),
        condition=step.condition,
        skipped=step.resolution == "skip",
    )
