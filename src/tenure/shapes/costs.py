"""What runs cost, as it is shown."""

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
    """In micro-units of `currency`; what was spent in others is in the lines."""
    budget: int | None
    currency: str
    """Of its budget; without one USD."""
    text: str
    """The same for people: `0.25 of 5.00 EUR`."""
    lines: tuple[StepCost, ...]
    """By provider, model and currency."""


class CostGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's runs have spent."""

    by: CostGrouping
    since: date
    until: date
    """The last day that counts."""
    items: list[CostGroup]
    """The dearest first; days the newest first."""
    more: bool = False
    """There are more groups than are listed."""


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """What calls to a provider have cost."""

    provider: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    money: float
    currency: str
    micros: int = 0
    """The same money as `money`, exactly: in millionths."""
