"""What evidence looks like from outside."""

from __future__ import annotations

from datetime import datetime

import msgspec


class EvidencePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run's evidence: the bundle (0) or a numbered supplement."""

    run_id: str
    part: int
    name: str
    """The name of its zip file."""
    sha256: str
    size: int
    events: int
    """The length of the run's history up to its end."""
    head: str
    """The hash of its last event."""
    key_id: str | None
    """The key that signed it. None: it is not signed."""
    sealed_at: datetime


class ExportedEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A part as the contents of three files: NAME, NAME.dsse.json and NAME.tlog-proof."""

    name: str
    zip: bytes
    envelope: bytes
    proof: str | None
    """The proof that the ledger contains it. None: the ledger does not, or no checkpoint covers it yet."""
    sealed: bool
    """Whether it was sealed. If not, it was built for this export."""
