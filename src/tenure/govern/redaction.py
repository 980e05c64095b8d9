"""Removes used secrets from everything that is stored: results, errors, logs.

Laws:
1. The secrets that a call resolved (`tenure.secrets.record_resolved`) are removed from its output, literally and in the encodings that
   services use: base64 (also inside longer text), URL encoding, hexadecimal, JSON escapes.
2. If in doubt, text is removed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus

REDACTED = "[secret]"
FORM_CHARS_MIN = 4
"""Shorter encodings would match everywhere."""
LINE_CHARS = 56
"""Programs wrap longer lines."""
LINE_CHARS_MIN = 16
"""A line of a multi-line secret counts as a secret from this length on."""


def secret_encodings(value: bytes) -> set[str]:
    found: set[str] = set()
    for part in {value, *(line for line in value.splitlines() if len(line.strip()) >= LINE_CHARS_MIN)}:
        plain = part.decode(errors="surrogateescape")
        others = {plain.strip(), part.hex(), part.hex().upper(), *_in_base64(part)}
        others |= {json.dumps(plain, ensure_ascii=plainly)[1:-1] for plainly in (True, False)}
        for quoted in (quote(part, safe=""), quote(part), quote_plus(part)):
            others |= {quoted, re.sub("%[0-9A-F]{2}", lambda hexed: hexed[0].lower(), quoted)}
        found |= {plain, *(other for other in others if len(other) >= FORM_CHARS_MIN)}
    return found - {""}


def _in_base64(value: bytes) -> set[str]:
    """The base64 of a value at each of the three possible offsets, without the characters that depend on its neighbours."""
    found: set[str] = set()
    for before in range(3):
        text = base64.b64encode(b"\0" * before + value).decode()
        first = -(-before * 8 // 6)
        last = (before + len(value)) * 8 // 6
        found |= {text[first:last], text[first:last].replace("+", "-").replace("/", "_")}
    return found


def _pattern(form: str) -> str:
    """An encoding as a pattern. A long one may be wrapped into lines, as base64 often is."""
    if len(form) <= LINE_CHARS:
        return re.escape(form)
    return r"(?:\s|\\n)*".join(re.escape(char) for char in form)


class Redactor:
    def __init__(self, values: Iterable[bytes]) -> None:
        forms = {form for value in values for form in secret_encodings(value)}
        # The longest first: one secret may contain another.
        patterns = [_pattern(form) for form in sorted(forms, key=len, reverse=True)]
        self._found = re.compile("|".join(patterns)) if patterns else None

    def text(self, text: str) -> str:
        return text if self._found is None else self._found.sub(REDACTED, text)

    def clean(self, value: Any) -> Any:
        """A JSON value without the secrets, in strings and in keys."""
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
            return REDACTED if self._found.search(str(value)) else value
        return value
