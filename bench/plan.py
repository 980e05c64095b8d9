"""The sizes of the samples."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the samples, chosen so that each takes a few seconds on a small machine."""

    repeat: int = 5
    """Samples per figure. The median counts."""
    floor_rows: int = 100
    """Rows per commit of the floor. The bars are stated for 100."""
    floor_batches: int = 300
    code_first_runs: int = 4000
    code_first_in_flight: int = 400
    leased_runs: int = 1500
    leased_in_flight: int = 800
    workers: int = 2
    slots: int = 400
    """Concurrent steps of one worker."""
    warm_runs: int = 200
    """Runs before the clock starts, which fill connections, prepared statements and caches."""
    lone_runs: int = 400
    long_steps: int = 10_000
    long_runs: int = 8
    """Concurrent long runs."""
    segment_steps: int = 150
    """Steps of each long run per sample."""
    finished: int = 0
    """Finished runs in the database; 0 leaves out the figures about them."""
    suspended: int = 10_000
    """Runs that wait for a person."""
    many: tuple[int, int, int] = (100, 1_000, 10_000)
    """The numbers of items in one run whose costs per item are compared."""
    children: int = 5_000
    """Children of the run that is timed as a whole."""
    replayed_steps: int = 50_000
    """Recorded steps of the run that is replayed."""
    checked_runs: int = 5
    """Runs of each sample that the doctor examines."""


QUICK = Plan(
    repeat=1,
    floor_batches=5,
    code_first_runs=60,
    code_first_in_flight=30,
    leased_runs=30,
    leased_in_flight=20,
    slots=20,
    warm_runs=5,
    lone_runs=5,
    long_steps=200,
    long_runs=2,
    segment_steps=20,
    suspended=20,
    many=(4, 8, 16),
    children=20,
    replayed_steps=100,
    checked_runs=2,
)
"""Shows that the bench works, and says nothing about speed."""
