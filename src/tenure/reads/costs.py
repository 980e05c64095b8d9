"""What runs have spent, as people see it.

Laws:
1. Money is whole micro-units; `text` is the same amount for people.
2. A run's costs are those of its own history. They do not include the costs of a run that it resumes, or of its children.
3. Days are whole UTC days.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.kernel.act_rows import CostLineRow, RunSpendRow
from tenure.kernel.costs import DEFAULT_CURRENCY
from tenure.kernel.run_rows import RunSpecRow
from tenure.money import format_amount
from tenure.reads.steps import total_step_costs
from tenure.shapes.costs import COST_GROUPINGS, CostGroup, CostReport, RunCosts
from tenure.store.costs import CostTotal
from tenure.store.port import Store
from tenure.store.transactions import read_first, read_rows

GROUPS_MAX = 1_000
DAYS_DEFAULT = 30
"""The length of a report without `since`."""
_BEGIN = date(1970, 1, 1)


async def read_run_costs(store: Store, run_id: int) -> RunCosts:
    """What a run has spent. The caller has checked whose run it is."""
    spec = await read_first(store, RunSpecRow, "get_spec", run_id)
    run_spend = await read_first(store, RunSpendRow, "run_spends_of", run_id)
    budget = None if spec is None else spec.budget
    currency = (spec and spec.currency) or DEFAULT_CURRENCY
    spent = 0 if run_spend is None else run_spend.spent
    return RunCosts(
        run_id=ids.run_text(run_id),
        spent=spent,
        budget=budget,
        currency=currency,
        text=format_amount(spent, currency)
        if budget is None
        else f"{format_amount(spent, '')} of {format_amount(budget, currency)}",
        lines=total_step_costs(await read_rows(store, CostLineRow, "cost_lines_of", run_id)),
    )


async def read_cost_report(
    store: Store, tenant: str, *, by: str, since: datetime | None, until: datetime | None, now: datetime
) -> CostReport:
    """What a tenant's runs have spent in the days from `since` (a month ago) to `until` (today)."""
    if by not in COST_GROUPINGS:
        raise TenureError("INVALID_INPUT", f"costs are not added up by {by[:40]!r}", (Detail("by", f"must be one of {', '.join(COST_GROUPINGS)}"),))  # fmt: skip
    last = max(_day("until", until or now), _BEGIN)
    first = max(_day("since", since) if since is not None else last - timedelta(days=DAYS_DEFAULT), _BEGIN)
    rows: list[CostTotal] = await store.read(
        "cost_totals", tenant, (first - _BEGIN).days, (last - _BEGIN).days, by, GROUPS_MAX + 1
    )
    return CostReport(
        by=by,  # type: ignore[arg-type]  # it was checked above
        since=first,
        until=last,
        items=[_item(row, by) for row in rows[:GROUPS_MAX]],
        more=len(rows) > GROUPS_MAX,
    )


def _day(name: str, at: datetime) -> date:
    try:
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC).date()
    except OverflowError:
        problem = f"{name} is outside of the calendar in UTC"
        raise TenureError("INVALID_INPUT", problem, (Detail(name, problem),)) from None


def _item(row: CostTotal, by: str) -> CostGroup:
    return CostGroup(
        workflow=row.workflow if by == "workflow" else None,
        provider=row.provider if by in ("provider", "model") else None,
        model=row.model if by == "model" else None,
        day=_BEGIN + timedelta(days=row.day) if by == "day" else None,
        currency=row.currency,
        runs=row.runs,
        calls=row.calls,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        micros=row.micros,
        text=format_amount(row.micros, row.currency),
    )
