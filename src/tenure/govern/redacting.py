"""Secrets that were used stay out of whatever is kept: results, errors, logs.

Laws:
1. What a call resolved (`tenure.secrets.heard`) is taken out of what it gives back, as it is and as others would write it: base64 (also
   inside something longer), URL-encoded, hexadecimal, escaped as in JSON.
2. Too much is taken out rather than too little.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus

SHOWN_INSTEAD = "[secret]"
FORM_CHARS_MIN = 4
"""Shorter ones of the other forms would be found everywhere."""
LINE_CHARS = 56
"""Programs break longer lines than this."""
LINE_CHARS_MIN = 16
"""A line of a secret that has several is one by itself from this length on."""


def forms(value: bytes) -> set[str]:
    """The texts in which a secret may come back."""
    found: set[str] = set()
    parts = {value, *(line for line in value.splitlines() if len(line.strip()) >= LINE_CHARS_MIN)}
    for part in parts:
        plain = part.decode(errors="surrogateescape")
        others = {plain.strip(), part.hex(), part.hex().upper(), *_in_base64(part)}
        others |= {json.dumps(plain, ensure_ascii=plainly)[1:-1] for plainly in (True, False)}
        for quoted in (quote(part, safe=""), quote(part), quote_plus(part)):
            others |= {quoted, re.sub("%[0-9A-F]{2}", lambda hexed: hexed[0].lower(), quoted)}
        found |= {plain, *(other for other in others if len(other) >= FORM_CHARS_MIN)}
    return found - {""}


def _in_base64(value: bytes) -> set[str]:
    """What base64 makes of it at each of the three places where it may begin, without what its neighbours have a part in."""
    found: set[str] = set()
    for before in range(3):
        text = base64.b64encode(b"\0" * before + value).decode()
        first = -(-before * 8 // 6)
        last = (before + len(value)) * 8 // 6
        found |= {text[first:last], text[first:last].replace("+", "-").replace("/", "_")}
    return found


def _pattern(form: str) -> str:
    """A form, also where a long one is broken into lines, as base64 often is."""
    if len(form) <= LINE_CHARS:
        return re.escape(form)
    return r"(?:\s|\\n)*".join(re.escape(char) for char in form)


class Redactor:
    """Takes secrets out."""

    def __init__(self, values: Iterable[bytes]) -> None:
        every = {form for value in values for form in forms(value)}
        # The longest first: one secret may be a part of another.
        patterns = [_pattern(form) for form in sorted(every, key=len, reverse=True)]
        self._found = re.compile("|".join(patterns)) if patterns else None

    def text(self, text: str) -> str:
        """A text without them."""
        return text if self._found is None else self._found.sub(SHOWN_INSTEAD, text)

    def clean(self, value: Any) -> Any:
        """A value of JSON without them, in texts and in keys."""
        if self._found is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value).decode(errors="surrogateescape")).encode(errors="surrogateescape")
        if isinstance(value, dict):
            return {self.clean(key): self.clean(below) for key, below in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = str(value)
            return SHOWN_INSTEAD if self._found.search(shown) else value
        return value
