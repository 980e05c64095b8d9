"""A run's life as people tell it: what began, what came of it, who answered, how it ended.

Law: made from the same views as everything else; a line per thing that happened to a step, in order of time.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from rich.table import Table

from tenure.cli.common.console import safe_text
from tenure.cli.runs.run_tables import SKIPPED, about, format_seconds, make_table, question_text

if TYPE_CHECKING:
    from tenure.shapes.events import Event
    from tenure.shapes.runs import Run
    from tenure.shapes.steps import FailedAttempt, Step

_STEERED = {
    "cancel": "cancellation requested",
    "pause": "paused",
    "unpause": "goes on",
    "seal": "sealed",
    "park": "parked: no worker's code fits",
}

_TRIED = ("failed", "lost")


class RunTimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the story."""

    at: datetime
    what: str
    """The step's name, or `run`."""
    state: str
    attempt: int = 0
    seconds: float | None = None
    by: str = ""
    about: str = ""


def build_timeline(
    run: Run, steps: list[Step], events: list[Event], tries: Iterable[FailedAttempt] = ()
) -> list[RunTimelineEntry]:
    """See the law above."""
    told = [
        RunTimelineEntry(at=run.created_at, what="run", state="created", by=run.requester, about=run.workflow)
    ]
    for step in steps:
        if step.kind != "value":
            told += _of(step)
    for one in tries:
        told.append(
            RunTimelineEntry(
                at=one.at, what=one.step, state=one.state, attempt=one.attempt, by=one.worker, about=one.text
            )
        )
    for event in events:
        if event.kind in _STEERED:
            told.append(RunTimelineEntry(at=event.at, what="run", state=_STEERED[event.kind], by=event.actor))
        elif event.kind == "decide_approval" and not event.edges:
            told.append(RunTimelineEntry(at=event.at, what="approval", state="one more yes", by=event.actor))
    if run.finished_at is not None:
        said = "" if run.reason in (None, "done") else str(run.reason)
        told.append(
            RunTimelineEntry(
                at=run.finished_at, what="run", state=run.status, seconds=run.seconds, about=said
            )
        )
    first, last = told[0], told[-1] if run.finished_at is not None else None
    return sorted(told, key=lambda line: (line.at, 0 if line is first else 2 if line is last else 1))


def _of(step: Step) -> list[RunTimelineEntry]:
    """A wait and a child have a beginning and an end; of everything else the end is enough, once there is one."""
    told = []
    at, attempt = step.finished_at or step.started_at or step.retry_at, step.attempt
    if at is None:
        return []
    person = step.worker or "" if step.kind in ("approval", "proposal") else ""
    if step.kind in ("approval", "proposal", "wait", "child", "sleep") and step.started_at is not None:
        begun = {"approval": "asked", "proposal": "proposed", "child": "started"}.get(step.kind, "waits")
        told.append(
            RunTimelineEntry(
                at=step.started_at, what=step.name, state=begun, about=step.child or question_text(step)
            )
        )
        if step.finished_at is None or step.finished_at == step.started_at:
            return told
    state = (
        SKIPPED
        if step.skipped
        else step.state
        if step.reason in (None, "done") or step.kind in ("work", "checkpoint")
        else step.reason
    )
    told.append(
        RunTimelineEntry(
            at=at,
            what=step.name,
            state=str(state),
            attempt=attempt,
            seconds=step.seconds,
            by=person or _worker(step),
            about="" if step.kind == "child" else _came(step).removeprefix(f"by {person}").removeprefix(": "),
        )
    )
    return told


def _worker(step: Step) -> str:
    """Who did it: the worker, and the agent it did it as."""
    worker = step.worker or ""
    return f"{step.agent} ({worker})" if step.agent and worker else step.agent or worker


def _came(step: Step) -> str:
    """What came of it; the tries before have lines of their own."""
    return about(msgspec.structs.replace(step, last_failure=None))


def timeline_table(told: list[RunTimelineEntry]) -> Table:
    """The story; times count from the beginning."""
    made = make_table("after", "what", "state", "try", "took", "by", "about")
    made.columns[0].justify = "right"
    start = told[0].at if told else None
    for line in told:
        assert start is not None
        made.add_row(
            format_seconds((line.at - start).total_seconds()),
            safe_text(line.what),
            line.state,
            str(line.attempt) if line.attempt > 1 or line.state in _TRIED else "",
            format_seconds(line.seconds),
            safe_text(line.by),
            safe_text(line.about),
        )
    return made
