"""Masks the secrets of a job in its log, also where a secret is split between two pieces of output.

Laws:
1. A secret is masked as it is, line by line if it has several lines, and as base64 (at each of the three alignments), percent-encoded and
   escaped for JSON. Other transformations are not recognised: a job that is given a secret can always print it in disguise.
2. Output waits only while it may be the beginning of a secret. `flush` returns what has waited.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from urllib.parse import quote_from_bytes

import msgspec

MASK = b"***"
SECRET_BYTES_MIN = 4
"""A shorter text would mask half of a log, and anybody can guess it."""

FORM_BYTES_MAX = 4_096
"""A longer secret is masked piece by piece."""


class SecretMasker:
    def __init__(self, secrets: Iterable[bytes]) -> None:
        forms = {form for secret in secrets for form in _list_forms(secret)}
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self._expression = re.compile(b"|".join(map(re.escape, self._forms))) if forms else None
        self._longest = max(map(len, forms), default=0)
        self._waiting = b""

    def feed(self, data: bytes) -> bytes:
        """The next output, masked, as far as it is decided."""
        if self._expression is None:
            return data
        data = self._waiting + data
        masked: list[bytes] = []
        at = 0
        hold = self._find_hold(data, 0)
        for found in self._expression.finditer(data):
            if found.start() >= hold:
                break
            masked += (data[at : found.start()], MASK)
            at = found.end()
            if at > hold:
                hold = self._find_hold(data, at)
        masked.append(data[at:hold])
        self._waiting = data[hold:]
        return b"".join(masked)

    def flush(self) -> bytes:
        waiting, self._waiting = self._waiting, b""
        return waiting if self._expression is None else self._expression.sub(MASK, waiting)

    def mask_text(self, text: str) -> str:
        data = text.encode(errors="surrogatepass")  # the name of a file may not be text
        return (data if self._expression is None else self._expression.sub(MASK, data)).decode(
            errors="replace"
        )

    def _find_hold(self, data: bytes, start: int) -> int:
        """Where the longest end of `data` begins that may be the beginning of a secret."""
        first = max(start, len(data) - self._longest + 1)
        hold = len(data)
        for form in self._forms:
            at = data.find(form[:SECRET_BYTES_MIN], max(first, len(data) - len(form) + 1))
            while 0 <= at < hold and not form.startswith(data[at:]):
                at = data.find(form[:SECRET_BYTES_MIN], at + 1)
            if 0 <= at < hold:
                hold = at
            for at in range(max(first, len(data) - SECRET_BYTES_MIN + 1), hold):
                if form.startswith(data[at:]):
                    hold = at
                    break
        return hold


def _list_forms(secret: bytes) -> set[bytes]:
    parts = {secret, *(line.strip() for line in secret.splitlines())}
    forms = set(parts)
    for part in parts:
        if len(part) < SECRET_BYTES_MIN:
            continue
        forms |= {quote_from_bytes(part).encode(), quote_from_bytes(part, safe="").encode()}
        forms.add(msgspec.json.encode(part.decode(errors="replace"))[1:-1])
        for shift in range(3):
            # The characters that also depend on the bytes around the secret are left out.
            encoded = base64.b64encode(bytes(shift) + part)
            inner = encoded[-(-shift * 8 // 6) : (shift + len(part)) * 8 // 6]
            forms |= {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}
    pieces = {form[at : at + FORM_BYTES_MAX] for form in forms for at in range(0, len(form), FORM_BYTES_MAX)}
    return {piece for piece in pieces if len(piece) >= SECRET_BYTES_MIN}
