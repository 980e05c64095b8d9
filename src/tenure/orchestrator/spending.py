"""What runs have spent, as people see it.

Laws:
1. Money is whole micro-units; `text` is the same for people.
2. A run's costs are those of its own history: what it took over from a run that it resumes was spent there, what its children
   spend is theirs.
3. Days are UTC days, whole: the day of a moment counts from its beginning to its end.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Literal, get_args

import msgspec

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.kernel.costs import DEFAULT_CURRENCY
from tenure.kernel.governed import CostLine, Purse
from tenure.kernel.model import RunSpec
from tenure.money import shown
from tenure.orchestrator.step_views import CostView, summed
from tenure.store.costing import Spending
from tenure.store.port import Store

By = Literal["tenant", "workflow", "provider", "model", "day"]
WAYS: tuple[str, ...] = get_args(By)
GROUPS_MAX = 1_000
DAYS = 30
"""How far back it is looked where nobody says it."""
_BEGIN = date(1970, 1, 1)


class RunCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has spent."""

    run_id: str
    spent: int
    """In micro-units of `currency`; what was spent in others is in the lines."""
    budget: int | None
    currency: str
    """Of its budget; without one USD."""
    text: str
    """The same for people: `0.25 of 5.00 EUR`."""
    lines: tuple[CostView, ...]
    """By provider, model and currency."""


class SpentView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was spent in one currency, by what was asked for."""

    workflow: str | None = None
    provider: str | None = None
    model: str | None = None
    day: date | None = None
    currency: str
    runs: int
    calls: int
    tokens_in: int
    tokens_out: int
    micros: int
    text: str
    """The same for people."""


class SpendingView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's runs have spent."""

    by: By
    since: date
    until: date
    """The last day that counts."""
    items: list[SpentView]
    """The dearest first; days the newest first."""
    more: bool = False
    """There are more groups than are listed."""


async def run_costs(store: Store, run_id: int) -> RunCosts:
    """What a run has spent; whose it is was looked at before."""
    specs: list[RunSpec] = await store.read("get_spec", run_id)
    purses: list[Purse] = await store.read("purses_of", run_id)
    rows: list[CostLine] = await store.read("cost_lines_of", run_id)
    budget = specs[0].budget if specs else None
    currency = (specs[0].currency if specs else "") or DEFAULT_CURRENCY
    spent = purses[0].spent if purses else 0
    text = shown(spent, currency)
    return RunCosts(
        run_id=ids.run_text(run_id),
        spent=spent,
        budget=budget,
        currency=currency,
        text=text if budget is None else f"{shown(spent, '')} of {shown(budget, currency)}",
        lines=summed(_line(row) for row in rows),
    )


def _line(row: CostLine) -> CostView:
    return CostView(
        provider=row.provider,
        model=row.model,
        calls=row.calls,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        money=row.micros / 1e6,
        currency=row.currency,
        micros=row.micros,
    )


async def spending(
    store: Store, tenant: str, *, by: str, since: datetime | None, until: datetime | None, now: datetime
) -> SpendingView:
    """What a tenant's runs have spent in the days from `since` (a month ago) to `until` (today)."""
    if by not in WAYS:
        raise TenureError("INVALID_INPUT", f"costs are not added up by {by[:40]!r}", (Detail("by", f"is one of {', '.join(WAYS)}"),))  # fmt: skip
    last = max(_day("until", until or now), _BEGIN)
    first = max(_day("since", since) if since is not None else last - timedelta(days=DAYS), _BEGIN)
    days = (first - _BEGIN).days, (last - _BEGIN).days
    rows: list[Spending] = await store.read("spending", tenant, *days, by, GROUPS_MAX + 1)
    return SpendingView(
        by=by,  # type: ignore[arg-type]  # it was looked up above
        since=first,
        until=last,
        items=[_item(row, by) for row in rows[:GROUPS_MAX]],
        more=len(rows) > GROUPS_MAX,
    )


def _day(name: str, at: datetime) -> date:
    try:
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC).date()
    except OverflowError:
        problem = f"{name} is no day of UTC"
        raise TenureError("INVALID_INPUT", problem, (Detail(name, problem),)) from None


def _item(row: Spending, by: str) -> SpentView:
    return SpentView(
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
        text=shown(row.micros, row.currency),
    )
