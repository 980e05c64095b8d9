"""Options of decorators and words, checked where they are written.

Law: what is wrong is told with whose option it is, which one, and an example of what it may be: a TypeError or ValueError at the
line of a decorator, INVALID_INPUT in a workflow that runs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from tenure.durations import seconds
from tenure.errors import TenureError
from tenure.kernel.retry import Backoff
from tenure.kernel.terms import Terms
from tenure.limits import CHECKPOINTS_PER_RUN_MAX, RETRIES_MAX
from tenure.suggestions import close_to

Duration = str | int | float | timedelta


def check_known(kind: str, function: object, given: dict[str, Any], made: Callable[..., Any]) -> None:
    """Refuse a decorator that is given what is no function, or an option there is not."""
    if not callable(function):
        raise TypeError(
            f"@tenure.{kind} stands above a function, and its options have names, such as"
            f" @tenure.{kind}(name={str(function)!r})"
        )
    known = [name for name in inspect.signature(made).parameters if name != "function"]
    for name in given:
        if name not in known:
            raise TypeError(
                f"{kind} {getattr(function, '__name__', function)!r} has an option {name!r} that there is not"
                f"{close_to(name, known)}; there are {', '.join(known)}"
            )


def in_seconds(what: str, option: str, length: Duration | None) -> float | None:
    """A length of time in seconds; what is none is refused by the name of its option."""
    try:
        return None if length is None else seconds(length)
    except TenureError as refused:
        where = f"{what}: {option}" if option else what
        raise TenureError(refused.code, f"{where}: {refused.message}", refused.details) from None


def duration(what: str, option: str, length: Duration | None) -> float | None:
    """The same for a decorator's option."""
    try:
        return in_seconds(what, option, length)
    except TenureError as refused:
        kind = ValueError if isinstance(length, str | int | float | timedelta) else TypeError
        raise kind(f'{refused.message}, such as {option}="30s"') from None


def terms(what: str, budget: Any, compensate: bool) -> Terms:
    """What a workflow asks of its runs."""
    try:
        return Terms.of(budget, compensate)
    except TenureError as refused:
        raise ValueError(f'{what}: {refused.message}, such as budget="5 USD"') from None


def retries(what: str, given: Any) -> int | None:
    """How often a step is tried again."""
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{what}: retries is a whole number such as retries=3, not {given!r}")
    if not 0 <= given <= RETRIES_MAX:
        raise ValueError(f"{what}: retries are 0 to {RETRIES_MAX}, not {given}")
    return given


def steps_max(what: str, given: Any) -> int:
    """How many steps a run may record."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{what}: steps_max is a whole number such as steps_max=50_000, not {given!r}")
    if not 1 <= given <= CHECKPOINTS_PER_RUN_MAX:
        raise ValueError(f"{what}: steps_max is 1 to {CHECKPOINTS_PER_RUN_MAX}, not {given}")
    return given


def backoff(what: str, given: Iterable[Duration] | None) -> Backoff | None:
    """The pauses between a step's tries."""
    if given is None:
        return None
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f'{what}: backoff is a list of pauses such as backoff=["1s", "10s"], not {given!r}')
    pauses = []
    for each in given:
        try:
            pauses.append(seconds(each))
        except TenureError as refused:
            raise ValueError(f'{what}: backoff: {refused.message}, such as backoff=["1s", "10s"]') from None
    return Backoff("list", seconds=tuple(pauses))


def jitter(what: str, given: Any) -> float | None:
    """By how much of itself a pause may differ."""
    if given is None:
        return None
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"{what}: jitter is a share of the pause such as jitter=0.2, not {given!r}")
    if not 0 <= given < math.inf:
        raise ValueError(f"{what}: jitter is a share of the pause such as jitter=0.2, not {given}")
    return float(given)


def flags(what: str, **given: Any) -> None:
    """What is either so or not."""
    for option, value in given.items():
        if not isinstance(value, bool):
            raise TypeError(f"{what}: {option} is True or False, such as {option}=False, not {value!r}")


def one_of(what: str, option: str, given: Any, known: tuple[str, ...]) -> None:
    """What has one of a few names."""
    if given is not None and given not in known:
        said = " or ".join(f'{option}="{each}"' for each in known)
        raise ValueError(f"{what}: {option} may be {said}, not {given!r}")
