"""What an artifact looks like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

ArtifactState = Literal["accepted", "pending", "failed", "late"]


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A named file of a run."""

    name: str
    step: str
    attempt: int
    state: ArtifactState
    """accepted (its attempt succeeded), pending (it is under way), failed (it ended otherwise), late."""
    size: int
    digest: str
    content_type: str
    worker: str
    """Who uploaded it."""
    uploaded_at: datetime
    late: bool
    """Uploaded after its lease had ended: kept as evidence, and it changed nothing."""
