"""What a scrape of the metrics reads from the database."""

from __future__ import annotations

from tenure.store.metrics import ActiveRunCount, OldestPending
from tenure.store.port import Store
from tenure.store.transactions import read_rows

__all__ = ["ActiveRunCount", "OldestPending", "read_gauges"]


async def read_gauges(store: Store, tenants_max: int) -> tuple[list[ActiveRunCount], OldestPending]:
    """The active runs by tenant, and the age of the oldest pending work."""
    now = store.estimate_us() or (await store.read("now"))[0].now_us
    [oldest] = await read_rows(store, OldestPending, "oldest_pending", now)
    return await store.read("active_run_counts", 5 * tenants_max), oldest
