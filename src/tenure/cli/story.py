"""A run's life as people tell it: what began, what came of it, who answered, how it ended.

Law: made from the same views as everything else; a line per thing that happened to a step, in order of time.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from rich.table import Table

from tenure.cli.console import shown
from tenure.cli.runs_show import about, asked, lasted, table

if TYPE_CHECKING:
    from tenure.orchestrator.views import EventView, RunView, StepView

_STEERED = {
    "cancel": "cancellation requested",
    "pause": "paused",
    "unpause": "goes on",
    "seal": "sealed",
    "park": "parked: no worker's code fits",
}


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the story."""

    at: datetime
    what: str
    """The step's name, or `run`."""
    state: str
    attempt: int = 0
    seconds: float | None = None
    by: str = ""
    about: str = ""


def story(run: RunView, steps: list[StepView], events: list[EventView]) -> list[Told]:
    """See the law above."""
    told = [Told(at=run.created_at, what="run", state="created", by=run.requester, about=run.workflow)]
    for step in steps:
        if step.kind != "value":
            told += _of(step)
    for event in events:
        if event.kind in _STEERED:
            told.append(Told(at=event.at, what="run", state=_STEERED[event.kind], by=event.actor))
        elif event.kind == "decide_approval" and not event.edges:
            told.append(Told(at=event.at, what="approval", state="one more yes", by=event.actor))
    if run.finished_at is not None:
        said = "" if run.reason in (None, "done") else str(run.reason)
        told.append(Told(at=run.finished_at, what="run", state=run.status, seconds=run.seconds, about=said))
    last = {"run": 1}
    return sorted(told, key=lambda line: (line.at, last.get(line.what, 0) and line.state != "created"))


def _of(step: StepView) -> list[Told]:
    """A wait and a child have a beginning and an end; of everything else the end is enough, once there is one."""
    told = []
    at, attempt = step.finished_at or step.started_at or step.retry_at, step.attempt
    if at is None:
        return []
    person = step.worker or "" if step.kind in ("approval", "proposal") else ""
    if step.kind in ("approval", "proposal", "wait", "child", "sleep") and step.started_at is not None:
        begun = {"approval": "asked", "proposal": "proposed", "child": "started"}.get(step.kind, "waits")
        told.append(Told(at=step.started_at, what=step.name, state=begun, about=step.child or asked(step)))
        if step.finished_at is None or step.finished_at == step.started_at:
            return told
    state = (
        step.state if step.reason in (None, "done") or step.kind in ("work", "checkpoint") else step.reason
    )
    told.append(
        Told(
            at=at,
            what=step.name,
            state=str(state),
            attempt=attempt,
            seconds=step.seconds,
            by=person or (step.agent or ""),
            about="" if step.kind == "child" else about(step).removeprefix(f"by {person}").removeprefix(": "),
        )
    )
    return told


def story_table(told: list[Told]) -> Table:
    """The story; times count from the beginning."""
    made = table("after", "what", "state", "try", "took", "by", "about")
    made.columns[0].justify = "right"
    start = told[0].at if told else None
    for line in told:
        assert start is not None
        made.add_row(
            lasted((line.at - start).total_seconds()),
            shown(line.what),
            line.state,
            str(line.attempt) if line.attempt > 1 else "",
            lasted(line.seconds),
            shown(line.by),
            shown(line.about),
        )
    return made
