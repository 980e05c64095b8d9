"""The costs of a run: lines per provider, model, currency and day, and the total that is compared with its budget.

Laws:
1. Costs are counted once, in the commit of the message that reports them. A run that has spent more than its budget
   ends in that commit.
2. `run_spend` has the sum of the lines in the run's own currency; see `kernel.costs`.
3. A run has at most COST_LINES_PER_RUN_MAX lines. Later costs are counted in one line `others` per currency.
4. A message without costs loads and writes nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenure.clock import us
from tenure.errors import Detail, TenureError
from tenure.kernel.act_rows import CostLineRow
from tenure.kernel.costs import DEFAULT_CURRENCY, OTHER_PROVIDERS, Cost
from tenure.kernel.decide.receipts import current_run_spend, edit_run_spend
from tenure.kernel.decide.validation import is_name, refuse_problems, text_problem
from tenure.kernel.draft import Draft
from tenure.limits import (
    COST_COUNT_MAX,
    COST_CURRENCY_CHARS_MAX,
    COST_LINES_PER_RUN_MAX,
    COST_TOTAL_MAX,
    COST_WORD_CHARS_MAX,
    COSTS_PER_MESSAGE_MAX,
    CURRENCIES_PER_RUN_MAX,
    SPENT_MICROS_MAX,
)

DAY_US = us(86_400.0)
_NUMBERS = (
    ("tokens_in", COST_COUNT_MAX),
    ("tokens_out", COST_COUNT_MAX),
    ("calls", COST_COUNT_MAX),
    ("micros", SPENT_MICROS_MAX),
)


def add_spending(d: Draft, costs: tuple[Cost, ...]) -> bool:
    """Count what was spent. Returns whether the run exceeds its budget."""
    if not costs:
        return False
    _check(costs)
    _add(d, costs)
    micros = sum_in_run_currency(d, costs)
    if not micros:
        return False
    run_spend = edit_run_spend(d)
    run_spend.spent = min(run_spend.spent + micros, COST_TOTAL_MAX)
    budget = d.spec().budget
    return budget is not None and run_spend.spent > budget


def sum_in_run_currency(d: Draft, costs: tuple[Cost, ...]) -> int:
    own = d.spec().currency or DEFAULT_CURRENCY
    return sum(cost.micros for cost in costs if cost.currency == own)


def budget_left(d: Draft) -> int | None:
    """What the run may still spend. None: it has no budget."""
    budget = d.spec().budget
    return None if budget is None else budget - current_run_spend(d).spent


def _add(d: Draft, costs: tuple[Cost, ...]) -> None:
    lines = {row.no: row for row in d.snap.all_cost_lines()}
    lines |= {row.no: row for row in d.changed.values() if isinstance(row, CostLineRow)}
    by_key = {(row.provider, row.model, row.currency, row.day): row for row in lines.values()}
    day = d.now // DAY_US
    run = d.run
    for cost in costs:
        key = cost.provider, cost.model, cost.currency, day
        row = by_key.get(key)
        if row is None and len(lines) >= COST_LINES_PER_RUN_MAX:
            key = OTHER_PROVIDERS, OTHER_PROVIDERS, cost.currency, day
            row = next(
                (one for one in lines.values() if (one.provider, one.model, one.currency) == key[:3]), None
            )
        if row is None:
            if len({one.currency for one in lines.values()} | {cost.currency}) > CURRENCIES_PER_RUN_MAX:
                raise TenureError(
                    "INVALID_INPUT", f"a run may have costs in at most {CURRENCIES_PER_RUN_MAX} currencies"
                )
            row = d.add(CostLineRow(run.id, len(lines) + 1, run.tenant, run.workflow, day, *key[:3]))
            lines[row.no] = by_key[key] = row
        row = d.edit(row)
        for name, _ in _NUMBERS:
            setattr(row, name, min(getattr(row, name) + getattr(cost, name), COST_TOTAL_MAX))


def _check(costs: tuple[Cost, ...]) -> None:
    if len(costs) > COSTS_PER_MESSAGE_MAX:
        raise TenureError("INVALID_INPUT", f"a message may have at most {COSTS_PER_MESSAGE_MAX} costs")
    refuse_problems([p for at, cost in enumerate(costs) for p in _problems(f"spent[{at}]", cost)])


def _problems(at: str, cost: Cost) -> Iterator[Detail]:
    for name, most in (
        ("provider", COST_WORD_CHARS_MAX),
        ("model", COST_WORD_CHARS_MAX),
        ("currency", COST_CURRENCY_CHARS_MAX),
    ):
        if not is_name(getattr(cost, name), 1, most):
            yield text_problem(f"{at}.{name}", 1, most)
    for name, most in _NUMBERS:
        if not 0 <= getattr(cost, name) <= most:
            yield Detail(f"{at}.{name}", f"{at}.{name} must be 0 to {most}")
