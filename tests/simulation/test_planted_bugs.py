"""The simulator's own proof: bugs are planted into the real code, and it must find every one of them.

Each bug has a seed that is known to show it. When the code has changed so much that it no longer does, the
next seeds are tried, up to `SEEDS_MAX`: then the test still passes, and the seed may be brought up to date.
"""

import pytest

from tenure.simulate import World
from tests.simulation.planted_bugs import BUGS, Bug, planted

SEEDS_MAX = 200


def found_by(bug: Bug) -> int | None:
    """The first seed that shows the bug: the one that is known, else one of the first."""
    seeds: list[int] = [bug.seed, *range(SEEDS_MAX)]
    with planted(bug):
        for seed in seeds:
            if World(seed).run().violation is not None:
                return seed
    return None


def test_there_are_enough_planted_bugs() -> None:
    assert len(BUGS) >= 15


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    seed = found_by(BUGS[name])
    assert seed is not None, f"{BUGS[name].what}: not found in {SEEDS_MAX} seeds"
    assert World(seed).run().violation is None, "the seed fails without the bug too"


def test_a_planted_bug_is_removed_afterwards() -> None:
    before = World(1).run().digest
    with planted(BUGS["hash-chain"]):
        World(1).run()
    assert World(1).run().digest == before
