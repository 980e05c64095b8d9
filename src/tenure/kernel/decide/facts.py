"""Facts that are not states: paused, reported, sealed, labels, metadata, involved people. Also deletion."""

from __future__ import annotations

import msgspec

from tenure.errors import TenureError
from tenure.kernel import history
from tenure.kernel.commands import (
    AttestReported,
    DeleteRun,
    InvolvePeople,
    MarkReported,
    Pause,
    SealRun,
    Unpause,
    UpdateMetadata,
)
from tenure.kernel.decide.termination import check_run_open, finish_decision
from tenure.kernel.decide.validation import metadata_problems
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.run_rows import CLOSED_RUN
from tenure.kernel.separation_of_duties import add_involved_people
from tenure.kernel.state_machine import REPORTER


def _check_finished(d: Draft, rule: str) -> None:
    if d.run.status not in CLOSED_RUN:
        raise TenureError("RUN_INVALID_TRANSITION", f"the run is {d.run.status}: {rule}")


def pause(d: Draft, _c: Pause) -> Decision:
    check_run_open(d)
    if d.run.paused:
        return Decision({"paused": True, "again": True})
    d.edit_run().paused = True
    for step in d.open_steps() if d.run.steps_ready or not d.run.planned else ():
        if step.claimable:
            d.edit(step).claimable = False
    return finish_decision(d, {"paused": True, "again": False}, "pause")


def unpause(d: Draft, _c: Unpause) -> Decision:
    check_run_open(d)
    if not d.run.paused and d.run.parked is None:
        return Decision({"paused": False, "again": True})
    run = d.edit_run()
    run.paused = False
    run.parked = None
    if run.cancel_at is None:
        for step in d.open_steps() if run.steps_ready or not run.planned else ():
            if step.state == "ready" and not step.claimable and step.resolution != "due":
                d.edit(step).claimable = True
                d.ready = True
    return finish_decision(d, {"paused": False, "again": False}, "unpause")


def mark_reported(d: Draft, c: MarkReported) -> Decision:
    if c.context.initiator != "system":
        raise TenureError(
            "FORBIDDEN", f"only the status reporter marks a run as reported, not {c.context.actor!r}"
        )
    _check_finished(d, "there is no outcome to report yet")
    if d.spec().vcs_target != c.target:
        raise TenureError(
            "FORBIDDEN",
            f"the run is reported to {d.spec().vcs_target or 'nobody'}, not to {c.target or 'nobody'}",
        )
    if d.run.reported_at is not None:
        return Decision({"again": True})
    d.edit_run().reported_at = d.now
    d.notes["reported"] = {"owner": REPORTER}
    return d.decision({"again": False}, "reported")


def attest_reported(d: Draft, c: AttestReported) -> Decision:
    _check_finished(d, "there is no outcome to report yet")
    spec = d.spec()
    again = spec.reported_stated_at is not None
    if not again:
        spec = d.edit(spec)
        spec.reported_stated_by, spec.reported_stated_at = c.context.actor, d.now
    stated = {"again": again, "by": spec.reported_stated_by, "at": spec.reported_stated_at}
    return Decision(stated) if again else d.decision(stated, "report_stated")


def seal(d: Draft, c: SealRun) -> Decision:
    """Seal the history up to now. Evidence that lacks the newest events is refused (RUN_MOVED_ON)."""
    _check_finished(d, "only a finished run is sealed")
    if d.run.sealed_at is not None:
        return Decision({"again": True})
    if c.parts:
        last = c.parts[-1]
        if (last.events, last.head) != (d.run.version, d.run.head.hex()):
            raise TenureError(
                "RUN_MOVED_ON",
                f"the evidence covers {last.events} events, but the history has {d.run.version}: collect it again",
            )
        d.notes["evidence"] = [[part.no, part.events, part.head, part.sha256] for part in c.parts]
    d.edit_run().sealed_at = d.now
    return d.decision({"again": False}, "sealed")


def update_metadata(d: Draft, c: UpdateMetadata) -> Decision:
    spec = d.edit(d.spec())
    for name, text in (("labels", c.labels), ("metadata", c.metadata)):
        if text is None:
            continue
        new = _merged(getattr(spec, name), text) if c.merge else text
        for problem in metadata_problems(name, new):
            raise TenureError("INVALID_INPUT", problem.problem, (problem,))
        setattr(spec, name, new)
    add_involved_people(d, c.context, c.involved)
    spec.salt = d.chance.salt()
    d.notes["about"] = history.digest(spec.salt, (spec.labels + spec.metadata).encode())
    return d.decision({"labels": spec.labels, "metadata": spec.metadata}, "metadata")


def _merged(old: str, changes: str) -> str:
    """A JSON object with some fields changed. Fields that are null are removed."""
    named = {**msgspec.json.decode(old), **msgspec.json.decode(changes)}
    return msgspec.json.encode({name: value for name, value in named.items() if value is not None}).decode()


def involve_people(d: Draft, c: InvolvePeople) -> Decision:
    before = d.spec().involved
    add_involved_people(d, c.context, c.involved)
    if d.spec().involved == before:
        return Decision({"again": True})
    return d.decision({"again": False}, "involve")


def delete(d: Draft, _c: DeleteRun) -> Decision:
    _check_finished(d, "only a finished run is deleted")
    if d.run.sealed_at is None:
        raise TenureError("RUN_NOT_SEALED", "the run's history is not sealed yet")
    return Decision({"deleted": True}, deleted=True)
