"""When a failed attempt is retried: backoff formulas and failure rules, both as data.

Laws:
1. The delays of a profile are nominal. Jitter only adds to them, so that many failures at once are retried spread out,
   and never earlier than the profile says.
2. A delay is never negative, and never longer than its cap (the time left until the run's deadline).
3. Chance is an argument: the same generator gives the same delays.
4. The first rule that matches a failure's code decides whether it is retried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, Protocol

import msgspec

from tenure.clock import us

NOMINAL_SECONDS_MAX = 366 * 86_400.0
"""The longest delay of any formula, however often a step has failed."""


class Rng(Protocol):
    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long to wait after the n-th failed attempt, before jitter.

    `exponential`: base_seconds * factor ** (first_exponent + n - 1), at most cap_seconds.
    `list`: the n-th entry of seconds; the last one repeats.
    """

    kind: Literal["exponential", "list"]
    base_seconds: float | None = None
    factor: float = 2.0
    first_exponent: int = 0
    cap_seconds: float | None = None
    seconds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        figures = [self.factor, *self.seconds]
        figures += [x for x in (self.base_seconds, self.cap_seconds) if x is not None]
        if any(not math.isfinite(x) or x < 0 for x in figures):
            raise ValueError("every number of a backoff must be finite and not negative")
        if self.kind == "list":
            if not self.seconds:
                raise ValueError("a backoff of kind 'list' needs 'seconds' with at least one entry")
            if self.base_seconds is not None or self.cap_seconds is not None:
                raise ValueError("a backoff of kind 'list' takes 'seconds' only")
        else:
            if self.base_seconds is None:
                raise ValueError("a backoff of kind 'exponential' needs 'base_seconds'")
            if self.seconds:
                raise ValueError("a backoff of kind 'exponential' takes no 'seconds'")
            if self.factor < 1:
                raise ValueError("a backoff's 'factor' must be at least 1")
            if self.first_exponent < 0:
                raise ValueError("a backoff's 'first_exponent' must not be negative")

    def nominal_seconds(self, n: int) -> float:
        """The delay after the n-th failed attempt, n >= 1."""
        if n < 1:
            raise ValueError("the number of a failed attempt must be at least 1")
        if self.kind == "list":
            seconds = self.seconds[min(n, len(self.seconds)) - 1]
        else:
            try:
                seconds = (self.base_seconds or 0.0) * self.factor ** (self.first_exponent + n - 1)
            except OverflowError:
                seconds = NOMINAL_SECONDS_MAX
            if self.cap_seconds is not None:
                seconds = min(seconds, self.cap_seconds)
        return min(seconds, NOMINAL_SECONDS_MAX)


def delay_us(backoff: Backoff, n: int, jitter: float, rng: Rng, until_cap_us: int | None) -> int:
    """The delay after the n-th failed attempt: in [nominal, nominal * (1 + jitter)], and at most `until_cap_us`."""
    nominal = us(backoff.nominal_seconds(n))
    delay = nominal + int(nominal * jitter * rng.random())
    return max(delay if until_cap_us is None else min(delay, until_cap_us), 0)


class FailureRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pattern: str
    """A case-sensitive glob on the failure's code: `HTTP_5*`."""
    retryable: bool
    note: str = ""


def is_retryable(rules: Iterable[FailureRule], default: bool, code: str) -> bool:
    return next((rule.retryable for rule in rules if fnmatchcase(code, rule.pattern)), default)


KERNEL_RULES: tuple[FailureRule, ...] = (
    FailureRule("STEP_TIMED_OUT", True, "another worker may be quicker; the limit on attempts still ends it"),
    FailureRule(
        "STEP_STALLED", True, "another worker may make progress; the limit on attempts still ends it"
    ),
    FailureRule("STEP_LOST", True, "the worker was lost, which says nothing about the work"),
    FailureRule("RUN_RESUME_FAILED", False, "a retry would not be safe"),
    FailureRule("RUN_ORPHANED", False, "the profile's recovery has already decided"),
    FailureRule("PAYLOAD_TOO_LARGE", False, "the same work makes the same payload"),
    FailureRule("CHECKPOINT_*", False, "the code no longer matches its history"),
)
"""The rules for the kernel's own codes. They precede the rules of every profile."""
