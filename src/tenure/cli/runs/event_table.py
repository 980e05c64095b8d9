"""A run's history as lines: when, who, what happened, and which edges that took."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from tenure.cli.common.console import safe_text
from tenure.shapes.events import Event, Transition

_SHOWN = ("run", "step", "approval")
"""Attempts and leases move with their step; `--json` has them all."""


def event_table(events: Iterable[Event]) -> Table:
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
            safe_text(event.actor),
            event.kind,
            safe_text(
                "; ".join(part for part in (describe_edges(event.edges), *event.notes) if part)
                or describe_event(event)
            ),
        )
    return table


def describe_edges(edges: Iterable[Transition]) -> str:
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


def describe_event(event: Event) -> str:
    """What an event without an edge was about, where it says so."""
    answers = [a["decision"] for a in event.context.get("approval", ()) if "decision" in a]
    return f"said {answers[0]}; more people are needed" if answers else ""
