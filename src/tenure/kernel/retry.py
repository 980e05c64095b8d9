"""When a failed try may be made again: backoff formulas and failure rules, both as data.

Laws:
1. The documents' figures are the nominal delays; jitter only ever adds to them, so that a herd of
   failures comes back spread out and never sooner than its document says.
2. No delay reaches past its cap (what is left until the step's or the run's deadline) or below zero.
3. Chance is an argument: the same generator gives the same delays.
4. Whether a failure is worth another try is decided by the first rule that matches its code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, Protocol

import msgspec

NOMINAL_SECONDS_MAX = 366 * 86_400.0
"""No formula waits longer than this, however often a step has failed."""

_US = 1_000_000


class Rng(Protocol):
    """The part of `random.Random` that is used here."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long to wait after the n-th failed try, before jitter.

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
            raise ValueError("every figure of a backoff is a number that is not negative")
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
                raise ValueError("a backoff's 'factor' is at least 1: waits do not shrink")
            if self.first_exponent < 0:
                raise ValueError("a backoff's 'first_exponent' is not negative")

    def nominal_seconds(self, n: int) -> float:
        """The document's delay after the n-th failed try, n >= 1."""
        if n < 1:
            raise ValueError("the first failed try is number 1")
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
    """Microseconds to wait after the n-th failed try: in [nominal, nominal * (1 + jitter)].

    `until_cap_us` is what is left until the SLA; a longer delay is cut to it.
    """
    nominal = round(backoff.nominal_seconds(n) * _US)
    delay = nominal + int(nominal * jitter * rng.random())
    if until_cap_us is not None:
        delay = min(delay, until_cap_us)
    return max(delay, 0)


class FailureRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of a failure classification."""

    pattern: str
    """A glob on the failure's code, case and all: `HTTP_5*`."""
    retryable: bool
    note: str = ""


def is_retryable(rules: Iterable[FailureRule], default: bool, code: str) -> bool:
    """Whether a failure with this code may be tried again: the first matching rule says so."""
    for rule in rules:
        if fnmatchcase(code, rule.pattern):
            return rule.retryable
    return default


KERNEL_RULES: tuple[FailureRule, ...] = (
    FailureRule("STEP_TIMED_OUT", True, "another worker may be quicker; the budget of tries still ends it"),
    FailureRule("STEP_STALLED", True, "another worker may get on; the budget of tries still ends it"),
    FailureRule("STEP_LOST", True, "the worker was lost, which says nothing about the work"),
    FailureRule("RUN_RESUME_FAILED", False, "trying again is what could not be done safely"),
    FailureRule("RUN_ORPHANED", False, "the recovery of this profile has already decided"),
    FailureRule("PAYLOAD_TOO_LARGE", False, "the same work makes the same payload"),
    FailureRule("CHECKPOINT_*", False, "the code no longer fits its history"),
)
"""What the kernel's own codes mean under every profile; looked at before the profile's rules."""
