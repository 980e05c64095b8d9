"""The simulator: the real kernel, orchestrator and SQLite store in a world made from a seed.

A world has several processes, unreliable workers, people, clients and a network, on a virtual clock. The invariants are
checked after every commit. Once the faults stop, everything must recover. One command reproduces a failing seed:
`tenure simulate --seed N`.
"""

from tenure.simulate.world import SeedReport, World

__all__ = ["SeedReport", "World", "simulate"]


def simulate(seed: int, *, trace: bool = False) -> SeedReport:
    """Run the world of a seed to its end, or to the first violation."""
    return World(seed, trace=trace).run()
