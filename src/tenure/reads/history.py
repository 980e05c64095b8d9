"""A run's history as people see it: its events, and the failed attempts of its steps.

Laws:
1. An event is shown from its own contents, except the names of steps and waits: an event has only their numbers.
2. A failed attempt is read from events and their payloads, because a step's row knows only its last attempt. The last attempt
   of a step that has failed for good is not included: the step itself shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tenure.clock import to_datetime
from tenure.kernel import history
from tenure.kernel.run_rows import EventRow, StepRow
from tenure.reads.payloads import decode_payload
from tenure.reads.steps import wait_label
from tenure.shapes.events import Event, Transition
from tenure.shapes.steps import FailedAttempt

RUN = "run"
"""The name of the body of a code-first run: it is the run itself."""
_OVER = frozenset({"failed", "timed_out", "canceled"})


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


def find_failed_attempts(
    events: Iterable[EventRow], steps: Iterable[StepRow], bodies: Mapping[int, bytes]
) -> list[FailedAttempt]:
    """The failed attempts in order of time (law 2)."""
    fold = _AttemptFold({str(s.idx): RUN if s.kind == "body" else s.name for s in steps}, bodies)
    return [failed for event in events for failed in fold.apply(event)]


class _AttemptFold:
    def __init__(self, names: Mapping[str, str], bodies: Mapping[int, bytes]) -> None:
        self._names = names
        self._bodies = bodies
        self._checkpoints: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, str] = {}
        self._lost: set[str] = set()
        """The steps whose last attempt was lost."""

    def apply(self, event: EventRow) -> Iterator[FailedAttempt]:
        """The failed attempts that an event shows."""
        changed: dict[str, Any] = history.decode_body(event).get("set", {})
        for key, row in changed.get("checkpoint", {}).items():
            yield from self._checkpoint(event, key, row)
        for key, row in changed.get("attempt", {}).items():
            yield from self._attempt(event, key, row, changed.get("step", {}))

    def _checkpoint(self, event: EventRow, key: str, row: dict[str, Any]) -> Iterator[FailedAttempt]:
        known = self._checkpoints.setdefault(key, {})
        known |= row
        if known.get("state") != "failed" or known.get("next_at") is None or "output_ref" not in row:
            return
        yield FailedAttempt(
            step=key.partition("/")[2],
            at=to_datetime(event.at),
            state="failed",
            attempt=known.get("tries", 1),
            worker=event.actor.removeprefix("worker:"),
            code=known.get("error") or "",
            message=self._message(known["output_ref"]),
        )

    def _attempt(
        self, event: EventRow, key: str, row: dict[str, Any], steps: dict[str, Any]
    ) -> Iterator[FailedAttempt]:
        idx, _, n = key.partition("/")
        common: dict[str, Any] = {
            "step": self._names.get(idx, idx),
            "at": to_datetime(event.at),
            "attempt": int(n),
        }
        if "owner" in row:
            self._owners[key] = row["owner"]
            if idx in self._lost:
                self._lost.discard(idx)
                yield FailedAttempt(**common, state="taken over", worker=row["owner"])
        step = steps.get(idx, {})
        if row.get("state") not in ("failed", "stale", "timed_out") or step.get("state") in _OVER:
            return
        lost = row["state"] == "stale"
        if lost:
            self._lost.add(idx)
        yield FailedAttempt(
            **common,
            state="lost" if lost else "failed",
            worker=self._owners.get(key, ""),
            code=row.get("reason") or step.get("last_error") or "",
            message="" if lost else self._message(step.get("error_ref")),
        )

    def _message(self, ref: int | None) -> str:
        value = decode_payload(self._bodies.get(ref or 0))
        return "" if value is None else str(value)
