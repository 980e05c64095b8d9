"""How rows are copied and what they are called within their run, made for speed: every decision does both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tenure.kernel.act_rows import CostLineRow, ReceiptRow, RunSpendRow, VerdictRow
from tenure.kernel.run_rows import (
    ApprovalRow,
    AttemptRow,
    CheckpointRow,
    ChildRow,
    InboxRow,
    PayloadRow,
    Row,
    RunSpecRow,
    StepRow,
    WaitRow,
)

R = TypeVar("R", bound=Row)

LIGHT_COLUMNS = ("version", "head", "event_at", "steps_done", "checkpoints", "next_ref")
"""What a checkpoint changes of its run. It is the commonest command by far, so stores have a short way of writing just
these columns (`Save.light`)."""

ROW_KEYS: dict[type[Row], Callable[[Any], tuple[Any, ...]]] = {
    StepRow: lambda row: ("step", row.idx),
    AttemptRow: lambda row: ("attempt", row.idx, row.n),
    CheckpointRow: lambda row: ("checkpoint", row.idx, row.name),
    PayloadRow: lambda row: ("payload", row.ref),
    RunSpecRow: lambda _: ("run_spec",),
    WaitRow: lambda row: ("wait", row.no),
    ApprovalRow: lambda row: ("approval", row.no),
    InboxRow: lambda row: ("inbox", row.no),
    ChildRow: lambda row: ("child", row.child_id),
    VerdictRow: lambda row: ("verdict", row.no),
    ReceiptRow: lambda row: ("receipt", row.no),
    RunSpendRow: lambda _: ("run_spend",),
    CostLineRow: lambda row: ("cost_line", row.no),
}
"""Type -> what a row of it is called: (table, *key without the run)."""


copy_row: Callable[[R], R] = Row.__copy__  # type: ignore[attr-defined]  # every Struct has it, its stubs do not say so
"""A copy, to be changed; `copy.copy` does the same in three times the time."""
