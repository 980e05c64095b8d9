"""What evidence looks like from outside."""

from __future__ import annotations

from datetime import datetime

import msgspec


class EvidencePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run's evidence: the bundle (0) or a numbered supplement."""

    run_id: str
    part: int
    name: str
    """What its zip is called."""
    sha256: str
    size: int
    events: int
    """How long the run's history is at its end."""
    head: str
    """The hash of the last event in it."""
    key_id: str | None
    """The key that signed it; None: it is not signed."""
    sealed_at: datetime


class ExportedEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A part, to be written to files: NAME, NAME.dsse.json and NAME.tlog-proof."""

    name: str
    zip: bytes
    envelope: bytes
    proof: str | None
    """That the ledger has it; None: it has not, or nothing covers it yet."""
    sealed: bool
    """Whether it is on record; else it was built just now."""
