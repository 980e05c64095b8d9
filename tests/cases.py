"""How many cases a test draws: as usual in `make test`, many more in `make hunt`, which says how many by HUNT_CASES.

    @settings(max_examples=cases(300))

HUNT_CASES is what schemathesis sends in all; property tests draw in proportion. What was really drawn is noted in the file HUNT_TALLY.
"""

import os
from pathlib import Path

HUNTED = int(os.environ.get("HUNT_CASES", "0"))
"""0: this is no hunt."""
SEED = int(os.environ.get("HUNT_SEED", "0"))
"""What the hunt draws from, beside what pytest is told for hypothesis."""
USUAL = 2_000
"""The hunt of so many cases draws as the suite does."""
EXAMPLES = 100
"""Of a property test that says nothing else, as hypothesis has it."""


def cases(usual: int) -> int:
    """How many cases to draw where the suite draws so many."""
    return max(usual, usual * HUNTED // USUAL)


def note_cases(what: str, count: int) -> None:
    """Write down for the hunt's table how many cases of something there really were."""
    if place := os.environ.get("HUNT_TALLY"):
        with Path(place).open("a") as tally:
            tally.write(f"{what}\t{count}\n")


def read_tally(place: Path) -> dict[str, int]:
    """What was noted, added up."""
    found: dict[str, int] = {}
    for line in place.read_text().splitlines() if place.exists() else ():
        what, _, count = line.rpartition("\t")
        found[what] = found.get(what, 0) + int(count)
    return found
