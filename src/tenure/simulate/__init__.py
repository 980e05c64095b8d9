"""The simulator: the real kernel, orchestrator and SQLite store in a world made from a seed.

A world has several processes, unreliable workers, people, clients and a network, under a virtual clock. The
invariants are checked after every commit, and once the faults stop everything must heal. A failing seed is
one line that reproduces it: `tenure simulate --seed N`.
"""

from tenure.simulate.world import SeedReport, World

__all__ = ["SeedReport", "World", "simulate"]


def simulate(seed: int, *, trace: bool = False) -> SeedReport:
    """Run one seed's world from its beginning to its end, or to the first violation."""
    return World(seed, trace=trace).run()
