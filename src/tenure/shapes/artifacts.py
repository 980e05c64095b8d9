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
    """accepted: its attempt succeeded. pending: its attempt is running. failed: its attempt did not succeed. late: see `late`."""
    size: int
    digest: str
    content_type: str
    worker: str
    uploaded_at: datetime
    late: bool
    """Uploaded after the lease had ended. It is kept as evidence and has changed nothing."""
