"""Cancel, time, tenancy, limits: I47 to I50, I54 and I55."""

from __future__ import annotations

from collections.abc import Iterator

from tenure import limits
from tenure.clock import us
from tenure.doctor.checked_run import CheckedRun
from tenure.doctor.invariants import Finding, checks
from tenure.doctor.leases import SWEEP_BOUND_US
from tenure.doctor.runs import CLAIMS
from tenure.doctor.states import describe_attempt, describe_step
from tenure.kernel import profiles
from tenure.kernel.act_rows import ReceiptRow, VerdictRow
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import CLOSED_RUN, CLOSED_STEP


@checks("I47")
def no_lease_after_cancel(view: CheckedRun) -> Iterator[Finding]:
    """Once the cancel was requested, no step of the run is claimed or can be."""
    if view.run.cancel_at is None:
        return
    canceled = view.canceled_seq
    for taken in view.taken:
        if taken.move in CLAIMS and canceled is not None and taken.seq > canceled:
            yield f"event {taken.seq}", f"step {taken.idx} was claimed after the cancel in event {canceled}"
    for step in view.bundle.steps:
        if step.claimable:
            yield describe_step(step), "can be claimed although the run is canceling"


@checks("I48")
def leaseless_steps_end_at_once(view: CheckedRun) -> Iterator[Finding]:
    """The commit that requests the cancel leaves only steps with a live lease open."""
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
    """Once the system has settled, nothing is open long after its deadline."""
    now, run = view.now, view.run
    if not view.settled or now is None or run.status in CLOSED_RUN:
        return
    late = now - SWEEP_BOUND_US
    profile = profiles.find(run.profile)  # how long a cancel may take is known only to who has it
    if run.cancel_at is not None and profile is not None:
        grace = us(profile.timing.cancel_grace_seconds)
        if run.cancel_at + grace < late:
            yield "run", f"was canceled at {run.cancel_at} and is still {run.status}"
    if run.deadline_at is not None and run.human_since is None and run.deadline_at < late:
        yield "run", f"passed its deadline at {run.deadline_at} and is still {run.status}"
    for attempt in view.bundle.attempts:
        if attempt.lease in LIVE_LEASE and attempt.timeout_at is not None and attempt.timeout_at < late:
            yield describe_attempt(attempt), f"timed out at {attempt.timeout_at} and is still {attempt.state}"
    for wait in view.bundle.waits:
        if wait.state == "open" and wait.expires_at is not None and wait.expires_at < late:
            yield f"wait {wait.no}", f"expired at {wait.expires_at} and is still open"


@checks("I50")
def tenants_agree(view: CheckedRun) -> Iterator[Finding]:
    """Every copy of the tenant beneath a run is the run's; so are the copies that claims go by."""
    run, bundle = view.run, view.bundle
    if view.spec is not None and view.spec.tenant != run.tenant:
        yield "run_spec", f"belongs to {view.spec.tenant}, its run to {run.tenant}"
    for step in bundle.steps:
        if step.tenant != run.tenant:
            yield describe_step(step), f"belongs to {step.tenant}, its run to {run.tenant}"
        elif step.workspace != run.workspace or step.workflow != run.workflow:
            yield (
                describe_step(step),
                f"is in {step.workspace}/{step.workflow}, its run in {run.workspace}/{run.workflow}",
            )
    for attempt in bundle.attempts:
        if attempt.tenant != run.tenant:
            yield describe_attempt(attempt), f"belongs to {attempt.tenant}, its run to {run.tenant}"
    for approval in bundle.approvals:
        if approval.tenant != run.tenant:
            yield f"approval {approval.no}", f"belongs to {approval.tenant}, its run to {run.tenant}"
    governed: list[VerdictRow | ReceiptRow] = [*bundle.verdicts, *bundle.receipts]
    for row in governed:
        if row.tenant != run.tenant:
            yield f"{row.table} {row.no}", f"belongs to {row.tenant}, its run to {run.tenant}"
    yield from _strangers(view)


def _strangers(view: CheckedRun) -> Iterator[Finding]:
    """Rows that name a step the run does not have."""
    steps, bundle = view.steps, view.bundle
    for wait in bundle.waits:
        if wait.idx not in steps:
            yield f"wait {wait.no}", f"names step {wait.idx}, which the run does not have"
    for row in bundle.checkpoints:
        if row.idx not in steps:
            yield f"checkpoint {row.idx}/{row.name}", f"names step {row.idx}, which the run does not have"
    for child in bundle.children:
        if child.idx not in steps:
            yield f"child {child.child_id}", f"names step {child.idx}, which the run does not have"


@checks("I54")
def within_limits(view: CheckedRun) -> Iterator[Finding]:
    """Payloads, metadata and the numbers of things are within `limits.py`."""
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
        ("steps", len(bundle.steps), limits.STEPS_PER_RUN_MAX),
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
    """Once the system has settled, an open run waits for a named person, event or time."""
    run = view.run
    if not view.settled or run.status in CLOSED_RUN or run.paused or run.parked is not None:
        return
    if run.planned and run.admitted_at is None:
        return  # for its moment, or for the run that holds its key
    if run.status in ("waiting_approval", "waiting_external", "retry_wait"):
        return
    yield "run", f"is {run.status} and waits for no person, event or time"
