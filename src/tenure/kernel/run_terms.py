"""The terms that a workflow sets for each of its runs."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.money import parse_amount


class RunTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget, and whether a cancellation undoes the run's effects."""

    budget: int | None = None
    """In micro-units of `currency`."""
    currency: str = ""
    compensate: bool = False

    @classmethod
    def of(cls, budget: str | None, compensate: bool) -> RunTerms:
        """Terms as people write them. A budget is a text such as `5 USD`."""
        if budget is None:
            return cls(compensate=compensate) if compensate else NO_TERMS
        micros, currency = parse_amount(budget)
        return cls(budget=micros, currency=currency, compensate=compensate)

    def fields(self) -> dict[str, Any]:
        """As fields of `RunRequest`, without defaults."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


NO_TERMS = RunTerms()
