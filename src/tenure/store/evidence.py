"""Evidence parts, and the runs that still need one.

Laws:
1. A part's record is written in the commit that seals its run, and never changes. It outlives the run.
2. A run has one part per number (I52): if two processes seal a run at once, one of them finds it sealed.
"""

from __future__ import annotations

import msgspec

from tenure.kernel.governance_rows import EvidenceRow
from tenure.store.port import RowType


class UnsealedRun(msgspec.Struct, gc=False):
    """A run that has ended and whose history is not sealed up to its last event."""

    run_id: int
    tenant: str
    finished_at: int


READS: dict[str, RowType] = {
    "evidence_of": EvidenceRow,  # () ; run_id -> by number
    "evidence_after": EvidenceRow,  # () ; tenant, before_at, before_run_id, limit -> first parts, newest first
    "runs_unsealed": UnsealedRun,  # () ; after_finished_at, after_id, quiet_since, later_quiet_since, limit -> by end. Runs whose
    # last event is older than quiet_since; if they have a part already, than later_quiet_since
}

WRITES: dict[str, RowType] = {
    "save_evidence": EvidenceRow,
}
