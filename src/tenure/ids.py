"""Ids of runs, and of the questions they ask: a text for people, integers for the database.

`run_2026-02-14_080000_abc123` is (second of creation, 31 bits more). The bits are counted on from a number that every
process draws anew each second for each tenant, so the ids of a tenant that one process makes ascend, and they tell nothing of
how many runs others have made: new rows go to the end of every table and index, or near it. The text says when the run was
made, and sorts as the integer does. Both ways are exact.
`apr_2026-02-14_0hs5wcgrde1` is (run, number of the question in it): an approval's; a proposal's begins with `prop_`,
a receipt's with `rcp_`.
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
"""Of the number that a second's ids are counted from: nobody makes the 2^30 a second that are left behind it."""
_PART = re.compile(r"(apr|prop|rcp)_(\d{4}-\d{2}-\d{2})_([0-9a-z]{10})([1-9a-z][0-9a-z]{0,5})")
_DAY_SECONDS = 86_400
_RUN = re.compile(r"run_(\d{4}-\d{2}-\d{2}_\d{6})_([0-9a-z]{6})")


class RunIds:
    """Makes run ids. One process never repeats one. Two processes that make a thousand runs each in every second make some of the
    same in one of half a million seconds."""

    def __init__(self, seed: int | None = None) -> None:
        # What is drawn for one tenant must not tell what is drawn for another.
        self._chance = SystemRandom() if seed is None else Random(seed)
        self._second = -1
        self._last: dict[str, int] = {}
        """The last number of each tenant within the second."""
        self._used: set[int] = set()
        """All numbers within the second."""

    def new(self, now_us: int, tenant: str = "") -> int:
        """A fresh id for a tenant's run made at this moment."""
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
def _made(second: int) -> str:
    return f"run_{datetime.fromtimestamp(second, UTC):%Y-%m-%d_%H%M%S}_"


@lru_cache(maxsize=1024)
def run_text(run_id: int) -> str:
    """The id as people see it."""
    suffix = run_id & _SUFFIX_MASK
    high, low = divmod(suffix, 1296)
    return f"{_made(run_id >> _SUFFIX_BITS)}{_PAIRS[high // 1296]}{_PAIRS[high % 1296]}{_PAIRS[low]}"


def second_of(run_id: int) -> int:
    """When the run was made, in seconds."""
    return run_id >> _SUFFIX_BITS


@lru_cache(maxsize=64)
def _second(made: str) -> int:
    """The moment in an id, in seconds; -1 for one that there is not."""
    try:
        moment = datetime.strptime(made, "%Y-%m-%d_%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return -1
    return int(moment.timestamp())


def run_int(text: str) -> int:
    """The integer behind an id; anything that is not one is a run that does not exist."""
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
    """The id of a run's approval or proposal, as people see it."""
    return _part_text("prop" if kind == "proposal" else "apr", run_id, no)


def receipt_text(run_id: int, no: int) -> str:
    """The id of a run's receipt, as people see it."""
    return _part_text("rcp", run_id, no)


def _part_text(prefix: str, run_id: int, no: int) -> str:
    second, suffix = run_id >> _SUFFIX_BITS, run_id & _SUFFIX_MASK
    day = datetime.fromtimestamp(second, UTC)
    within = _base36((second % _DAY_SECONDS) << _SUFFIX_BITS | suffix)
    return f"{prefix}_{day:%Y-%m-%d}_{within:0>10}{_base36(no)}"


def question_ints(text: str) -> tuple[int, int]:
    """The run and the number behind a question's id; anything that is not one is a question nobody asked."""
    found = _part_ints(text, ("apr", "prop"))
    if found is None:
        raise TenureError("APPROVAL_NOT_FOUND", f"there is no approval or proposal {text!r}")
    return found


def receipt_ints(text: str) -> tuple[int, int]:
    """The run and the number behind a receipt's id; anything that is not one is a receipt of nothing."""
    found = _part_ints(text, ("rcp",))
    if found is None:
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
