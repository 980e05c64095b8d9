"""Everything the database holds about one run."""

from __future__ import annotations

import copy
from typing import TypeVar

import msgspec

from tenure.kernel.act_rows import CostLineRow, ReceiptRow, RunSpendRow, VerdictRow
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

R = TypeVar("R", bound=Row)


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
    """One, or none."""
    cost_lines: list[CostLineRow] = []
    artifacts: list[ArtifactRow] = []
    evidence: list[EvidenceRow] = []
    """Its sealed parts. They outlive the run."""

    def copied(self) -> RunDump:
        """The same rows as copies."""
        return RunDump(
            run=copy.copy(self.run),
            spec=copy.copy(self.spec),
            steps=_copies(self.steps),
            attempts=_copies(self.attempts),
            checkpoints=_copies(self.checkpoints),
            waits=_copies(self.waits),
            approvals=_copies(self.approvals),
            inbox=_copies(self.inbox),
            children=_copies(self.children),
            payloads=_copies(self.payloads),
            events=_copies(self.events),
            outbox=_copies(self.outbox),
            verdicts=_copies(self.verdicts),
            receipts=_copies(self.receipts),
            run_spends=_copies(self.run_spends),
            cost_lines=_copies(self.cost_lines),
            artifacts=_copies(self.artifacts),
            evidence=_copies(self.evidence),
        )


def _copies(rows: list[R]) -> list[R]:
    return [copy.copy(row) for row in rows]
