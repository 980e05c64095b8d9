"""Checks of the options of decorators and primitives.

Law: an error names the definition, the option and a valid example. It is a TypeError or ValueError at a decorator, and INVALID_INPUT in a
running workflow.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from tenure.durations import parse_duration
from tenure.errors import TenureError
from tenure.kernel.retry import Backoff
from tenure.kernel.run_terms import RunTerms
from tenure.suggestions import did_you_mean

Duration = str | int | float | timedelta


def check_options(kind: str, function: object, given: dict[str, Any], made: Callable[..., Any]) -> None:
    """Refuse a decorator on something that is not callable, or with an unknown option."""
    if not callable(function):
        raise TypeError(
            f"@tenure.{kind} decorates a function, and its options are named, such as"
            f" @tenure.{kind}(name={str(function)!r})"
        )
    known = [name for name in inspect.signature(made).parameters if name != "function"]
    for name in given:
        if name not in known:
            raise TypeError(
                f"{kind} {getattr(function, '__name__', function)!r} has the unknown option {name!r}"
                f"{did_you_mean(name, known)}; the options are {', '.join(known)}"
            )


def to_seconds(what: str, option: str, length: Duration | None) -> float | None:
    """A duration in seconds, for an option of a primitive."""
    try:
        return None if length is None else parse_duration(length)
    except TenureError as refused:
        where = f"{what}: {option}" if option else what
        raise TenureError(refused.code, f"{where}: {refused.message}", refused.details) from None


def check_duration(what: str, option: str, length: Duration | None) -> float | None:
    """A duration in seconds, for an option of a decorator."""
    try:
        return to_seconds(what, option, length)
    except TenureError as refused:
        kind = ValueError if isinstance(length, str | int | float | timedelta) else TypeError
        raise kind(f'{refused.message}, such as {option}="30s"') from None


def check_terms(what: str, budget: Any, compensate: bool) -> RunTerms:
    try:
        return RunTerms.of(budget, compensate)
    except TenureError as refused:
        raise ValueError(f'{what}: {refused.message}, such as budget="5 USD"') from None


def check_count(what: str, option: str, given: Any, least: int, most: int, example: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{what}: {option} must be a whole number such as {option}={example}, not {given!r}")
    if not least <= given <= most:
        raise ValueError(f"{what}: {option} must be {least} to {most}, not {given}")
    return given


def check_backoff(what: str, given: Iterable[Duration] | None) -> Backoff | None:
    if given is None:
        return None
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(
            f'{what}: backoff must be a list of pauses such as backoff=["1s", "10s"], not {given!r}'
        )
    pauses = []
    for each in given:
        try:
            pauses.append(parse_duration(each))
        except TenureError as refused:
            raise ValueError(f'{what}: backoff: {refused.message}, such as backoff=["1s", "10s"]') from None
    return Backoff("list", seconds=tuple(pauses))


def check_jitter(what: str, given: Any) -> float | None:
    if given is None:
        return None
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"{what}: jitter must be a share of the pause such as jitter=0.2, not {given!r}")
    if not 0 <= given < math.inf:
        raise ValueError(f"{what}: jitter must be a share of the pause such as jitter=0.2, not {given}")
    return float(given)


def check_flags(what: str, **given: Any) -> None:
    for option, value in given.items():
        if not isinstance(value, bool):
            raise TypeError(f"{what}: {option} must be True or False, such as {option}=False, not {value!r}")
