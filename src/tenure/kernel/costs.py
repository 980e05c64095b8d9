"""The costs of calls to providers, as the holder of a lease reports them.

Laws:
1. Money is whole micro-units of a currency, never a float.
2. A run has one currency: its budget's, or `DEFAULT_CURRENCY`. Costs in other currencies are stored, and count against
   no budget.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tenure.limits import COST_CURRENCY_CHARS_MAX, COST_WORD_CHARS_MAX, COSTS_PER_MESSAGE_MAX

DEFAULT_CURRENCY = "USD"
OTHER_PROVIDERS = "others"
"""Stands for the providers and models beyond the limit."""


class Cost(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The cost of calls to one model."""

    provider: str
    model: str
    tokens_in: int = 0
    tokens_out: int = 0
    micros: int = 0
    """Millionths of the currency's unit."""
    currency: str = DEFAULT_CURRENCY
    calls: int = 1


def sum_costs(costs: Iterable[Cost], most: int = COSTS_PER_MESSAGE_MAX // 2) -> list[Cost]:
    """Sum costs by provider, model and currency, highest first. Those beyond `most` are summed as others."""
    sums: dict[tuple[str, str, str], Cost] = {}
    for cost in costs:
        _add(sums, cost, cost.provider[:COST_WORD_CHARS_MAX], cost.model[:COST_WORD_CHARS_MAX])
    ranked = sorted(sums.values(), key=_price, reverse=True)
    if len(ranked) <= most:
        return ranked
    kept = {(cost.provider, cost.model, cost.currency): cost for cost in ranked[: most // 2]}
    for cost in ranked[most // 2 :]:
        _add(kept, cost, OTHER_PROVIDERS, OTHER_PROVIDERS)
    return sorted(kept.values(), key=_price, reverse=True)


def _price(cost: Cost) -> tuple[int, int]:
    return cost.micros, cost.tokens_in + cost.tokens_out


def _add(sums: dict[tuple[str, str, str], Cost], cost: Cost, provider: str, model: str) -> None:
    key = provider, model, cost.currency[:COST_CURRENCY_CHARS_MAX]
    old = sums.get(key)
    sums[key] = Cost(
        provider,
        model,
        cost.tokens_in + (old.tokens_in if old else 0),
        cost.tokens_out + (old.tokens_out if old else 0),
        cost.micros + (old.micros if old else 0),
        key[2],
        cost.calls + (old.calls if old else 0),
    )
