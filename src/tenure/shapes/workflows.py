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
    """Whose credential, or which local account, has registered it."""
    unconfirmed: list[str]
    """The people who stand behind it, until a second person confirms it."""
    definition: Any
    """Of a declared one its document; of code what is known of it."""
