"""How runs and their steps look in a terminal."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from tenure.cli.console import out, shown
from tenure.embedded import RunLine, RunView, StepView, Why

_COLOURS = {"succeeded": "green", "failed": "red", "timed_out": "red", "canceled": "yellow"}
VALUE_CHARS_MAX = 200


def table(*columns: str) -> Table:
    """A plain table."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def state_text(state: str, word: str) -> Text:
    """A state in the kernel's word and, where it is another, in the profile's."""
    return Text(state if state == word else f"{state} ({word})", style=_COLOURS.get(state, ""))


def when(at: datetime | None) -> str:
    """A moment, to the second."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def value_text(value: Any) -> str:
    """A payload on one line."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 3] + "..."


def show_list(lines: list[RunLine]) -> None:
    """Runs, newest first."""
    console = out()
    if not lines:
        console.print("no runs")
        return
    made = table("run", "workflow", "profile", "status", "reason", "steps", "created")
    for line in lines:
        status = state_text(line.status, line.shown)
        if line.paused:
            status.append(" paused", style="yellow")
        steps = f"{line.steps_done}/{line.steps_total}"
        made.add_row(
            line.id,
            shown(line.workflow),
            line.profile,
            status,
            shown(line.reason or ""),
            steps,
            when(line.created_at),
        )
    console.print(made)


def show_run(run: RunView, steps: list[StepView], why: Why) -> None:
    """One run: what it is, how it is, its steps."""
    console = out()
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    facts.add_row("run", run.id)
    facts.add_row("workflow", shown(f"{run.workflow} (version {run.code_version})"))
    facts.add_row("status", state_text(run.status, f"{run.shown} in {run.profile}"))
    facts.add_row("why", shown(why.text))
    optional: list[tuple[str, Any]] = [
        ("paused", "yes" if run.paused else None),
        ("labels", ", ".join(f"{k}={v}" for k, v in run.labels.items()) or None),
        ("key", run.concurrency_key),
        ("resumed from", run.resumed_from and f"{run.resumed_from} (resumption {run.resume_count})"),
        ("rerun of", run.rerun_of and f"{run.rerun_of} (attempt {run.attempt_no})"),
        ("requested by", run.requester),
        ("created", when(run.created_at)),
        ("started", when(run.started_at)),
        ("finished", when(run.finished_at)),
        ("deadline", "" if run.finished else when(run.deadline_at)),
        ("input", None if run.input is None else value_text(run.input)),
        ("output", None if run.output is None else value_text(run.output)),
        ("error", None if run.error is None else value_text(run.error)),
    ]
    for name, value in optional:
        if value:
            facts.add_row(name, shown(value))
    console.print(facts)
    console.print()
    made = table("step", "kind", "state", "try", "worker", "why", "output")
    for step in steps:
        tries = f"{step.attempt}/{step.attempts_max}" if step.attempt else ""
        note = step.reason or step.last_error or ""
        output = "" if step.output is None else value_text(step.output)
        made.add_row(
            shown(step.name),
            step.kind,
            state_text(step.state, step.shown),
            tries,
            shown(step.worker or ""),
            shown(note),
            shown(output),
        )
    console.print(made)
