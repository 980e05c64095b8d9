"""How rows are copied and what they are called within their run, made for speed: every decision does both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tenure.kernel.governed import CostLine, Purse, Receipt, Verdict
from tenure.kernel.model import (
    Approval,
    Attempt,
    Checkpoint,
    Child,
    Inbox,
    Payload,
    Row,
    RunSpec,
    Step,
    Wait,
)

R = TypeVar("R", bound=Row)

LIGHT = ("version", "head", "event_at", "steps_done", "checkpoints", "next_ref")
"""What a checkpoint changes of its run. It is the commonest command by far, so stores have a short way of writing just
these columns (`Save.light`)."""

KEYS: dict[type[Row], Callable[[Any], tuple[Any, ...]]] = {
    Step: lambda row: ("step", row.idx),
    Attempt: lambda row: ("attempt", row.idx, row.n),
    Checkpoint: lambda row: ("checkpoint", row.idx, row.name),
    Payload: lambda row: ("payload", row.ref),
    RunSpec: lambda _: ("run_spec",),
    Wait: lambda row: ("wait", row.no),
    Approval: lambda row: ("approval", row.no),
    Inbox: lambda row: ("inbox", row.no),
    Child: lambda row: ("child", row.child_id),
    Verdict: lambda row: ("verdict", row.no),
    Receipt: lambda row: ("receipt", row.no),
    Purse: lambda _: ("purse",),
    CostLine: lambda row: ("cost_line", row.no),
}
"""Type -> what a row of it is called: (table, *key without the run)."""


copy_row: Callable[[R], R] = Row.__copy__  # type: ignore[attr-defined]  # every Struct has it, its stubs do not say so
"""A copy, to be changed; `copy.copy` does the same in three times the time."""
