"""A run as agent-runs' status.json has it, field by field (its section 3).

Laws:
1. Every field is there, null where it has no value; times are whole seconds, as in the document. Beyond it there is
   `steps_skipped`, in runs that have skipped a step.
2. `error` is a code of the document's own map (its section 5.3) and words: codes it does not know are INTERNAL_ERROR, and are
   repeated in the words.
3. `current_step` is where the run is; of a finished one where it was last: the step that failed, else its last one.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from tenure import ids
from tenure.clock import to_datetime
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import CONDITION_FALSE, AttemptRow, CheckpointRow, PayloadRow, RunSpecRow, StepRow
from tenure.reads.payloads import decode_payload
from tenure.reads.steps import wait_label
from tenure.shapes.documents import SkippedStepDocument, StatusDocument
from tenure.store.approvals import ApprovalDetail
from tenure.store.port import Store
from tenure.store.run_lists import RunGlance

PROFILE = "agent-runs"
_TRIGGERS = {"api": "manual", "ui": "manual", "cli": "manual", "scheduled": "cron"}
"""The document's words for what set a run off; the others are ours."""
_ERRORS = {
    "NLM_UNAVAILABLE": "NLM_UNAVAILABLE",
    "UPSTREAM_UNAVAILABLE": "UPSTREAM_UNAVAILABLE",
    "STORE_UNAVAILABLE": "UPSTREAM_UNAVAILABLE",
    "AGENT_TIMEOUT": "AGENT_TIMEOUT",
    "RUN_TIMED_OUT": "AGENT_TIMEOUT",
    "STEP_TIMED_OUT": "AGENT_TIMEOUT",
    "STEP_STALLED": "AGENT_TIMEOUT",
    "INTERNAL_ERROR": "INTERNAL_ERROR",
}
_TIMED_OUT = {
    "RUN_TIMED_OUT": "execution exceeded its limit",
    "STEP_TIMED_OUT": "a step exceeded its limit",
    "STEP_STALLED": "a step showed no progress for as long as it may",
}


async def read_status_document(store: Store, run: RunGlance, word: str) -> StatusDocument:
    """The document of a run whose status is this word of the profile."""
    [spec] = await store.read("get_spec", run.id) or [None]
    steps: list[StepRow] = await store.read("steps_of", run.id)
    checkpoints: list[CheckpointRow] = await store.read("checkpoints_of", run.id)
    attempts: list[AttemptRow] = await store.read("attempts_of", run.id)
    asked: list[ApprovalDetail] = await store.read("approval_details_of", run.id)
    seen = sum(step.kind != "body" for step in steps) + len(checkpoints)
    return StatusDocument(
        run_id=ids.run_text(run.id),
        agent_slug=run.workflow,
        status=word,
        trigger=_trigger(spec),
        started_at=_second(run.started_at),
        finished_at=_second(run.finished_at),
        current_step=_current(run, steps, checkpoints, attempts, asked),
        steps_total=max(seen, run.steps_done),
        steps_completed=run.steps_done,
        proposals_created=[
            ids.question_text("proposal", run.id, one.no) for one in asked if one.kind == "proposal"
        ],
        error=await _error(store, run),
        steps_skipped=[
            SkippedStepDocument(name=step.name, reason=CONDITION_FALSE, condition=step.condition)
            for step in steps
            if step.reason == CONDITION_FALSE
        ]
        or msgspec.UNSET,
    )


def _second(us: int | None) -> datetime | None:
    return None if us is None else to_datetime(us).replace(microsecond=0)


def _trigger(spec: RunSpecRow | None) -> str:
    return "manual" if spec is None else _TRIGGERS.get(spec.trigger_type, spec.trigger_type)


def _current(
    run: RunGlance,
    steps: list[StepRow],
    checkpoints: list[CheckpointRow],
    attempts: list[AttemptRow],
    asked: list[ApprovalDetail],
) -> str | None:
    """See law 3. The body of a code-first run is no step that people know: its newest line is."""
    known = [step for step in steps if step.kind != "body"]
    newest = max(checkpoints, key=lambda row: (row.no, row.at), default=None)
    line = None if newest is None else newest.name
    if run.finished_at is not None:
        failed = next((s.name for s in known if s.state in ("failed", "timed_out")), None)
        ended = max(
            (s for s in known if s.finished_at), key=lambda s: (s.finished_at or 0, s.idx), default=None
        )
        return failed or (line if ended is None else ended.name)
    live = {attempt.idx for attempt in attempts if attempt.lease in LIVE_LEASE}
    at_work = next((step.name for step in known if step.idx in live), None)
    waiting = next(
        (wait_label(q.label) for q in asked if q.status == "requested" and q.kind == "approval"), None
    )
    begun = next((step.name for step in known if step.finished_at is None), None)
    return at_work or waiting or (line if run.started_at is not None else None) or begun


async def _error(store: Store, run: RunGlance) -> str | None:
    """See law 2."""
    if run.finished_at is None or run.status == "succeeded":
        return None
    reason = run.reason or "INTERNAL_ERROR"
    code = _ERRORS.get(reason, "INTERNAL_ERROR")
    found: list[PayloadRow] = (
        [] if run.error_ref is None else await store.read("payload", run.id, run.error_ref)
    )
    said = decode_payload(found[0].body) if found else None
    words = [] if code == reason or reason in _TIMED_OUT else [reason]
    words += [str(said)] if said is not None else [_TIMED_OUT[reason]] if reason in _TIMED_OUT else []
    return ": ".join([code, *words]) if words else code
