"""What a receipt looks like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """An action on the world, and what became of it."""

    id: str
    run_id: str
    workflow: str
    step: str
    no: int
    label: str
    """Which act of its step it was."""
    try_no: int
    action: str
    state: str
    """intent, unknown, succeeded, failed, reversed or reused."""
    tier: str
    key: str
    """The idempotency key, as it was passed on."""
    digest: str
    """Of what was proposed, and approved."""
    repeats: str
    """native_key, sets_state, marker or none: how it may be done again."""
    reversible: bool
    approval_id: str | None
    """The approval that it used up."""
    attempt: int
    """The attempt of its step under whose lease the call was last intended."""
    intended_at: datetime
    settled_at: datetime | None
    settled_by: str | None
    """The person who said how it ended."""
    error: str | None
    retry_at: datetime | None
    """Of a failed one: when it may be tried again."""
    expires_at: datetime | None
    """Of an unknown one: until when its step waits for a person."""
    reverses: str | None
    """The receipt that it took back."""
    reversed_by: str | None
    source: str | None
    """Of one that was reused: the receipt whose effect it is."""
    request: Any = None
    """Target and fields."""
    result: Any = None
    known: Any = None
    """Of an unknown one: what is known, as it was told to people."""
