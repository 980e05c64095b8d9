"""Ids of runs, approvals, proposals and receipts: texts for people, integers for the database.

`run_2026-02-14_080000_abc123` is the second of creation and 31 more bits. In each second a process draws a random number for each tenant
and counts up from it. So the ids of a tenant that one process makes ascend, new rows go to the end of every index, and an id does not
reveal how many runs other tenants have. The text sorts like the integer, and the conversion is exact both ways.
`apr_2026-02-14_0hs5wcgrde1` is a run and the number of an approval in it. A proposal begins with `prop_`, a receipt with `rcp_`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from random import Random, SystemRandom

from tenure.errors import TenureError

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX_BITS = 31
_SUFFIX_MASK = (1 << _SUFFIX_BITS) - 1
_DRAWN_BITS = 30
"""The bits of the random number. The other half of the range is room for counting up."""
_PART = re.compile(r"(apr|prop|rcp)_(\d{4}-\d{2}-\d{2})_([0-9a-z]{10})([1-9a-z][0-9a-z]{0,5})")
_DAY_SECONDS = 86_400
_RUN = re.compile(r"run_(\d{4}-\d{2}-\d{2}_\d{6})_([0-9a-z]{6})")


class RunIds:
    """Makes run ids. A process never repeats an id. If two processes make a thousand runs each per second, ids collide in one of half a
    million seconds."""

    def __init__(self, seed: int | None = None) -> None:
        # The number of one tenant must not reveal that of another.
        self._chance = SystemRandom() if seed is None else Random(seed)
        self._second = -1
        self._last: dict[str, int] = {}
        self._used: set[int] = set()

    def new(self, now_us: int, tenant: str = "") -> int:
        second = now_us // 1_000_000
        if second > self._second:
            self._second = second
            self._last.clear()
            self._used.clear()
        number = self._last.get(tenant)
        if number is None:
            number = self._chance.getrandbits(_DRAWN_BITS)
        number += 1
        while number in self._used:
            number += 1
        self._last[tenant] = number
        self._used.add(number)
        return self._second << _SUFFIX_BITS | number


_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]


@lru_cache(maxsize=64)
def _text_prefix(second: int) -> str:
    return f"run_{datetime.fromtimestamp(second, UTC):%Y-%m-%d_%H%M%S}_"


@lru_cache(maxsize=1024)
def run_text(run_id: int) -> str:
    high, low = divmod(run_id & _SUFFIX_MASK, 1296)
    return f"{_text_prefix(run_id >> _SUFFIX_BITS)}{_PAIRS[high // 1296]}{_PAIRS[high % 1296]}{_PAIRS[low]}"


def second_of(run_id: int) -> int:
    """The second of a run's creation."""
    return run_id >> _SUFFIX_BITS


@lru_cache(maxsize=64)
def _second(made: str) -> int:
    """The time in an id, in seconds; -1 if it is invalid."""
    try:
        moment = datetime.strptime(made, "%Y-%m-%d_%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return -1
    return int(moment.timestamp())


def run_int(text: str) -> int:
    """The integer of an id. RUN_NOT_FOUND for a text that is not an id."""
    found = _RUN.fullmatch(text)
    if found:
        second, suffix = _second(found[1]), int(found[2], 36)
        if second >= 0 and suffix <= _SUFFIX_MASK:
            return second << _SUFFIX_BITS | suffix
    raise TenureError("RUN_NOT_FOUND", f"there is no run {text[:64]!r}")


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def question_text(kind: str, run_id: int, no: int) -> str:
    return _part_text("prop" if kind == "proposal" else "apr", run_id, no)


def receipt_text(run_id: int, no: int) -> str:
    return _part_text("rcp", run_id, no)


def _part_text(prefix: str, run_id: int, no: int) -> str:
    day, within = divmod(run_id, _DAY_SECONDS << _SUFFIX_BITS)
    date = datetime.fromtimestamp(day * _DAY_SECONDS, UTC)
    return f"{prefix}_{date:%Y-%m-%d}_{_base36(within):0>10}{_base36(no)}"


def question_ints(text: str) -> tuple[int, int]:
    """The run and the number of an approval or proposal. APPROVAL_NOT_FOUND for a text that is not an id."""
    if (found := _part_ints(text, ("apr", "prop"))) is None:
        raise TenureError("APPROVAL_NOT_FOUND", f"there is no approval or proposal {text!r}")
    return found


def receipt_ints(text: str) -> tuple[int, int]:
    """The run and the number of a receipt. RECEIPT_NOT_FOUND for a text that is not an id."""
    if (found := _part_ints(text, ("rcp",))) is None:
        raise TenureError("RECEIPT_NOT_FOUND", f"there is no receipt {text[:64]!r}")
    return found


def _part_ints(text: str, prefixes: tuple[str, ...]) -> tuple[int, int] | None:
    found = _PART.fullmatch(text)
    if found and found[1] in prefixes:
        try:
            day = datetime.strptime(found[2], "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            return None
        within = int(found[3], 36)
        if day.timestamp() >= 0 and within >> _SUFFIX_BITS < _DAY_SECONDS:
            return (int(day.timestamp()) << _SUFFIX_BITS) + within, int(found[4], 36)
    return None
