"""A run's history as a table of events, and as a timeline for people: what started, its outcome, who answered, how it ended.

Law: the timeline has a line for each thing that happened to a step, in order of time.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from rich.table import Table

from tenure.cli.common.console import safe_text
from tenure.cli.common.tables import make_table
from tenure.cli.runs.run_tables import about, format_seconds, question_text, shown_state

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.events import Event, Transition
    from tenure.shapes.steps import Step

_RUN_CHANGES = {
    "cancel": "cancellation requested",
    "pause": "paused",
    "unpause": "unpaused",
    "seal": "sealed",
    "park": "parked: no worker has this version",
}
"""Kinds of events that are lines of the timeline."""
_SHOWN_MACHINES = ("run", "step", "approval")
"""Attempts and leases change with their step; `--json` shows them all."""


class RunTimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    what: str
    """The step's name, or `run`."""
    state: str
    attempt: int = 0
    seconds: float | None = None
    by: str = ""
    about: str = ""


async def load_timeline(backend: Backend, run_id: str, after: int) -> list[RunTimelineEntry]:
    attempts = await backend.runs.failed_attempts(run_id)
    run = await backend.get(run_id)
    entries = [
        RunTimelineEntry(at=run.created_at, what="run", state="created", by=run.requester, about=run.workflow)
    ]
    for step in await backend.runs.steps(run_id):
        if step.kind != "value":
            entries += _step_entries(step)
    entries += [
        RunTimelineEntry(
            at=one.at, what=one.step, state=one.state, attempt=one.attempt, by=one.worker, about=one.text
        )
        for one in attempts
    ]
    for event in await backend.runs.events(run_id, after=after):
        what, state = "run", _RUN_CHANGES.get(event.kind)
        if event.kind == "decide_approval" and not event.edges:
            what, state = "approval", "approved by one more person"
        if state is not None:
            entries.append(RunTimelineEntry(at=event.at, what=what, state=state, by=event.actor))
    if run.finished_at is not None:
        reason = "" if run.reason in (None, "done") else str(run.reason)
        entries.append(
            RunTimelineEntry(
                at=run.finished_at, what="run", state=run.status, seconds=run.seconds, about=reason
            )
        )
    return sorted(entries, key=lambda entry: entry.at)  # stable: created stays first, finished stays last


def _step_entries(step: Step) -> list[RunTimelineEntry]:
    """The start and the end of a wait or a child; only the end of other steps that have ended."""
    entries = []
    at = step.finished_at or step.started_at or step.retry_at
    if at is None:
        return []
    person = step.worker or "" if step.kind in ("approval", "proposal") else ""
    if step.kind in ("approval", "proposal", "wait", "child", "sleep") and step.started_at is not None:
        started = {"approval": "asked", "proposal": "proposed", "child": "started"}.get(step.kind, "waits")
        entries.append(
            RunTimelineEntry(
                at=step.started_at, what=step.name, state=started, about=step.child or question_text(step)
            )
        )
        if step.finished_at is None or step.finished_at == step.started_at:
            return entries
    state = step.state
    if step.skipped or step.reused_from is not None:
        state = shown_state(step, state)
    elif step.reason not in (None, "done") and step.kind not in ("work", "checkpoint"):
        state = str(step.reason)
    outcome = about(msgspec.structs.replace(step, last_failure=None))  # failed attempts have their own lines
    entries.append(
        RunTimelineEntry(
            at=at,
            what=step.name,
            state=state,
            attempt=step.attempt,
            seconds=step.seconds,
            by=person or _worker(step),
            about="" if step.kind == "child" else outcome.removeprefix(f"by {person}").removeprefix(": "),
        )
    )
    return entries


def _worker(step: Step) -> str:
    """The worker of a step, and the agent that it acted for."""
    worker = step.worker or ""
    return f"{step.agent} ({worker})" if step.agent and worker else step.agent or worker


def timeline_table(entries: list[RunTimelineEntry]) -> Table:
    """The timeline, with times since the run was created."""
    made = make_table("after", "what", "state", "try", "took", "by", "about")
    made.columns[0].justify = "right"
    for entry in entries:
        made.add_row(
            format_seconds((entry.at - entries[0].at).total_seconds()),
            safe_text(entry.what),
            entry.state,
            str(entry.attempt) if entry.attempt > 1 or entry.state in ("failed", "lost") else "",
            format_seconds(entry.seconds),
            safe_text(entry.by),
            safe_text(entry.about),
        )
    return made


def event_table(events: list[Event]) -> Table:
    """The events of a run, with times since the first of them."""
    made = make_table("", "after", "by", "what", "changes")
    for column in made.columns[:2]:
        column.justify = "right"
    for event in events:
        changes = "; ".join(part for part in (_describe_edges(event.edges), *event.notes) if part)
        made.add_row(
            str(event.seq),
            f"{(event.at - events[0].at).total_seconds():.3f} s",
            safe_text(event.actor),
            event.kind,
            safe_text(changes or _describe_vote(event)),
        )
    return made


def _describe_edges(edges: Iterable[Transition]) -> str:
    """The edges of one event in short: `build: ready > leased > running; run: queued > running`."""
    paths: dict[str, list[str]] = {}
    for edge in edges:
        if edge.machine not in _SHOWN_MACHINES:
            continue
        path = paths.setdefault(edge.machine if edge.step is None else edge.step, [])
        if not path or path[-1] != edge.before:
            path.append(edge.before)
        path.append(edge.after)
    return "; ".join(f"{name}: {' > '.join(path)}" for name, path in paths.items())


def _describe_vote(event: Event) -> str:
    """The vote of an approval that needs more people, else an empty string."""
    answers = [a["decision"] for a in event.context.get("approval", ()) if "decision" in a]
    return f"said {answers[0]}; more people are needed" if answers else ""
