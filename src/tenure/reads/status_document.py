"""A run as agent-runs' status.json has it, field by field (its section 3).

Laws:
1. Every field is present, and null if it has no value; times are whole seconds, as in the document. Runs that have skipped a
   step also have `steps_skipped`, and runs with earlier results `steps_reused`, which the document does not define.
2. `error` is a code of the document's own map (its section 5.3) and a text. A code that the map does not have is shown as
   INTERNAL_ERROR, and repeated in the text.
3. `current_step` is the step that the run is at. For a finished run it is the step that failed, else the last one.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from tenure import ids
from tenure.clock import to_datetime
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import CONDITION_FALSE, AttemptRow, CheckpointRow, RunSpecRow, StepRow
from tenure.reads.payloads import read_payload
from tenure.reads.steps import read_shown_steps, reused_result, wait_label
from tenure.shapes.documents import ReusedStepDocument, SkippedStepDocument, StatusDocument
from tenure.store.approvals import ApprovalDetail
from tenure.store.port import Store
from tenure.store.run_lists import RunGlance
from tenure.store.transactions import read_first

PROFILE = "agent-runs"
_TRIGGERS = {"api": "manual", "ui": "manual", "cli": "manual", "scheduled": "cron"}
"""Our trigger -> the document's word; any other trigger keeps our word."""
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
    """The document of a run; `word` is its status in the profile's words."""
    spec = await read_first(store, RunSpecRow, "get_spec", run.id)
    steps = await read_shown_steps(store, run.id)
    checkpoints: list[CheckpointRow] = await store.read("checkpoints_of", run.id)
    attempts: list[AttemptRow] = await store.read("attempts_of", run.id)
    asked: list[ApprovalDetail] = await store.read("approval_details_of", run.id)
    return StatusDocument(
        run_id=ids.run_text(run.id),
        agent_slug=run.workflow,
        status=word,
        trigger="manual" if spec is None else _TRIGGERS.get(spec.trigger_type, spec.trigger_type),
        started_at=_second(run.started_at),
        finished_at=_second(run.finished_at),
        current_step=_current(run, steps, checkpoints, attempts, asked),
        steps_total=max(sum(step.kind != "body" for step in steps) + len(checkpoints), run.steps_done),
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
        steps_reused=[
            ReusedStepDocument(name=step.name, run=found.run, step=found.step)
            for step in steps
            if (found := reused_result(step)) is not None
        ]
        or msgspec.UNSET,
    )


def _second(us: int | None) -> datetime | None:
    return None if us is None else to_datetime(us).replace(microsecond=0)


def _current(
    run: RunGlance,
    steps: list[StepRow],
    checkpoints: list[CheckpointRow],
    attempts: list[AttemptRow],
    asked: list[ApprovalDetail],
) -> str | None:
    """The step to show (law 3). For a code-first run it is the newest checkpoint: its body is not shown as a step."""
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
    if run.finished_at is None or run.status == "succeeded":
        return None
    reason = run.reason or "INTERNAL_ERROR"
    code = _ERRORS.get(reason, "INTERNAL_ERROR")
    message = await read_payload(store, run.id, run.error_ref)
    if message is None:
        message = _TIMED_OUT.get(reason)
    named = None if code == reason or reason in _TIMED_OUT else reason
    return ": ".join(str(part) for part in (code, named, message) if part is not None)
