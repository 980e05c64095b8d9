"""Amounts of money as people write them: `5 USD`, `0.25 EUR`; kept as whole millionths of the currency's unit.

Law: no amount is ever a float. Whatever is no amount is INVALID_INPUT with an example of one.
"""

from __future__ import annotations

import re
from decimal import Decimal

from tenure.errors import TenureError

MICROS = 1_000_000
PATTERN = r"[0-9]{1,12}(?:\.[0-9]{1,6})? ?[A-Z]{3}"
"""What a text must match as a whole."""
_AMOUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Z]{3})")


def parse_amount(text: object) -> tuple[int, str]:
    """An amount as (micro-units, currency)."""
    found = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise TenureError("INVALID_INPUT", f"{str(text)[:40]!r} is no amount such as 5 USD or 0.25 EUR")
    return int(Decimal(found[1]) * MICROS), found[2]


def format_amount(micros: int, currency: str) -> str:
    """An amount for people: `0.25 EUR`."""
    whole, rest = divmod(micros, MICROS)
    cents = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{cents} {currency}".rstrip()
