"""Lists of runs, a page at a time, and the status of many runs at once.

Laws:
1. A page begins after a position, the (time, id) of the last row of the page before: no row is lost or repeated, even if many
   rows have the same time. Newest first.
2. Nothing here writes.
"""

from __future__ import annotations

import msgspec

from tenure.kernel.run_rows import RunRow
from tenure.store.port import RowType


class RunGlance(msgspec.Struct, gc=False):
    """The columns of a run that its status needs."""

    id: int
    tenant: str
    workflow: str
    profile: str
    created_at: int
    status: str
    version: int
    event_at: int
    started_at: int | None
    finished_at: int | None
    reason: str | None
    paused: bool
    parked: str | None
    cancel_at: int | None
    reported_at: int | None
    steps_total: int
    steps_done: int
    waits_open: int
    output_ref: int | None
    error_ref: int | None
    steps_skipped: int


READS: dict[str, RowType] = {
    "runs_page": RunRow,  # () ; tenant, before_created_at, before_id, limit
    "runs_page_by_status": RunRow,  # () ; tenant, status, before_created_at, before_id, limit
    "runs_page_by_repo": RunRow,  # () ; tenant, repo, before_created_at, before_id, limit
    "run_glances": RunGlance,  # (id) -> those that exist, in any order
}
