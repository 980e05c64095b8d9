"""What a scrape of the metrics reads from the database: how many runs are active, and how old the oldest pending work is.

Laws:
1. Nothing here writes or reads finished runs, so the cost grows with the active runs only.
2. The caller caches the answer; see `tenure.server.observe.metrics`.
"""

from __future__ import annotations

import msgspec

from tenure.store.port import RowType


class ActiveRunCount(msgspec.Struct, gc=False):
    tenant: str
    profile: str
    status: str
    count: int


class OldestPending(msgspec.Struct, gc=False):
    """Since when the oldest pending work of each kind waits, in microseconds; None: there is none."""

    now_us: int
    ready_at: int | None
    """The oldest step that could be claimed (among the first hundred thousand)."""
    due_at: int | None
    """The oldest timer that has expired and was not handled yet."""
    owed_at: int | None
    """The oldest outbox row."""
    notice_at: int | None
    """The oldest notice that was not sent yet."""


READS: dict[str, RowType] = {
    "active_run_counts": ActiveRunCount,  # () ; tenants at most
    "oldest_pending": OldestPending,  # () ; now
}
