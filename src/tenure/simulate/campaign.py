"""Many seeds on all cores.

Law: a seed's outcome depends on nothing but the seed: not on its neighbours, not on the core it ran on.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing

import msgspec

from tenure.simulate.world import SeedReport, World

SEEDS_PER_PIECE = 5
"""Enough to make sending them worth while, few enough for a lively progress bar."""


class SeedTally(msgspec.Struct):
    """What many seeds came to."""

    seeds: int = 0
    runs: int = 0
    commands: int = 0
    commits: int = 0
    seconds: float = 0.0
    """Virtual ones."""
    failed: list[SeedReport] = []

    def add(self, report: SeedReport) -> None:
        """Count one more seed."""
        self.seeds += 1
        self.runs += report.runs
        self.commands += report.commands
        self.commits += report.commits
        self.seconds += report.seconds
        if report.violation is not None:
            self.failed.append(report)


def reproduction_command(seed: int) -> str:
    """The one line that reproduces a seed."""
    return f"tenure simulate --seed {seed}"


def run_seeds(
    seeds: Iterable[int], *, jobs: int = 1, seen: Callable[[SeedReport], None] = lambda _: None
) -> SeedTally:
    """Run every seed and count; `seen` is told of each as it comes in, in whatever order."""
    tally = SeedTally()
    with closing(_reports(list(seeds), jobs)) as reports:
        for report in reports:
            tally.add(report)
            seen(report)
    tally.failed.sort(key=lambda report: report.seed)
    return tally


def _reports(seeds: list[int], jobs: int) -> Generator[SeedReport, None, None]:
    if jobs <= 1 or len(seeds) <= SEEDS_PER_PIECE:
        yield from map(_one, seeds)
        return
    pieces = [seeds[at : at + SEEDS_PER_PIECE] for at in range(0, len(seeds), SEEDS_PER_PIECE)]
    # Fresh interpreters: a forked one would inherit the threads and loops of whoever asked.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(pieces)), mp_context=fresh) as pool:
        for done in as_completed([pool.submit(_several, piece) for piece in pieces]):
            yield from done.result()


def _several(seeds: list[int]) -> list[SeedReport]:
    return [_one(seed) for seed in seeds]


def _one(seed: int) -> SeedReport:
    return World(seed).run()
