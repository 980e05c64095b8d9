"""The simulator finds every bug that is planted into the real code.

Each bug has a seed that finds it. If a change of the code makes that seed useless, the test tries the seeds up to
`SEEDS_MAX` and passes if one of them finds the bug. Update the bug's seed in that case.
"""

import pytest

from tenure.simulate import World
from tests.simulation.planted_bugs import BUGS, Bug, planted

SEEDS_MAX = 200


def found_by(bug: Bug) -> int | None:
    """Return a seed that finds the bug: its own seed, else the first of `SEEDS_MAX`, else None."""
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
