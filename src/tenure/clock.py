"""Time as an argument: whole microseconds since 1970, UTC.

The store's clock decides every lease, timeout and expiry. Only this module reads the clock of the host.
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
"""This clock runs on while the machine is suspended: on Linux only CLOCK_BOOTTIME does, on macOS CLOCK_MONOTONIC does."""


def boot_seconds() -> float:
    """Seconds from an arbitrary start, including the time while this process was stopped or the machine was suspended. It measures the
    age of a lease. Processes of one host can compare their readings."""
    return time.clock_gettime(_SINCE_BOOT)


@cache
def boot_id() -> str:
    """Identifies this boot of the machine. Empty if the system does not provide it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Clock(Protocol):
    """The clock of a store whose database has none."""

    def now_us(self) -> int:
        """Wall time."""

    def monotonic_us(self) -> int:
        """Time that never goes back, from an arbitrary start."""


class HostClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000

    def boot_us(self) -> int:
        """Time since the boot, including suspends; the same in all processes of the machine."""
        return time.clock_gettime_ns(_SINCE_BOOT) // 1000

    def boot_id(self) -> str:
        return boot_id()


class ManualClock:
    """A clock that tests and the simulator advance."""

    def __init__(self, now_us: int = 1_767_225_600 * SECOND_US) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Move the clock, also backwards."""
        self._now_us += round(seconds * SECOND_US)


def us(seconds: float) -> int:
    return round(seconds * SECOND_US)


def to_micros(at: datetime) -> int:
    """Microseconds since 1970. A datetime without a zone is UTC."""
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return (at - _EPOCH) // _MICROSECOND


def to_datetime(us: int) -> datetime:
    return _EPOCH + us * _MICROSECOND


def to_optional_datetime(us: int | None) -> datetime | None:
    return None if us is None else to_datetime(us)
