"""What the costs of runs look like from outside."""

from __future__ import annotations

from datetime import date
from typing import Literal, get_args

import msgspec

CostGrouping = Literal["tenant", "workflow", "provider", "model", "day"]


COST_GROUPINGS: tuple[str, ...] = get_args(CostGrouping)


class RunCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has spent."""

    run_id: str
    spent: int
    """In micro-units of `currency`. Costs in other currencies are only in `lines`."""
    budget: int | None
    currency: str
    """The currency of the budget. Without a budget: USD."""
    text: str
    """For people: `0.25 of 5.00 EUR`."""
    lines: tuple[StepCost, ...]
    """By provider, model and currency."""


class CostGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The costs of one group in one currency."""

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
    """The amount for people."""


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's runs have spent."""

    by: CostGrouping
    since: date
    until: date
    """The last day that counts."""
    items: list[CostGroup]
    """The most expensive first; days: the newest first."""
    more: bool = False
    """There are more groups than are listed."""


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of calls to a provider."""

    provider: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    money: float
    currency: str
    micros: int = 0
    """The exact amount of `money`, in millionths."""
