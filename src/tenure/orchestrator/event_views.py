"""One event of a run's history, as people see it.

Law: everything here is read from the event itself, but for the names of steps and waits, which it knows by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from tenure.kernel import history
from tenure.kernel.model import Event
from tenure.orchestrator.step_views import label_of, moment


class EdgeView(msgspec.Struct, frozen=True):
    """One edge of one machine that an event took."""

    machine: str
    before: str
    after: str
    owner: str
    step: str | None = None
    attempt: int | None = None


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a run's history."""

    seq: int
    at: datetime
    kind: str
    actor: str
    initiator: str
    cause: str
    edges: tuple[EdgeView, ...]
    notes: tuple[str, ...]
    """What it recorded beside the edges: checkpoints, waits and children, in words."""
    context: dict[str, Any]
    hash: str


def _notes(
    changed: dict[str, Any], labels: Mapping[str, str], skipped: Iterable[dict[str, Any]]
) -> Iterator[str]:
    """What was recorded, by the columns that an event has set."""
    for key, row in changed.get("checkpoint", {}).items():
        name = key.partition("/")[2]
        tries = f", try {row['tries']}" if row.get("tries", 1) > 1 else ""
        error = f" ({row['error']})" if row.get("error") else ""
        yield f"{name}: {row.get('state', 'recorded')}{error}{tries}"
    for key, row in changed.get("wait", {}).items():
        name = label_of(row.get("label") or labels.get(key, key))
        yield f"{name}: {row.get('outcome') or row.get('state', 'waits')}"
    for one in skipped:
        yield f"{one['name']}: skipped ({one['reason']}: {one['condition']})"
    for key, row in changed.get("receipt", {}).items():
        if "state" in row:
            yield f"{row.get('label') or f'receipt {key}'}: {row['state']}"


def event_view(row: Event, names: Mapping[int, str], labels: Mapping[str, str] | None = None) -> EventView:
    """An event with its edges; `names` are the steps' by index, `labels` the waits' by number."""
    body = history.decode_body(row)
    edges = [
        EdgeView(
            machine,
            before,
            after,
            owner,
            names.get(entry["step"], str(entry["step"])) if "step" in entry else None,
            entry.get("attempt"),
        )
        for entry in body.get("edges", ())
        for machine, before, after, owner in entry["edges"]
    ]
    return EventView(
        seq=row.seq,
        at=moment(row.at),
        kind=row.kind,
        actor=row.actor,
        initiator=row.initiator,
        cause=row.cause,
        edges=tuple(edges),
        notes=tuple(_notes(body.get("set", {}), labels or {}, body.get("context", {}).get("skipped", ()))),
        context=body.get("context", {}),
        hash=row.hash.hex(),
    )
