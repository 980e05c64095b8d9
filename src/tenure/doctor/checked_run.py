"""The rows of one run, and those rows prepared for the checks: events decoded once, edges in order, rows by key."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec

from tenure.kernel.act_rows import CostLineRow, ReceiptRow, RunSpendRow, VerdictRow
from tenure.kernel.ci_rows import LogChunkRow, UploadPartRow
from tenure.kernel.governance_rows import EvidenceRow
from tenure.kernel.run_rows import (
    ApprovalRow,
    AttemptRow,
    CheckpointRow,
    ChildRow,
    EventRow,
    InboxRow,
    OutboxRow,
    PayloadRow,
    Row,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
)
from tenure.kernel.server_rows import ArtifactRow

RUN_QUERIES = {
    "artifacts": "artifact_rows_of",
    "upload_parts": "upload_part_rows_of",
    "log_chunks": "log_chunk_rows_of",
    "steps": "steps_of",
    "attempts": "attempts_of",
    "checkpoints": "checkpoints_of",
    "waits": "waits_of",
    "approvals": "approvals_of",
    "inbox": "inbox_of",
    "children": "children_of",
    "payloads": "payloads_of",
    "events": "events_of",
    "outbox": "outbox_of",
    "verdicts": "verdicts_of",
    "receipts": "receipts_of",
    "run_spends": "run_spends_of",
    "cost_lines": "cost_lines_of",
    "evidence": "evidence_of",
}
"""Field of a RunDump -> the query of its rows, in the order of reading. Heartbeats change expiries without a new version of the run, and
expiries only grow. So attempts are read after artifacts, log chunks and steps."""


class RunDump(msgspec.Struct, kw_only=True):
    """All rows of one run, each table in key order."""

    run: RunRow
    spec: RunSpecRow | None = None
    steps: list[StepRow] = []
    attempts: list[AttemptRow] = []
    checkpoints: list[CheckpointRow] = []
    waits: list[WaitRow] = []
    approvals: list[ApprovalRow] = []
    inbox: list[InboxRow] = []
    children: list[ChildRow] = []
    payloads: list[PayloadRow] = []
    events: list[EventRow] = []
    outbox: list[OutboxRow] = []
    verdicts: list[VerdictRow] = []
    receipts: list[ReceiptRow] = []
    run_spends: list[RunSpendRow] = []
    """At most one."""
    cost_lines: list[CostLineRow] = []
    artifacts: list[ArtifactRow] = []
    upload_parts: list[UploadPartRow] = []
    log_chunks: list[LogChunkRow] = []
    evidence: list[EvidenceRow] = []
    """Its sealed parts. They outlive the run."""

    def copied(self) -> RunDump:
        """A dump with copies of the rows."""
        rows = {field: [*map(copy.copy, getattr(self, field))] for field in RUN_QUERIES}
        return RunDump(run=copy.copy(self.run), spec=copy.copy(self.spec), **rows)


_ROW_NAMES = {
    "run": "run",
    "step": "step {0.idx} ({0.name})",
    "attempt": "attempt {0.idx}/{0.n}",
    "checkpoint": "checkpoint {0.idx}/{0.name}",
    "wait": "wait {0.no}",
    "approval": "approval {0.no}",
    "child": "child {0.child_id}",
    "verdict": "verdict {0.no}",
    "receipt": "receipt {0.no}",
}


def describe(row: Row) -> str:
    """The name of a row in a report."""
    return _ROW_NAMES[row.table].format(row)


class TakenEdges(msgspec.Struct, gc=False):
    """The edges of one entity that one event took by one move, in order."""

    seq: int
    at: int
    kind: str
    idx: int | None
    """The step's index; None for the run itself."""
    n: int
    """The attempt that the event names; 0 if the step had none."""
    move: str
    edges: list[list[str]]
    """(machine, state, next, owner)."""
    receipt: int | None = None
    """The receipt's number, for edges of a receipt."""


Body = dict[str, Any]
_decode = msgspec.json.Decoder(Body).decode


class CheckedRun:
    """A run with its decoded events. `settled` and `now` are for invariants that hold once the system has settled."""

    __slots__ = (
        "attempts",
        "bodies",
        "bundle",
        "canceled_seq",
        "counted",
        "ended_seq",
        "now",
        "planner",
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
        self.planner = next((step for step in bundle.steps if step.kind == "plan"), None)
        """The plan step, if there is one. It does not count as a step of the run."""
        self.counted = [step for step in bundle.steps if step.kind != "plan"]
        self.attempts: dict[int, list[AttemptRow]] = {}
        for attempt in bundle.attempts:
            self.attempts.setdefault(attempt.idx, []).append(attempt)
        self.unreadable: list[tuple[EventRow, str]] = []
        self.bodies: list[tuple[EventRow, Body]] = []
        self.tables: dict[str, dict[str, Body]] = {}
        """The rows according to the events: table -> key -> column -> value."""
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
                rows.setdefault(key, {}).update(columns)
        run = changes.get("run", {}).get("", {})
        if self.canceled_seq is None and run.get("cancel_at") is not None:
            self.canceled_seq = event.seq
        if self.ended_seq is None and run.get("finished_at") is not None:
            self.ended_seq = event.seq

    def live_attempt(self, step: StepRow) -> AttemptRow | None:
        """The newest attempt of a step, while its lease is live."""
        return next(
            (a for a in self.attempts.get(step.idx, ()) if a.n == step.attempt and a.ended_at is None), None
        )

    def changes(self, table: str) -> Iterator[tuple[EventRow, str, Body]]:
        """Every change of a table's rows: the event, the row's key, and the columns with their new values."""
        for event, body in self.bodies:
            for key, columns in body.get("set", {}).get(table, {}).items():
                yield event, key, columns
