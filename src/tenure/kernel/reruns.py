"""Resumes and reruns of finished runs: the commands that create them, built from the rows of the old run.

Laws:
1. A resumed run continues: it leaves out the steps that succeeded and trims the needs of the others. Its first step gets
   the resumable checkpoints with their outputs. Idempotency keys of steps stay the same, so that an effect that has
   happened is recognised.
2. A resumed run does not begin again what can be neither skipped nor repeated. For each such checkpoint the caller says
   that it happened (with its result), or that it may be repeated.
   No step of it has `reuse`: a needed step of the old run could be missing in its key.
3. A rerun starts from the beginning: the same plan with new keys, nothing reused, `attempt_no` + 1, linked to the old run.
   A run that was planned by a plan step is planned anew. A resumed run has the old plan, unless there was none.
4. Neither has the idempotency key, parent or delay of the old run. The people involved in the old run are involved in
   the new one.
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
    """Create a run that continues where the old one ended. `happened` (checkpoint -> result) and `repeat` decide about
    unsafe checkpoints (law 2)."""
    run, spec = old.run, old.spec
    _check_finished(run)
    if run.status == "succeeded":
        raise TenureError("RUN_TERMINAL_STATE", "the run succeeded: there is nothing to resume, rerun it")
    bodies = {p.ref: p.body for p in old.payloads}
    left = [step for step in old.steps if step.state != "succeeded"]
    if not left:
        raise TenureError("RUN_TERMINAL_STATE", "every step succeeded: there is nothing to resume, rerun it")
    _check_unsafe_checkpoints(old, left, happened, repeat)
    reuse = reusable_checkpoints(old.checkpoints, left[0].idx, bodies, happened)
    request = msgspec.structs.replace(
        _repeat_request(old, left, bodies, context, keep_keys=True),
        resumed_from=run.id,
        resume_count=spec.resume_count + 1,
        rerun_of=spec.rerun_of,
        attempt_no=spec.attempt_no,
        reuse=reuse,
    )
    return build_create_run(request, run_id=run_id, tenant=run.tenant, workspace=run.workspace)


def build_rerun(old: FinishedRun, first: FinishedRun, run_id: int, context: Context) -> CreateRun:
    """Create a run of the whole plan. `first` is the run that `old` was resumed from; without a resume it is `old`."""
    _check_finished(old.run)
    request = msgspec.structs.replace(
        _repeat_request(
            first,
            [step for step in first.steps if step.kind == "plan"] or first.steps,
            {p.ref: p.body for p in first.payloads},
            context,
            keep_keys=False,
        ),
        labels=old.spec.labels,
        metadata=old.spec.metadata,
        involved=join_people(
            first.spec.requester, first.spec.involved, old.spec.requester, old.spec.involved
        ),
        rerun_of=old.run.id,
        attempt_no=old.spec.attempt_no + 1,
    )
    return build_create_run(request, run_id=run_id, tenant=first.run.tenant, workspace=first.run.workspace)


def _check_finished(run: RunRow) -> None:
    if run.status not in CLOSED_RUN:
        raise TenureError(
            "RUN_INVALID_TRANSITION", f"the run is {run.status}: only a finished run can be resumed or rerun"
        )


def _check_unsafe_checkpoints(
    old: FinishedRun, left: list[StepRow], happened: Mapping[str, bytes | None], repeat: Collection[str]
) -> None:
    """Refuse steps that may have happened and for which the caller has not decided (law 2)."""
    step_of = {step.idx: step for step in left}
    open_marks = [row for row in old.checkpoints if row.unsafe and row.idx in step_of]
    for row in open_marks:
        # Only the first step gets reused checkpoints, so another step could not skip it.
        if row.name in repeat or (row.name in happened and row.idx == left[0].idx):
            continue
        how = (
            "has started, and its outcome is not known"
            if row.state == "started"
            else "is done and cannot be reused"
        )
        raise TenureError(
            "RUN_RESUME_FAILED",
            f"checkpoint {row.name!r} of step {step_of[row.idx].name!r} {how}: find out whether it happened",
            checkpoint=row.name,
        )
    unknown = {*happened, *repeat} - {row.name for row in open_marks}
    if unknown:
        raise TenureError(
            "INVALID_INPUT", f"checkpoint {min(unknown)!r} needs no decision: name only unsafe checkpoints"
        )


def reusable_checkpoints(
    checkpoints: Iterable[CheckpointRow],
    idx: int,
    bodies: dict[int, bytes],
    happened: Mapping[str, bytes | None] = MappingProxyType({}),
) -> tuple[ReusedCheckpoint, ...]:
    """The resumable checkpoints of a step, and those in `happened`, in the order of recording."""
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


def _repeat_request(
    old: FinishedRun, steps: list[StepRow], bodies: dict[int, bytes], context: Context, *, keep_keys: bool
) -> RunRequest:
    run, spec = old.run, old.spec
    trigger = {"type": spec.trigger_type, "ref": spec.trigger_ref, "repo": run.repo}
    return RunRequest(
        context=context,
        workflow=run.workflow,
        code_version=run.code_version,
        profile=run.profile,
        plan=rebuild_plan(old, steps, bodies, keep_keys=keep_keys),
        input=_body(bodies, spec.input_ref, "the run's input"),
        trigger=msgspec.convert(trigger, Trigger),
        source=spec.source,
        priority=spec.priority,
        concurrency_key=run.concurrency_key,
        concurrency_mode="supersede" if spec.concurrency_mode == "supersede" else "queue",
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
        vcs_target=spec.vcs_target,
    )


def rebuild_plan(
    old: FinishedRun, steps: list[StepRow], bodies: dict[int, bytes], *, keep_keys: bool
) -> tuple[StepSpec, ...]:
    """A plan of these steps, without the needs of other steps."""
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
    assert step.kind in ("work", "body", "approval", "wait", "plan")
    return StepSpec(
        name=step.name,
        kind=step.kind,  # type: ignore[arg-type]  # asserted above
        tool=step.tool,
        needs=needs,
        required=step.required,
        queue=step.queue,
        retries=step.max_attempts - 1,
        backoff=msgspec.json.decode(gate, type=BackoffSpec)
        if step.kind in ("work", "plan") and step.spec
        else None,
        timeout_seconds=None if step.timeout_us is None else step.timeout_us / 1e6,
        lease_seconds=step.lease_us / 1e6,
        idempotency_key=step.idempotency_key if keep_keys or step.idempotency_key != made else "",
        input=_body(bodies, step.input_ref, f"step {step.name!r}")
        if own_input and step.template_ref is None
        else None,
        approval=msgspec.json.decode(gate, type=ApprovalSpec) if step.kind == "approval" else None,
        wait=msgspec.json.decode(gate, type=WaitSpec) if step.kind == "wait" else None,
        template=_body(bodies, step.template_ref, f"the template of step {step.name!r}"),
        condition=step.condition,
        skipped=step.resolution == "skip",
    )
