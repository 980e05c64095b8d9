"""What runs have spent, in total. What one run has spent is in its history; see `kernel.act_rows.CostLineRow`."""

from __future__ import annotations

import msgspec

from tenure.store.port import RowType


class CostTotal(msgspec.Struct, gc=False):
    """What a tenant's runs have spent in one currency, for one value of the grouping; the other names are empty."""

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
    "cost_totals": CostTotal,  # () ; tenant, first_day, last_day, by (tenant, workflow, provider, model, day), limit -> the most expensive
    # first; by day, the newest first
}
