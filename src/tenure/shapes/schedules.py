"""What a schedule looks like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A cron expression that starts runs of a workflow."""

    name: str
    workflow: str
    cron: str
    zone: str
    paused: bool
    next_at: datetime | None
    """None if it is paused or has no further slot."""
    last_slot: datetime | None
    catch_up: str
    catch_up_max: int
    pass_slot: bool
    code_version: str
    profile: str
    workspace: str
    queue: str
    plan: list[Any] | None
    input: Any
    owner: str
    labels: dict[str, str]
    created_at: datetime
    updated_at: datetime
    revision: int
    unconfirmed: list[str]
    """Who has created or changed it since a second person confirmed it. They are involved in its runs."""
