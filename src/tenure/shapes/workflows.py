"""What a registered workflow looks like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class RegisteredWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A registered version of a workflow."""

    name: str
    version: str
    kind: str
    digest: str
    registered_at: datetime
    registered_by: str
    """The credential or local account that registered it."""
    unconfirmed: list[str]
    """Who is involved in its runs until a second person confirms it."""
    definition: Any
    """A declared workflow's document, or the description of a workflow in Python."""
