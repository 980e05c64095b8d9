"""What receipts and undos look like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """An action outside of Tenure, and its outcome."""

    id: str
    run_id: str
    workflow: str
    step: str
    no: int
    label: str
    """Identifies the act within its step."""
    try_no: int
    action: str
    state: str
    """intent, unknown, succeeded, failed, reversed or reused."""
    tier: str
    key: str
    """The idempotency key that was sent to the service."""
    digest: str
    """The digest of what was proposed and approved."""
    repeats: str
    """How the action can be repeated safely: native_key, sets_state, marker or none."""
    reversible: bool
    approval_id: str | None
    """The approval that it consumed."""
    attempt: int
    """The attempt of its step that last intended the call."""
    intended_at: datetime
    settled_at: datetime | None
    settled_by: str | None
    """The person who settled it."""
    error: str | None
    retry_at: datetime | None
    """When a failed action may be tried again."""
    expires_at: datetime | None
    """Until when the step waits for a person to settle an unknown action."""
    reverses: str | None
    """The receipt that this action reversed."""
    reversed_by: str | None
    source: str | None
    """If it was reused: the receipt of the action that took effect."""
    request: Any = None
    """Target and fields."""
    result: Any = None
    known: Any = None
    """What is known about an unknown action, as people are shown it."""


class UndoRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that undoes what another run did."""

    run: str
    status: str
    created_at: datetime
    requester: str
    lines: tuple[UndoLine, ...]
    """The outcome for each action, once the run has ended."""


UndoOutcome = Literal["undone", "to_undo", "conflict", "failed", "cannot", "unsettled"]


class UndoLine(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome, or the expected outcome, for one action."""

    receipt: int
    step: str
    action: str
    outcome: UndoOutcome
    by: str = ""
    """The operation that reverses it."""
    note: str = ""
    """Why it is not undone, or what a person should do."""


class UndoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an undo: its compensation log."""

    run: str
    lines: tuple[UndoLine, ...]

    @property
    def complete(self) -> bool:
        """Whether no action needs a person's attention."""
        return all(line.outcome in ("undone", "to_undo") for line in self.lines)
