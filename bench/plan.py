"""How much is measured: the sizes of one run of the bench."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes, chosen so that a sample takes a few seconds on a small machine."""

    repeat: int = 5
    """Samples per figure; the median counts."""
    floor_rows: int = 100
    """Rows per commit of the floor. The bars are stated for a hundred."""
    floor_batches: int = 300
    code_first_runs: int = 4000
    code_first_in_flight: int = 400
    leased_runs: int = 1500
    leased_in_flight: int = 800
    workers: int = 2
    slots: int = 400
    """Steps one worker holds at a time."""
    warm_runs: int = 200
    """Runs before the clock starts: connections, prepared statements, caches."""
    lone_runs: int = 400
    long_steps: int = 10_000
    long_runs: int = 8
    """Long runs side by side."""
    segment_steps: int = 150
    """Steps of each long run per sample."""
    finished: int = 0
    """Finished runs in the database of the figures about those; 0 leaves them out."""
    suspended: int = 10_000
    """Runs that wait for a person."""
    many: tuple[int, int, int] = (100, 1_000, 10_000)
    """Items of one run, whose cost for each is compared."""
    children: int = 5_000
    """Children of one run that is timed as a whole."""
    replayed_steps: int = 50_000
    """Recorded steps of a run that goes on."""
    checked_runs: int = 5
    """Runs of each sample that the doctor looks at."""


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
"""Shows that the bench works; says nothing about speed."""
