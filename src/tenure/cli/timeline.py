"""A run's history as lines: when, who, what happened, and which edges that took."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from tenure.cli.console import shown
from tenure.orchestrator.views import EdgeView, EventView

_SHOWN = ("run", "step", "approval")
"""Attempts and leases move with their step; `--json` has them all."""


def timeline(events: Iterable[EventView]) -> Table:
    """The table of a history; times count from the first event."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "after", "by", "what", "changes"):
        table.add_column(name, overflow="fold", justify="right" if name in ("", "after") else "left")
    start = None
    for event in events:
        start = start or event.at
        after = (event.at - start).total_seconds()
        table.add_row(
            str(event.seq),
            f"{after:.3f} s",
            shown(event.actor),
            event.kind,
            shown("; ".join(part for part in (changes(event.edges), *event.notes) if part) or note(event)),
        )
    return table


def changes(edges: Iterable[EdgeView]) -> str:
    """The edges of one event in short: `build: ready > leased > running; run: queued > running`."""
    paths: dict[str, list[str]] = {}
    for edge in edges:
        if edge.machine not in _SHOWN:
            continue
        who = edge.machine if edge.step is None else edge.step
        path = paths.setdefault(who, [])
        if not path or path[-1] != edge.before:
            path.append(edge.before)
        path.append(edge.after)
    return "; ".join(f"{who}: {' > '.join(path)}" for who, path in paths.items())


def note(event: EventView) -> str:
    """What an event without an edge was about, where it says so."""
    answers = [a["decision"] for a in event.context.get("approval", ()) if "decision" in a]
    return f"said {answers[0]}; more people are needed" if answers else ""
