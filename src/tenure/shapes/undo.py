"""What an undo looks like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec


class UndoRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that undoes, or has undone, what another one did: a part of that run's compensation log."""

    run: str
    status: str
    created_at: datetime
    requester: str
    lines: tuple[UndoLine, ...]
    """What became of each action, once it has ended."""


UndoOutcome = Literal["undone", "to_undo", "conflict", "failed", "cannot", "unsettled"]


class UndoLine(msgspec.Struct, frozen=True, kw_only=True):
    """What became, or would become, of one action."""

    receipt: int
    step: str
    action: str
    outcome: UndoOutcome
    by: str = ""
    """The operation that takes it back."""
    note: str = ""
    """Why not, or what a person should do."""


class UndoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an undo came to: the compensation log."""

    run: str
    lines: tuple[UndoLine, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing is left that a person has to look at."""
        return all(line.outcome in ("undone", "to_undo") for line in self.lines)
