"""What a run's history and the event stream look like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the event stream."""

    id: str
    type: str
    data: dict[str, Any]


class Transition(msgspec.Struct, frozen=True):
    """One edge of a machine that an event took."""

    machine: str
    before: str
    after: str
    owner: str
    step: str | None = None
    attempt: int | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a run's history."""

    seq: int
    at: datetime
    kind: str
    actor: str
    initiator: str
    cause: str
    edges: tuple[Transition, ...]
    notes: tuple[str, ...]
    """What the event recorded besides edges: checkpoints, waits and children, in words."""
    context: dict[str, Any]
    hash: str
