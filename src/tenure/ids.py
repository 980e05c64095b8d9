"""Ids of runs: a text for people, the same thing as a 63-bit integer for the database.

`run_2026-02-14_080000_abc123` is (second of creation, 31 random bits). The integer keeps creation order,
so it clusters well as a key; the text says when the run was made. Both ways are exact.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from functools import lru_cache

from tenure.errors import TenureError

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX_BITS = 31
_SUFFIX_MASK = (1 << _SUFFIX_BITS) - 1
_STRIDE = 0x5BD1E995 | 1  # odd, so that counting by it visits every suffix once before it repeats
_RUN = re.compile(r"run_(\d{4}-\d{2}-\d{2}_\d{6})_([0-9a-z]{6})")


class RunIds:
    """Makes run ids that one process never repeats; two processes meet once in 2^31 per second."""

    def __init__(self, start: int | None = None) -> None:
        self._suffix = secrets.randbits(_SUFFIX_BITS) if start is None else start

    def new(self, now_us: int) -> int:
        """A fresh id for a run made at this moment."""
        self._suffix = (self._suffix + _STRIDE) & _SUFFIX_MASK
        return (now_us // 1_000_000) << _SUFFIX_BITS | self._suffix


_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]


@lru_cache(maxsize=64)
def _made(second: int) -> str:
    return f"run_{datetime.fromtimestamp(second, UTC):%Y-%m-%d_%H%M%S}_"


def run_text(run_id: int) -> str:
    """The id as people see it."""
    suffix = run_id & _SUFFIX_MASK
    high, low = divmod(suffix, 1296)
    return f"{_made(run_id >> _SUFFIX_BITS)}{_PAIRS[high // 1296]}{_PAIRS[high % 1296]}{_PAIRS[low]}"


def run_int(text: str) -> int:
    """The integer behind an id; anything that is not one is a run that does not exist."""
    found = _RUN.fullmatch(text)
    if found:
        try:
            made = datetime.strptime(found[1], "%Y-%m-%d_%H%M%S").replace(tzinfo=UTC)
        except ValueError:
            made = None
        suffix = int(found[2], 36)
        if made is not None and made.timestamp() >= 0 and suffix <= _SUFFIX_MASK:
            return int(made.timestamp()) << _SUFFIX_BITS | suffix
    raise TenureError("RUN_NOT_FOUND", f"there is no run {text!r}")
