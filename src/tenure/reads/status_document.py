"""A run as agent-runs' status.json has it, field by field (its section 3): now, or as it was at an earlier event.

Laws:
1. The document has exactly the fields of the schema, null if they have no value; times are whole seconds, as in the document.
2. `error` is a code of the document's own map (its section 5.3) and a text. A code that the map does not have is shown as
   INTERNAL_ERROR, and repeated in the text.
3. `current_step` is the step that the run is at. For a finished run it is the step that failed, else the last one.
4. `steps_total` is the number of steps of the plan. It is null if there is no plan: before the run is planned, and for code, which does
   not say what it will do next.
5. A document of an earlier moment shows nothing that happened later. Rows keep the times of their changes, and an event has the status
   and the number of steps of its moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from tenure import ids
from tenure.clock import to_datetime
from tenure.kernel.run_rows import CLOSED_RUN
from tenure.reads.payloads import read_payload
from tenure.reads.steps import wait_label
from tenure.shapes.documents import StatusDocument
from tenure.store.port import Store
from tenure.store.publications import (
    FinishedStep,
    PublicationRepository,
    PublishedRun,
    RunRows,
)
from tenure.store.run_lists import RunGlance

PROFILE = "agent-runs"
MANUAL, CRON = "manual", "cron"
WORDS = ("requested", "queued", "running")
"""The states before the end, in order."""
NOW_US = 1 << 62
"""Later than every event."""
API_CODES = {
    "NLM_UNAVAILABLE": "NLM_UNAVAILABLE",
    "UPSTREAM_UNAVAILABLE": "UPSTREAM_UNAVAILABLE",
    "STORE_UNAVAILABLE": "UPSTREAM_UNAVAILABLE",
    "AGENT_TIMEOUT": "AGENT_TIMEOUT",
    "RUN_TIMED_OUT": "AGENT_TIMEOUT",
    "STEP_TIMED_OUT": "AGENT_TIMEOUT",
    "STEP_STALLED": "AGENT_TIMEOUT",
    "INTERNAL_ERROR": "INTERNAL_ERROR",
}
"""Why a run ended -> the code of the document's section 5.3."""
_TIMED_OUT = {
    "RUN_TIMED_OUT": "execution exceeded its limit",
    "STEP_TIMED_OUT": "a step exceeded its limit",
    "STEP_STALLED": "a step showed no progress for as long as it may",
}
_BAD_STEPS = frozenset({"failed", "timed_out"})


class RunMoment(msgspec.Struct, frozen=True):
    """What an event says about its run."""

    word: str
    """The status in the document's words."""
    steps: int
    """How many steps are completed."""
    at: int
    ended: bool


def passed_words(last: str, new: str) -> tuple[str, ...]:
    """The states between two states of a run, in order. One event may take several edges: a run is often created, queued and begun in one."""
    before = WORDS.index(last) + 1 if last in WORDS else 0
    if new == "completed":
        return WORDS[before:]
    if new in WORDS:
        return WORDS[before : WORDS.index(new)]
    return WORDS[before:1]


def trigger_word(trigger_type: str) -> str:
    """The document knows two triggers: a schedule, and people (through an API, a page, a command or another service)."""
    return CRON if trigger_type == "scheduled" else MANUAL


def format_error(run: PublishedRun, message: object) -> str | None:
    """The error of a run that has ended without success; `message` is its stored error."""
    if run.status == "succeeded":
        return None
    reason = run.reason or "INTERNAL_ERROR"
    code = API_CODES.get(reason, "INTERNAL_ERROR")
    if message is None and reason == "RUN_TIMED_OUT" and run.timeout_us:
        message = f"execution exceeded {run.timeout_us / 1e6:g}s limit"
    if message is None:
        message = _TIMED_OUT.get(reason)
    named = None if code == reason or reason in _TIMED_OUT else reason
    return ": ".join(str(part) for part in (code, named, message) if part is not None)


def list_completed(steps: Iterable[FinishedStep]) -> list[FinishedStep]:
    """The steps that count as completed, in the order in which they were."""
    done = [step for step in steps if step.state == ("done" if step.no else "succeeded")]
    return sorted(done, key=lambda step: (step.at, step.idx, step.no))


def build_status_document(
    run: PublishedRun, rows: RunRows, moment: RunMoment, *, current: str | None, message: object = None
) -> StatusDocument:
    """The document of a run at a moment. `current` is the current step of the document before, if nothing says more."""
    at = moment.at
    begun = run.started_at is not None and run.started_at <= at
    return StatusDocument(
        run_id=ids.run_text(run.id),
        agent_slug=run.workflow,
        status=moment.word,
        trigger=trigger_word(run.trigger_type),
        started_at=_second(run.started_at) if begun else None,
        finished_at=_second(run.finished_at) if moment.ended else None,
        current_step=_current(run, rows, moment) or current,
        steps_total=max(run.steps_total, moment.steps) if run.planned and not run.code_first else None,
        steps_completed=moment.steps,
        proposals_created=[
            ids.question_text("proposal", run.id, one.no)
            for one in rows.questions.get(run.id, ())
            if one.kind == "proposal" and one.requested_at <= at
        ],
        error=format_error(run, message) if moment.ended else None,
    )


def _second(us: int | None) -> datetime | None:
    return None if us is None else to_datetime(us).replace(microsecond=0)


def _current(run: PublishedRun, rows: RunRows, moment: RunMoment) -> str | None:
    """The step to show (law 3). For a code-first run it is the newest checkpoint: its body is not shown as a step."""
    at = moment.at
    known: Sequence[FinishedStep] = rows.steps.get(run.id, ())
    ended = sorted((step for step in known if not step.no and step.at <= at), key=lambda s: (s.at, s.idx))
    newest = max(
        (step for step in known if step.no and step.at <= at), key=lambda s: (s.no, s.at), default=None
    )
    if moment.ended:
        failed = next((step.name for step in ended if step.state in _BAD_STEPS), None)
        last = ended[-1] if ended else newest
        return failed or (None if last is None else last.name)
    for attempt in rows.attempts.get(run.id, ()):
        if attempt.granted_at <= at and (attempt.ended_at is None or attempt.ended_at > at):
            return attempt.name
    for question in rows.questions.get(run.id, ()):
        if (
            question.kind == "approval"
            and question.requested_at <= at
            and (question.decided_at is None or question.decided_at > at)
        ):
            return wait_label(question.label)
    if newest is not None and run.started_at is not None:
        return newest.name
    waiting = [(step.idx, step.name) for step in known if not step.no and step.at > at]
    if (unended := rows.open_steps.get(run.id)) is not None:
        waiting.append((unended.idx, unended.name))
    return min(waiting)[1] if waiting else None


async def read_status_document(store: Store, run: RunGlance, word: str) -> StatusDocument:
    """The document of a run as it is now; `word` is its status in the profile's words."""
    rows = await PublicationRepository(store).read_rows({run.id: 0})
    found = rows.runs[run.id]
    ended = found.status in CLOSED_RUN
    message = await read_payload(store, run.id, found.error_ref) if ended else None
    return build_status_document(
        found,
        rows,
        RunMoment(word, found.steps_done, NOW_US, ended),
        current=None,
        message=message,
    )
