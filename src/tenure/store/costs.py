"""What was spent, added up over runs. What a run has spent is its own history; see `kernel.governed.CostLine`."""

from __future__ import annotations

import msgspec

from tenure.store.port import RowType


class CostTotal(msgspec.Struct, gc=False):
    """What runs of a tenant's have spent in one currency, by what was asked for; the other names are empty."""

    workflow: str
    provider: str
    model: str
    day: int
    currency: str
    runs: int
    calls: int
    tokens_in: int
    tokens_out: int
    micros: int


READS: dict[str, RowType] = {
    "cost_totals": CostTotal,  # () ; tenant, first_day, last_day, by (tenant, workflow, provider, model, day), limit -> dearest first,
    # by day the newest first
}
WRITES: dict[str, RowType] = {}
