"""Everything the database holds about one run."""

from __future__ import annotations

import copy
from typing import TypeVar

import msgspec

from tenure.kernel.governance import Evidence
from tenure.kernel.governed import CostLine, Purse, Receipt, Verdict
from tenure.kernel.model import (
    Approval,
    Attempt,
    Checkpoint,
    Child,
    Event,
    Inbox,
    Outbox,
    Payload,
    Row,
    Run,
    RunSpec,
    Step,
    Wait,
)
from tenure.kernel.service import Artifact

R = TypeVar("R", bound=Row)


class Bundle(msgspec.Struct, kw_only=True):
    """All rows of one run, each table in key order."""

    run: Run
    spec: RunSpec | None = None
    steps: list[Step] = []
    attempts: list[Attempt] = []
    checkpoints: list[Checkpoint] = []
    waits: list[Wait] = []
    approvals: list[Approval] = []
    inbox: list[Inbox] = []
    children: list[Child] = []
    payloads: list[Payload] = []
    events: list[Event] = []
    outbox: list[Outbox] = []
    verdicts: list[Verdict] = []
    receipts: list[Receipt] = []
    purses: list[Purse] = []
    """One, or none."""
    cost_lines: list[CostLine] = []
    artifacts: list[Artifact] = []
    evidence: list[Evidence] = []
    """What was sealed of it. It lies beside the run, and outlives it."""

    def copied(self) -> Bundle:
        """The same rows as copies, to be changed without harm."""
        return Bundle(
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
            purses=_copies(self.purses),
            cost_lines=_copies(self.cost_lines),
            artifacts=_copies(self.artifacts),
            evidence=_copies(self.evidence),
        )


def _copies(rows: list[R]) -> list[R]:
    return [copy.copy(row) for row in rows]
