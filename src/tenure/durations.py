"""Lengths of time as people write them: `90s`, `5m`, `1h30m`, `1d`, or plain seconds.

Law: a value that is not a length of time is INVALID_INPUT, with examples of valid ones. A length is never negative and never
longer than the longest timeout of a run.
"""

from __future__ import annotations

import re
from datetime import timedelta
from math import inf, isfinite

from tenure.errors import TenureError
from tenure.limits import RUN_TIMEOUT_SECONDS_MAX

UNIT_SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""The units, in the order in which they must be written."""
NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
PATTERN = rf"(?:{NUMBER}|(?=[0-9])" + "".join(rf"(?:{NUMBER}{unit})?" for unit in UNIT_SECONDS) + ")"
"""The whole text must match. The published schema of workflow files contains it too."""

_WHOLE = re.compile(PATTERN)
_PART = re.compile(rf"({NUMBER})(ms|[dhms])")
_EXAMPLES = "90s, 5m, 2h, 1d, 1h30m or plain seconds"


def parse_duration(value: str | int | float | timedelta) -> float:
    """A length of time in seconds."""
    length = _length(value)
    if not isfinite(length) or not 0 <= length <= RUN_TIMEOUT_SECONDS_MAX:
        days = int(RUN_TIMEOUT_SECONDS_MAX // 86_400)
        raise TenureError("INVALID_INPUT", f"{_shown(value)} is not a length of time from 0 to {days} days")
    return length


def _length(value: object) -> float:
    """The seconds of a value of any type, before the check of its range."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _text_seconds(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TenureError(
            "INVALID_INPUT", f"a {type(value).__name__} is not a length of time; write {_EXAMPLES}"
        )
    try:
        return float(value)
    except OverflowError:
        return inf


def _text_seconds(text: str) -> float:
    if _WHOLE.fullmatch(text) is None:
        raise TenureError("INVALID_INPUT", f"{_shown(text)} is not a length of time; write {_EXAMPLES}")
    parts = _PART.findall(text)
    return float(sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts) if parts else text)


def _shown(value: object) -> str:
    shown = str(value) if isinstance(value, timedelta) else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
