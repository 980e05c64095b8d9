"""JSON in the one form that RFC 8785 (JCS) gives it, so that two texts of the same value have the same hash.

Laws:
1. Names are in the order of their UTF-16 code units, numbers are written as ECMAScript writes them, texts with the fewest
   escapes; there is no space.
2. A number is a double, as in the RFC: whole numbers beyond 2^53 that are the same double are the same here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.errors import TenureError

_EXACT_MAX = 2**53
_DIGITS_MAX = 21
"""ECMAScript writes this many digits before it takes to an exponent."""


def canonical(value: Any) -> bytes:
    """A decoded JSON value in its canonical form."""
    if _is_plain(value):
        return msgspec.json.encode(value, order="sorted")
    return _written(value).encode()


def _is_plain(value: Any) -> bool:
    """Whether the quick encoder writes it canonically: it has neither fractions nor large numbers, and names in ASCII only."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is dict:
        return all(name.isascii() and _is_plain(part) for name, part in value.items())
    if kind is list:
        return all(map(_is_plain, value))
    return kind is int and -_EXACT_MAX <= value <= _EXACT_MAX


def _written(value: Any) -> str:
    if isinstance(value, dict):
        named = sorted(value.items(), key=lambda item: item[0].encode("utf-16-be"))
        return "{" + ",".join(f"{_text(name)}:{_written(part)}" for name, part in named) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return _text(value)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def number(value: float) -> str:
    """A number as ECMAScript's Number.prototype.toString writes it."""
    try:
        double = float(value)
    except OverflowError as large:
        raise TenureError("REQUEST_MALFORMED", "a number in the body is beyond all doubles") from large
    if double != double or double in (float("inf"), float("-inf")):
        raise ValueError("JSON has no such number")
    if double == 0:
        return "0"
    sign, text = ("-", repr(-double)) if double < 0 else ("", repr(double))
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(power or 0)
    digits = whole + ("" if fraction == "0" else fraction)
    leading = len(digits) - len(digits.lstrip("0"))
    digits, point = digits.lstrip("0"), point - leading
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= _DIGITS_MAX:
        return sign + digits + "0" * (point - count)
    if 0 < point <= _DIGITS_MAX:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    exponent = point - 1
    shown = digits[0] + (f".{digits[1:]}" if count > 1 else "")
    return f"{sign}{shown}e{'+' if exponent > 0 else '-'}{abs(exponent)}"
