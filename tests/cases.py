"""The number of cases that a test draws: the usual number in `make test`, many more in `make hunt`, which sets HUNT_CASES.

    @settings(max_examples=cases(300))

HUNT_CASES is the number of requests that schemathesis sends. Property tests draw in proportion. HUNT_TALLY names a file for the
numbers of cases that were really drawn.
"""

import os
from pathlib import Path

HUNTED = int(os.environ.get("HUNT_CASES", "0"))
"""0 outside of a hunt."""
SEED = int(os.environ.get("HUNT_SEED", "0"))
"""The seed of the hunt's own draws. Hypothesis gets its seed on pytest's command line."""
USUAL = 2_000
"""With this value of HUNT_CASES, a hunt draws as many cases as the suite."""
EXAMPLES = 100
"""The default of hypothesis, for property tests without settings of their own."""


def cases(usual: int) -> int:
    """The number of cases for a test that draws `usual` cases in the suite."""
    return max(usual, usual * HUNTED // USUAL)


def note_cases(what: str, count: int) -> None:
    """Add the number of cases that were really drawn to the hunt's tally."""
    if place := os.environ.get("HUNT_TALLY"):
        with Path(place).open("a") as tally:
            tally.write(f"{what}\t{count}\n")


def read_tally(place: Path) -> dict[str, int]:
    """The totals of the tally, by name."""
    found: dict[str, int] = {}
    for line in place.read_text().splitlines() if place.exists() else ():
        what, _, count = line.rpartition("\t")
        found[what] = found.get(what, 0) + int(count)
    return found
