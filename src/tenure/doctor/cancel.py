"""Cancellation, deadlines, tenancy and limits: I47 to I50, I54 and I55."""

from __future__ import annotations

from collections.abc import Iterator

from tenure import limits
from tenure.clock import us
from tenure.doctor.checked_run import CheckedRun, describe
from tenure.doctor.invariants import Finding, checks
from tenure.doctor.leases import SWEEP_BOUND_US
from tenure.doctor.runs import CLAIMS
from tenure.kernel import profiles
from tenure.kernel.act_rows import ReceiptRow, VerdictRow
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import (
    CLOSED_RUN,
    CLOSED_STEP,
    ApprovalRow,
    AttemptRow,
    CheckpointRow,
    ChildRow,
    StepRow,
    WaitRow,
)


@checks("I47")
def no_lease_after_cancel(view: CheckedRun) -> Iterator[Finding]:
    """After a cancel request, no step of the run is claimed or can be claimed."""
    if view.run.cancel_at is None:
        return
    canceled = view.canceled_seq
    for taken in view.taken:
        if taken.move in CLAIMS and canceled is not None and taken.seq > canceled:
            yield f"event {taken.seq}", f"step {taken.idx} was claimed after the cancel in event {canceled}"
    for step in view.bundle.steps:
        if step.claimable:
            yield describe(step), "can be claimed although the run is canceling"


@checks("I48")
def leaseless_steps_end_at_once(view: CheckedRun) -> Iterator[Finding]:
    """After the commit of a cancel request, only steps with a live lease are open."""
    canceled = view.canceled_seq
    if canceled is None:
        return
    state: dict[int, str] = {}
    for event, body in view.bodies:
        if event.seq > canceled:
            break
        for key in body.get("set", {}).get("step", {}):
            state.setdefault(int(key), "pending")
    for taken in view.taken:
        if taken.seq > canceled:
            break
        if taken.idx is not None:
            for machine, _, target, _ in taken.edges:
                if machine == "step":
                    state[taken.idx] = target
    for idx, was in state.items():
        if was not in CLOSED_STEP and was != "canceling":
            yield f"event {canceled}", f"step {idx} was {was} after the cancel request"


@checks("I49")
def deadlines_are_kept(view: CheckedRun) -> Iterator[Finding]:
    """In a system that has settled, nothing is open long after its deadline."""
    now, run = view.now, view.run
    if not view.settled or now is None or run.status in CLOSED_RUN:
        return
    late = now - SWEEP_BOUND_US
    profile = profiles.find(run.profile)  # without the profile, the time that a cancel may take is unknown
    if (
        run.cancel_at is not None
        and profile is not None
        and run.cancel_at + us(profile.timing.cancel_grace_seconds) < late
    ):
        yield "run", f"was canceled at {run.cancel_at} and is still {run.status}"
    if run.deadline_at is not None and run.human_since is None and run.deadline_at < late:
        yield "run", f"passed its deadline at {run.deadline_at} and is still {run.status}"
    for attempt in view.bundle.attempts:
        if attempt.lease in LIVE_LEASE and attempt.timeout_at is not None and attempt.timeout_at < late:
            yield describe(attempt), f"timed out at {attempt.timeout_at} and is still {attempt.state}"
    for wait in view.bundle.waits:
        if wait.state == "open" and wait.expires_at is not None and wait.expires_at < late:
            yield describe(wait), f"expired at {wait.expires_at} and is still open"


@checks("I50")
def tenants_agree(view: CheckedRun) -> Iterator[Finding]:
    """Every row has the tenant of its run, and steps have its workspace and workflow. Every row that names a step names one of the run."""
    run, bundle = view.run, view.bundle
    if view.spec is not None and view.spec.tenant != run.tenant:
        yield "run_spec", f"belongs to {view.spec.tenant}, its run to {run.tenant}"
    owned: list[StepRow | AttemptRow | ApprovalRow | VerdictRow | ReceiptRow] = [
        *bundle.steps,
        *bundle.attempts,
        *bundle.approvals,
        *bundle.verdicts,
        *bundle.receipts,
    ]
    for row in owned:
        if row.tenant != run.tenant:
            yield describe(row), f"belongs to {row.tenant}, its run to {run.tenant}"
    for step in bundle.steps:
        if step.workspace != run.workspace or step.workflow != run.workflow:
            yield (
                describe(step),
                f"is in {step.workspace}/{step.workflow}, its run in {run.workspace}/{run.workflow}",
            )
    named: list[WaitRow | CheckpointRow | ChildRow] = [*bundle.waits, *bundle.checkpoints, *bundle.children]
    for below in named:
        if below.idx not in view.steps:
            yield describe(below), f"names step {below.idx}, which the run does not have"


@checks("I54")
def within_limits(view: CheckedRun) -> Iterator[Finding]:
    """Payloads, metadata and the numbers of rows are within the limits of `limits.py`."""
    for payload in view.bundle.payloads:
        if len(payload.body) > limits.PAYLOAD_BYTES_MAX:
            yield (
                f"payload {payload.ref}",
                f"has {len(payload.body)} bytes; the limit is {limits.PAYLOAD_BYTES_MAX}",
            )
    if view.spec is not None:
        for name in ("labels", "metadata"):
            size = len(getattr(view.spec, name))
            if size > limits.METADATA_BYTES_MAX:
                yield "run_spec", f"{name} has {size} bytes; the limit is {limits.METADATA_BYTES_MAX}"
    bundle = view.bundle
    for what, rows, most in (
        ("steps", len(view.counted), limits.STEPS_PER_RUN_MAX),
        ("checkpoints", len(bundle.checkpoints), limits.CHECKPOINTS_PER_RUN_MAX),
        ("open waits", view.run.waits_open, limits.OPEN_WAITS_PER_RUN_MAX),
        ("buffered events", view.run.inbox_buffered, limits.EVENTS_BUFFERED_PER_RUN_MAX),
        ("event ids", len(bundle.inbox), limits.EVENT_IDS_PER_RUN_MAX),
        ("open children", view.run.children_open, limits.CHILDREN_PER_RUN_MAX),
    ):
        if rows > most:
            yield "run", f"has {rows} {what}; the limit is {most}"


@checks("I55")
def everything_ends_or_waits(view: CheckedRun) -> Iterator[Finding]:
    """In a system that has settled, an open run waits for a named person, event or time."""
    run = view.run
    if not view.settled or run.status in CLOSED_RUN or run.paused or run.parked is not None:
        return
    waits_for_admission = run.planned and run.admitted_at is None
    if not waits_for_admission and run.status not in ("waiting_approval", "waiting_external", "retry_wait"):
        yield "run", f"is {run.status} and waits for no person, event or time"
