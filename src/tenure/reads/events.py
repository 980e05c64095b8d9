"""One event of a run's history, as people see it.

Law: everything here is read from the event itself, except the names of steps and waits: an event has only their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tenure.clock import to_datetime
from tenure.kernel import history
from tenure.kernel.run_rows import EventRow
from tenure.reads.steps import wait_label
from tenure.shapes.events import Event, Transition


def _notes(
    changed: dict[str, Any], labels: Mapping[str, str], skipped: Iterable[dict[str, Any]]
) -> Iterator[str]:
    """What an event changed, as lines of text."""
    for key, row in changed.get("checkpoint", {}).items():
        name = key.partition("/")[2]
        tries = f", try {row['tries']}" if row.get("tries", 1) > 1 else ""
        error = f" ({row['error']})" if row.get("error") else ""
        yield f"{name}: {row.get('state', 'recorded')}{error}{tries}"
    for key, row in changed.get("wait", {}).items():
        name = wait_label(row.get("label") or labels.get(key, key))
        yield f"{name}: {row.get('outcome') or row.get('state', 'waits')}"
    for one in skipped:
        yield f"{one['name']}: skipped ({one['reason']}: {one['condition']})"
    for key, row in changed.get("receipt", {}).items():
        if "state" in row:
            yield f"{row.get('label') or f'receipt {key}'}: {row['state']}"


def to_event(row: EventRow, names: Mapping[int, str], labels: Mapping[str, str] | None = None) -> Event:
    """An event with its edges. `names` has the steps by index, `labels` the waits by number."""
    body = history.decode_body(row)
    edges = [
        Transition(
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
    return Event(
        seq=row.seq,
        at=to_datetime(row.at),
        kind=row.kind,
        actor=row.actor,
        initiator=row.initiator,
        cause=row.cause,
        edges=tuple(edges),
        notes=tuple(_notes(body.get("set", {}), labels or {}, body.get("context", {}).get("skipped", ()))),
        context=body.get("context", {}),
        hash=row.hash.hex(),
    )
