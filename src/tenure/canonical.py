"""JSON in one form per value, so that two values have the same hash if and only if they are equal.

Laws:
1. The form is that of RFC 8785 (JCS) with one addition: a number without a fraction is written in full, as an integer. Names are
   in the order of their UTF-16 code units, other numbers as ECMAScript writes them, texts with the fewest escapes; no spaces.
2. Two values are equal if they are alike in structure and their parts are equal: integers exactly (9007199254740993 is not
   9007199254740992), other numbers as doubles, a double without a fraction as the integer that it is (1 = 1.0, -0 = 0,
   1e21 = 1000000000000000000000), texts by code points. `true` is not 1.
3. A value without such a form is refused: NaN, infinities, half of a surrogate pair, names that are not texts. A JSON text with the
   same name twice in one object is refused when it is read (`decode_json`): other programs could read another value.
4. `1e308` has 309 digits in full. The digits of large doubles are counted, and more than `CANONICAL_DIGITS_MAX` are refused. So the form
   is bounded, and is made in linear time.
"""

from __future__ import annotations

import base64
import binascii
import json
from math import isfinite
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.limits import CANONICAL_DIGITS_MAX

_EXACT_MAX = 2**53
_ZEROS_MAX = 6
"""The zeros that ECMAScript writes before it switches to an exponent, including the one before the point."""

_SMALL = 1e-3
"""From here to 2^53 msgspec writes a double with a fraction as ECMAScript does: without an exponent."""
_LARGE = 1e21
"""From here on a double in full is longer than with an exponent (law 4)."""
_SURROGATES = "\ud800"
"""Below it, code points and UTF-16 code units have the same order."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class DuplicateName(msgspec.DecodeError):
    """An object of a JSON text has the same name twice."""


def canonical(value: Any) -> bytes:
    """The canonical form of a decoded JSON value; INVALID_INPUT if it has none (law 3)."""
    try:
        if _is_plain(value):
            return msgspec.json.encode(value, order="sorted")
        return _Writer().write(value).encode()
    except UnicodeEncodeError as half:
        raise TenureError(
            "INVALID_INPUT", "a text has half of a surrogate pair; send whole characters"
        ) from half
    except RecursionError as deep:
        raise TenureError("INVALID_INPUT", "a value is nested too deeply") from deep


def is_equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal (law 2)."""
    return canonical(one) == canonical(other)


def _is_plain(value: Any) -> bool:
    """Whether msgspec writes the canonical form: there are no large numbers, no doubles that it writes differently, and no names that it
    sorts differently."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is float:
        return _SMALL <= abs(value) < _EXACT_MAX and not value.is_integer()
    if kind is dict:
        return all(
            type(name) is str and (name.isascii() or max(name) < _SURROGATES) and _is_plain(part)
            for name, part in value.items()
        )
    if kind is list:
        return all(map(_is_plain, value))
    return kind is int and -_EXACT_MAX <= value <= _EXACT_MAX


class _Writer:
    """Writes one value, and counts the digits of its large doubles (law 4)."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = CANONICAL_DIGITS_MAX

    def write(self, value: Any) -> str:
        if isinstance(value, float):
            if not -_LARGE < value < _LARGE:
                return self._large(value)
            return canonical_number(value)
        if isinstance(value, dict):
            if not all(isinstance(name, str) for name in value):
                raise TenureError(
                    "INVALID_INPUT", "a name in an object is not a text; JSON allows only texts"
                )
            named = sorted(value.items(), key=lambda item: item[0].encode("utf-16-be"))
            return "{" + ",".join(f"{_text(name)}:{self.write(part)}" for name, part in named) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(map(self.write, value)) + "]"
        if isinstance(value, int) and not isinstance(value, bool):
            return canonical_number(value)
        return _text(value)

    def _large(self, value: float) -> str:
        text = canonical_number(value)
        self.left -= len(text)
        if self.left < 0:
            raise TenureError(
                "INVALID_INPUT",
                f"the numbers from 1e21 on in this value have more than {CANONICAL_DIGITS_MAX} digits when written in full; send them as texts",
            )
        return text


def _text(value: Any) -> str:
    return _encode(value).decode()


def canonical_number(value: float) -> str:
    """A number without a fraction in full, any other number as ECMAScript's Number.prototype.toString writes it."""
    if isinstance(value, float):
        if not isfinite(value):
            raise TenureError("INVALID_INPUT", f"{value} is not a JSON number; send null or a text")
        if not value.is_integer():
            return _fraction(value)
    try:
        return str(int(value))
    except ValueError as large:  # Python writes at most 4,300 digits
        raise TenureError("INVALID_INPUT", "a number has more than 4300 digits; send it as a text") from large


def _fraction(double: float) -> str:
    """A double with a fraction, which is below 2^53. Python writes the same digits but switches to an exponent earlier."""
    shown = float.__repr__(double)
    mantissa, _, power = shown.partition("e")
    if not power:
        return shown
    sign, mantissa = ("-", mantissa[1:]) if double < 0 else ("", mantissa)
    digits, exponent = mantissa.replace(".", ""), -int(power)  # it is 5 or more
    if exponent <= _ZEROS_MAX:
        return f"{sign}0.{'0' * (exponent - 1)}{digits}"
    return f"{sign}{mantissa}e-{exponent}"


# ------------------------------------------------------------------------------------- reading and writing


def encode_json(value: Any) -> bytes:
    """A value as JSON that decodes to the same value. What the encoder would change silently is refused: ValueError for NaN and
    infinities, DuplicateName if two names become the same text (1 and "1")."""
    body = _encode(value)
    kind = type(value)
    if kind is str or kind is bool or value is None or kind is int:
        return body
    if b"null" in body:
        _check_finite(value)
    if body.count(b":") > 1:
        check_names(body, _decode(body))
    return body


def _check_finite(value: Any) -> None:
    left = [msgspec.to_builtins(value)]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            left.extend(part.values())
        elif isinstance(part, list | tuple):
            left.extend(part)
        elif isinstance(part, float) and not isfinite(part):
            raise ValueError(f"JSON has no {part}; use null or a text")


def decode_json(text: bytes | str) -> Any:
    """The value of a JSON text. DuplicateName (a msgspec.DecodeError) if an object has a name twice."""
    value = _decode(text)
    check_names(text, value)
    return value


def check_names(text: bytes | str, value: Any) -> None:
    """Refuse a JSON text that has a name twice in one object. `value` is the decoded text.

    Decoding keeps one of two equal names, so encoding the value again loses a colon. Strings contain colons too, some of them escaped,
    and the text has at least as many of these as the value. So equal counts prove that nothing was lost. Otherwise the text is parsed
    again, slowly.
    """
    body = text.encode() if isinstance(text, str) else text
    colons = body.count(b":")
    if colons < 2:
        return
    if b"\\u003" in body:
        colons += body.count(b"\\u003a") + body.count(b"\\u003A")
    if colons != _encode(value).count(b":"):
        json.loads(body, object_pairs_hook=_check_pairs)


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise DuplicateName(f"JSON has the name {name[:100]!r} twice in one object")
        names.add(name)


def encode_base64(body: bytes) -> str:
    return base64.b64encode(body).decode()


def decode_base64(text: str) -> bytes | None:
    """The decoded bytes, or None unless `encode_base64` writes exactly this text: unused bits before the padding must be zero."""
    try:
        body = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return body if encode_base64(body) == text else None
