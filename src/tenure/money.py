"""Amounts of money: people write `5 USD` or `0.25 EUR`, Tenure stores whole millionths of the currency's unit.

Law: no amount is ever a float. A text that is not an amount is INVALID_INPUT, with examples of valid ones.
"""

from __future__ import annotations

import re
from decimal import Decimal

from tenure.errors import TenureError

MICROS = 1_000_000
PATTERN = r"[0-9]{1,12}(?:\.[0-9]{1,6})? ?[A-Z]{3}"
"""The whole text must match."""
_AMOUNT = re.compile(PATTERN)


def parse_amount(text: object) -> tuple[int, str]:
    """An amount as (micro-units, currency)."""
    found = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise TenureError("INVALID_INPUT", f"{str(text)[:40]!r} is not an amount such as 5 USD or 0.25 EUR")
    return int(Decimal(found[0][:-3].rstrip()) * MICROS), found[0][-3:]


def format_amount(micros: int, currency: str) -> str:
    """An amount for people: `0.25 EUR`."""
    whole, rest = divmod(micros, MICROS)
    cents = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{cents} {currency}".rstrip()
