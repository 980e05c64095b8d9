"""JSON in one form per value, so that two values have the same hash if and only if they are equal.

Laws:
1. The form is that of RFC 8785 (JCS) with one addition: a number without a fraction is written in full, as an integer. Names are
   in the order of their UTF-16 code units, other numbers as ECMAScript writes them, texts with the fewest escapes; no spaces.
2. Two values are equal if they are alike in structure and their parts are equal: integers exactly (9007199254740993 is not
   9007199254740992), other numbers as doubles, a double without a fraction as the integer that it is (1 = 1.0, -0 = 0,
   1e21 = 1000000000000000000000), texts by code points. `true` is not 1.
3. What has no such form is refused: NaN, infinities, half of a surrogate pair, names that are no texts. A JSON text with the
   same name twice in one object is refused where it is read (`decode_json`): others could read another value than we do.
4. `1e308` has 309 digits in full. So what large doubles take in full is counted, and beyond `CANONICAL_DIGITS_MAX` refused: the form is
   at most so many characters longer for them, and is made in linear time.
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
"""ECMAScript writes so many zeros, the one before the point among them, before it switches to an exponent."""

_SMALL = 1e-3
"""From here to 2^53 the quick encoder writes a double with a fraction as ECMAScript does: without an exponent."""
_LARGE = 1e21
"""From here on a double is shorter with an exponent than in full."""
_SURROGATES = "\ud800"
"""Below it texts are in the same order by code points and by UTF-16 code units."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class DuplicateName(msgspec.DecodeError):
    """An object of a JSON text has the same name twice."""


def canonical(value: Any) -> bytes:
    """A decoded JSON value in its canonical form; INVALID_INPUT where it has none."""
    try:
        if _is_plain(value):
            return msgspec.json.encode(value, order="sorted")
        return _Writer().written(value).encode()
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
    """Whether the quick encoder writes it canonically: it has neither large numbers nor doubles that it would write otherwise, and names
    in the order of their code points."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is float:
        return _SMALL <= abs(value) < _EXACT_MAX and not value.is_integer()
    if kind is dict:
        return all(
            type(name) is str and _is_plain_name(name) and _is_plain(part) for name, part in value.items()
        )
    if kind is list:
        return all(map(_is_plain, value))
    return kind is int and -_EXACT_MAX <= value <= _EXACT_MAX


def _is_plain_name(name: str) -> bool:
    return name.isascii() or max(name) < _SURROGATES


class _Writer:
    """Writes one value, and counts what its large doubles take (law 4)."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = CANONICAL_DIGITS_MAX

    def written(self, value: Any) -> str:
        """The canonical form."""
        if isinstance(value, float):
            if not -_LARGE < value < _LARGE:
                return self._large(value)
            return canonical_number(value)
        if isinstance(value, dict):
            if not all(isinstance(name, str) for name in value):
                raise TenureError(
                    "INVALID_INPUT", "a name of an object is not a text; JSON has only texts there"
                )
            named = list(value.items())
            if len(named) > 1:
                named.sort(key=lambda item: item[0].encode("utf-16-be"))
            return "{" + ",".join(f"{_text(name)}:{self.written(part)}" for name, part in named) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(map(self.written, value)) + "]"
        if isinstance(value, int) and not isinstance(value, bool):
            return canonical_number(value)
        return _text(value)

    def _large(self, value: float) -> str:
        text = canonical_number(value)
        self.left -= len(text)
        if self.left < 0:
            raise TenureError(
                "INVALID_INPUT",
                f"the numbers from 1e21 on in this value have more than {CANONICAL_DIGITS_MAX} digits in full; send them as texts",
            )
        return text


def _text(value: Any) -> str:
    return _encode(value).decode()


def canonical_number(value: float) -> str:
    """A number without a fraction in full, any other as ECMAScript's Number.prototype.toString writes it."""
    if isinstance(value, float):
        if not isfinite(value):
            raise TenureError("INVALID_INPUT", f"{value} is no number of JSON; send null or a text")
        if not value.is_integer():
            return _fraction(value)
    try:
        return str(int(value))
    except ValueError as large:  # Python writes at most 4,300 digits
        raise TenureError("INVALID_INPUT", "a number has over 4300 digits; send it as a text") from large


def _fraction(double: float) -> str:
    """A double that is no integer: it is below 2^53. Python writes the same digits, but switches to an exponent earlier."""
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
    """A value as JSON that reads back as the same value. What the encoder would change without a word is refused: ValueError for
    NaN and infinities, DuplicateName where two names become one text (1 and "1")."""
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
    """A JSON text as a value: numbers as they are written, and no name twice (`DuplicateName`, a msgspec.DecodeError)."""
    value = _decode(text)
    check_names(text, value)
    return value


def check_names(text: bytes | str, value: Any) -> None:
    """Refuse a JSON text that has a name twice in one object. `value` is what the text was decoded to.

    Decoding keeps one of two equal names, so that encoding the value again loses a colon. Texts have colons too, some of them
    escaped: each is counted at least as often in the text as in the value. So equal counts prove that nothing was lost, and only
    other texts are read again with care.
    """
    body = text.encode() if isinstance(text, str) else text
    colons = body.count(b":")
    if colons < 2:
        return
    if b"\\u003" in body:
        colons += body.count(b"\\u003a") + body.count(b"\\u003A")
    if colons != _encode(value).count(b":"):
        json.loads(body, object_pairs_hook=_pairs)


def _pairs(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1:
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
