"""What can go wrong, and how often: every seed has its own mixture.

Law: a seed turns each fault off half the time (swarm testing): a world in which everything fails at once
hides the faults that need quiet to show.
"""

from __future__ import annotations

from random import Random

import msgspec


class Faults(msgspec.Struct, kw_only=True):
    """Chances are per occasion; 0 means never."""

    # Per transaction of an orchestrator.
    crash_before: float = 0.0
    """The process dies before the commit: rolled back, all answers lost."""
    crash_after: float = 0.0
    """The process dies after the commit, before anybody is answered."""
    ambiguous_before: float = 0.0
    """The connection is lost during COMMIT, which did not happen."""
    ambiguous_after: float = 0.0
    """The connection is lost during COMMIT, which did happen."""
    conflict: float = 0.0
    """Deadlock or serialization failure."""
    busy: float = 0.0
    """The database stayed locked."""
    slow: float = 0.0
    """A transaction waits seconds for its turn, or its answer takes as long."""
    # Per message.
    lose: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    """A message is under way for longer than most leases."""
    deaf: float = 0.0
    """A wake-up is lost."""
    redeliver: float = 0.0
    """The sweeper takes up an outbox row that somebody has delivered meanwhile."""
    # Per job of a worker.
    vanish: float = 0.0
    """The worker drops the job without a word, or dies."""
    pause: float = 0.0
    """The worker stands still, often for longer than its lease."""
    # Per minute of a process or of all.
    stall: float = 0.0
    """A process stands still."""
    skew: float = 0.0
    """A machine's clock is set: ahead, or stepped back."""
    outage: float = 0.0
    """The database cannot be reached for a while."""
    unswept: float = 0.0
    """A process does not sweep for a while."""
    # Per machine.
    skewed: float = 0.0
    """A machine's clock is wrong for good, also after the other faults have stopped."""


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


def draw(rng: Random) -> Faults:
    """A mixture for one seed."""
    chosen: dict[str, float] = {}
    for name, worst in _WORST.items():
        on, how_much = rng.random() < 0.5, rng.random()
        if on:
            chosen[name] = worst * how_much
    return Faults(**chosen)
