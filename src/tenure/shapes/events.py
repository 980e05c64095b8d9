"""What a run's history, and the stream of events, look like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A frame of the stream of events."""

    id: str
    type: str
    data: dict[str, Any]


class Transition(msgspec.Struct, frozen=True):
    """One edge of one machine that an event took."""

    machine: str
    before: str
    after: str
    owner: str
    step: str | None = None
    attempt: int | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a run's history."""

    seq: int
    at: datetime
    kind: str
    actor: str
    initiator: str
    cause: str
    edges: tuple[Transition, ...]
    notes: tuple[str, ...]
    """What it recorded beside the edges: checkpoints, waits and children, in words."""
    context: dict[str, Any]
    hash: str
