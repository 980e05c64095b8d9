"""The faults of a world, and how often they occur: every seed draws its own mixture.

Law: a seed turns off each fault with a chance of one half (swarm testing). If everything failed at once, faults that
need long undisturbed work would not show.
"""

from __future__ import annotations

from random import Random

import msgspec


class Faults(msgspec.Struct, kw_only=True):
    """The chance of each fault, per occasion. 0 means never."""

    # Per transaction of an orchestrator.
    crash_before: float = 0.0
    """The process dies before the commit: the transaction is rolled back, and all answers are lost."""
    crash_after: float = 0.0
    """The process dies after the commit, before it has answered."""
    ambiguous_before: float = 0.0
    """The connection is lost during a COMMIT that did not take effect."""
    ambiguous_after: float = 0.0
    """The connection is lost during a COMMIT that did take effect."""
    conflict: float = 0.0
    """Deadlock or serialization failure."""
    busy: float = 0.0
    """The database stays locked."""
    slow: float = 0.0
    """A transaction waits seconds for the lock, or its answer is delayed as long."""
    # Per message.
    lose: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    """A message arrives later than most leases end."""
    deaf: float = 0.0
    """A wake-up is lost."""
    redeliver: float = 0.0
    """The sweeper finds an outbox row that was already delivered."""
    # Per job of a worker.
    vanish: float = 0.0
    """The worker drops the job silently, or dies."""
    pause: float = 0.0
    """The worker pauses, often for longer than its lease."""
    # Per minute, of one process or of the database.
    stall: float = 0.0
    """A process pauses."""
    skew: float = 0.0
    """A machine's clock is set forward or back."""
    outage: float = 0.0
    """The database is unreachable for a while."""
    unswept: float = 0.0
    """A process does not sweep for a while."""
    # Per machine.
    skewed: float = 0.0
    """A machine's clock is wrong, and stays wrong when the other faults stop."""


CALM = Faults()

_WORST: dict[str, float] = {
    "crash_before": 0.04,
    "crash_after": 0.04,
    "ambiguous_before": 0.08,
    "ambiguous_after": 0.08,
    "conflict": 0.15,
    "busy": 0.08,
    "slow": 0.1,
    "lose": 0.15,
    "duplicate": 0.2,
    "delay": 0.1,
    "deaf": 0.8,
    "redeliver": 0.5,
    "vanish": 0.15,
    "pause": 0.15,
    "stall": 0.5,
    "skew": 0.6,
    "outage": 0.3,
    "unswept": 0.5,
    "skewed": 0.8,
}


def draw_faults(rng: Random) -> Faults:
    chosen: dict[str, float] = {}
    for name, worst in _WORST.items():
        on, how_much = rng.random() < 0.5, rng.random()
        if on:
            chosen[name] = worst * how_much
    return Faults(**chosen)
