"""Time as an argument: whole microseconds since 1970, UTC.

The store's clock decides every lease, timeout and expiry; this module is where the host's is read.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Protocol

SECOND_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux counts a suspend in CLOCK_BOOTTIME only; macOS counts it in CLOCK_MONOTONIC, and has no other."""


def boot_seconds() -> float:
    """Seconds that have passed for everybody, from an arbitrary start: also while this process was stopped or the machine
    was suspended. The age of a lease is measured by it, and processes of one host may compare their readings."""
    return time.clock_gettime(_SINCE_BOOT)


@cache
def boot_id() -> str:
    """Which boot of the machine this is; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Clock(Protocol):
    """Where a store without a clock of its own gets the time from."""

    def now_us(self) -> int:
        """Wall time in microseconds."""
        ...

    def monotonic_us(self) -> int:
        """Time that never goes back, from an arbitrary start."""
        ...


class HostClock:
    """The machine's clock."""

    def now_us(self) -> int:
        """Wall time in microseconds."""
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        """Time that never goes back."""
        return time.monotonic_ns() // 1000

    def boot_us(self) -> int:
        """Time since the machine was booted, also while it slept; the same in all processes of the machine."""
        return time.clock_gettime_ns(_SINCE_BOOT) // 1000

    def boot_id(self) -> str:
        """Which boot of the machine this is; empty where the system does not say."""
        return boot_id()


class ManualClock:
    """A clock that tests and the simulator move by hand."""

    def __init__(self, now_us: int = 1_767_225_600 * SECOND_US) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        """The moment it was set to."""
        return self._now_us

    def monotonic_us(self) -> int:
        """The same moment: time moves only by hand."""
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Let time pass (or, for a clock that was stepped back, un-pass)."""
        self._now_us += round(seconds * SECOND_US)


def us(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(seconds * SECOND_US)


def to_micros(at: datetime) -> int:
    """Microseconds since 1970; a datetime without a zone is UTC."""
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return (at - _EPOCH) // _MICROSECOND


def to_datetime(us: int) -> datetime:
    return _EPOCH + us * _MICROSECOND


def to_optional_datetime(us: int | None) -> datetime | None:
    return None if us is None else to_datetime(us)
