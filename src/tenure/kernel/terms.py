"""What a workflow asks of each of its runs, besides what they do."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.money import amount


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget, and whether a cancellation undoes what was done."""

    budget: int | None = None
    """In micro-units of `currency`."""
    currency: str = ""
    compensate: bool = False

    @classmethod
    def of(cls, budget: str | None, compensate: bool) -> Terms:
        """As people write them: a budget is a text such as `5 USD`."""
        if budget is None:
            return cls(compensate=compensate) if compensate else NONE
        micros, currency = amount(budget)
        return cls(budget=micros, currency=currency, compensate=compensate)

    def fields(self) -> dict[str, Any]:
        """As the command that makes a run has them; only what was said."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return told


NONE = Terms()
