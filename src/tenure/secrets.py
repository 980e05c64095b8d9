"""Secrets that others share with us, by reference.

Laws:
1. What is kept, shown and logged is the reference: `env:NAME` or `file:/ABSOLUTE/PATH`. Its value is read where it is used,
   each time, so that a changed secret counts at once.
2. No message says anything of a value, nor whether it was nearly right.
3. An empty secret is none: it would let everybody in.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tenure.errors import TenureError

SECRET_BYTES_MAX = 64 * 1024
REFERENCE_CHARS_MAX = 1_000
_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_FILE = re.compile(r"file:(/[^\0]+)")
FORM = "is a reference, `env:NAME` or `file:/PATH`; the secret itself is never sent here"


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference; whether it leads anywhere is known where it is used."""
    fits = _ENV.fullmatch(text) or _FILE.fullmatch(text)
    return fits is not None and len(text) <= REFERENCE_CHARS_MAX and text.isprintable()


def resolve(reference: str) -> bytes:
    """The value behind a reference, without its last line's end; SECRET_UNAVAILABLE where there is none."""
    if not is_reference(reference):
        raise TenureError("SECRET_UNAVAILABLE", "a secret is named by `env:NAME` or `file:/PATH`")
    kind, _, where = reference.partition(":")
    value = os.environb.get(where.encode()) if kind == "env" else _read(Path(where))
    if not value:
        raise TenureError("SECRET_UNAVAILABLE", f"{reference} leads to nothing here")
    return value


def _read(file: Path) -> bytes | None:
    try:
        with file.open("rb") as opened:
            value = opened.read(SECRET_BYTES_MAX + 1)
    except OSError:
        return None
    if len(value) > SECRET_BYTES_MAX:
        return None
    return value.removesuffix(b"\n").removesuffix(b"\r")
