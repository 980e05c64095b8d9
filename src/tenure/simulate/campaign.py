"""Runs many seeds on all cores.

Law: the result of a seed depends only on the seed, not on other seeds or on the process that ran it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing

import msgspec

from tenure.simulate.world import SeedReport, World

SEEDS_PER_TASK = 5
"""Many enough to be worth the transfer between processes, few enough for a smooth progress bar."""


class SeedTally(msgspec.Struct):
    """The results of many seeds, added up."""

    seeds: int = 0
    runs: int = 0
    commands: int = 0
    commits: int = 0
    seconds: float = 0.0
    """Virtual seconds."""
    failed: list[SeedReport] = []

    def add(self, report: SeedReport) -> None:
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
    """Run every seed. `seen` is called with each report as it arrives, in any order."""
    tally = SeedTally()
    with closing(_reports(list(seeds), jobs)) as reports:
        for report in reports:
            tally.add(report)
            seen(report)
    tally.failed.sort(key=lambda report: report.seed)
    return tally


def _reports(seeds: list[int], jobs: int) -> Generator[SeedReport, None, None]:
    if jobs <= 1 or len(seeds) <= SEEDS_PER_TASK:
        for seed in seeds:
            yield World(seed).run()
        return
    tasks = [seeds[at : at + SEEDS_PER_TASK] for at in range(0, len(seeds), SEEDS_PER_TASK)]
    # Fresh interpreters: a fork would inherit the threads and loops of this process.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=fresh) as pool:
        for done in as_completed([pool.submit(_run_task, task) for task in tasks]):
            yield from done.result()


def _run_task(seeds: list[int]) -> list[SeedReport]:
    return [World(seed).run() for seed in seeds]
