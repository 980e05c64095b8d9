"""One run prepared for the checks: every event decoded once, its edges in order, its rows by key."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.doctor.run_dump import RunDump
from tenure.kernel.run_rows import AttemptRow, EventRow, StepRow


class TakenEdges(msgspec.Struct, gc=False):
    """The edges one event took of one entity by one move, in order."""

    seq: int
    at: int
    kind: str
    idx: int | None
    """The step's index; None for the run itself."""
    n: int
    """The attempt as the event names it; 0 where the step had none."""
    move: str
    edges: list[list[str]]
    """(machine, state, next, owner)."""
    receipt: int | None = None
    """The receipt's number, for edges of a receipt."""


Body = dict[str, Any]
_decode = msgspec.json.Decoder(Body).decode


class CheckedRun:
    """A run with its decoded events. `settled` and `now` are for the invariants that hold once the system has settled."""

    __slots__ = (
        "attempts",
        "bodies",
        "bundle",
        "canceled_seq",
        "ended_seq",
        "now",
        "run",
        "settled",
        "settled_acts",
        "spec",
        "steps",
        "tables",
        "taken",
        "unreadable",
    )

    def __init__(self, bundle: RunDump, *, settled: bool, now: int | None) -> None:
        self.bundle = bundle
        self.settled = settled
        self.now = now
        self.run = bundle.run
        self.spec = bundle.spec
        self.steps: dict[int, StepRow] = {step.idx: step for step in bundle.steps}
        self.attempts: dict[int, list[AttemptRow]] = {}
        for attempt in bundle.attempts:
            self.attempts.setdefault(attempt.idx, []).append(attempt)
        self.unreadable: list[tuple[EventRow, str]] = []
        self.bodies: list[tuple[EventRow, Body]] = []
        self.tables: dict[str, dict[str, Body]] = {}
        """What the events fold to: table -> key -> column -> value."""
        self.taken: list[TakenEdges] = []
        self.settled_acts: list[TakenEdges] = []
        """The edges of receipts, which may be taken after the run has ended."""
        self.canceled_seq: int | None = None
        """The event that requested the run's cancellation."""
        self.ended_seq: int | None = None
        """The event by which the run became terminal."""
        for event in bundle.events:
            self._read(event)

    def _read(self, event: EventRow) -> None:
        try:
            body = _decode(event.body)
            self._take(event, body)
            self._fold(event, body.get("set", {}))
        except (msgspec.DecodeError, AttributeError, TypeError, ValueError, KeyError) as problem:
            self.unreadable.append((event, str(problem)))
            return
        self.bodies.append((event, body))

    def _take(self, event: EventRow, body: Body) -> None:
        for entry in body.get("edges", ()):
            receipt = entry.get("receipt")
            (self.taken if receipt is None else self.settled_acts).append(
                TakenEdges(
                    event.seq,
                    event.at,
                    event.kind,
                    entry.get("step"),
                    entry.get("attempt", 0),
                    entry.get("move", ""),
                    entry["edges"],
                    receipt,
                )
            )

    def _fold(self, event: EventRow, changes: dict[str, dict[str, Body]]) -> None:
        tables = self.tables
        for table, changed in changes.items():
            rows = tables.setdefault(table, {})
            for key, columns in changed.items():
                row = rows.get(key)
                if row is None:
                    rows[key] = dict(columns)
                else:
                    row.update(columns)
        mine = changes.get("run")
        if mine is not None:
            run = mine.get("", {})
            if self.canceled_seq is None and run.get("cancel_at") is not None:
                self.canceled_seq = event.seq
            if self.ended_seq is None and run.get("finished_at") is not None:
                self.ended_seq = event.seq

    def live_attempt(self, step: StepRow) -> AttemptRow | None:
        """The newest attempt of a step, while its lease is live."""
        for attempt in self.attempts.get(step.idx, ()):
            if attempt.n == step.attempt and attempt.ended_at is None:
                return attempt
        return None
