"""What a scrape of the metrics asks the database: how many runs are under way, and how old the oldest of everything is.

Laws:
1. Nothing here writes, and nothing here looks at finished runs: the cost grows with what is under way.
2. Whoever asks keeps the answer for a while; see `tenure.server.observe.metrics`.
"""

from __future__ import annotations

import msgspec

from tenure.store.port import RowType


class ActiveRunCount(msgspec.Struct, gc=False):
    """Runs of a tenant that are not finished."""

    tenant: str
    profile: str
    status: str
    count: int


class OldestPending(msgspec.Struct, gc=False):
    """Since when the oldest of each kind waits, in microseconds; None: there is none."""

    now_us: int
    ready_at: int | None
    """The oldest step that could be claimed (among the first hundred thousand)."""
    due_at: int | None
    """The moment that came first and was not looked at yet."""
    owed_at: int | None
    """What one run owes another."""
    notice_at: int | None
    """What a subscriber has not been told."""


READS: dict[str, RowType] = {
    "active_run_counts": ActiveRunCount,  # () ; tenants at most
    "oldest_pending": OldestPending,  # () ; now
}

WRITES: dict[str, RowType] = {}
