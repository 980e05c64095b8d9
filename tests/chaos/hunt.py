"""`make hunt`: long chaos tests, fuzzers, and checks that take long to set up. Prints a table and exits with 1 if a check failed.

    python -m tests.chaos.hunt                       all parts
    python -m tests.chaos.hunt chaos --seed 7        one part, with the seed of an earlier hunt

Parts: `chaos` (kills, stops, drains, cut connections, crashes of PostgreSQL), `simulate` (more seeds than the test suite), `fuzz` (the
property tests and schemathesis with many cases), `pgbouncer` (the conformance tests of the store through a pooler).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cases import read_tally
from tests.chaos.harness import Hunt, Place, Tally, summary
from tools.postgres_server import QUICK_SETTINGS, PrivatePostgres

ROOT = Path(__file__).parents[2]
PARTS = ("chaos", "simulate", "fuzz", "pgbouncer")
SEEDED = ("chaos", "simulate", "fuzz")
"""The parts that use the seed. Rule 3 of `harness.py` says what the seed determines in `chaos`."""
KILLS, STOPS, DRAINS, CUTS, CRASHES = 150, 26, 20, 200, 10
"""Kills, stops and drains on each of the two stores; cuts and crashes on PostgreSQL."""
SIMULATED_SEEDS = 5_000
FUZZ_CASES = 20_000
FUZZED = {
    "property tests": ("-m", "hypothesis", "tests"),
    "parsers": ("tests/server/test_parser_cost.py",),
    "schemathesis": ("--numprocesses", "2", "tests/server/test_openapi.py", "-k", "schemathesis"),
}
"""Tests with random cases (`tests/cases.py`) -> pytest arguments. Schemathesis tests one store in each process."""
FUZZ_SECONDS_MAX = 3_600


async def hunt_sqlite(seed: int, share: float, folder: Path) -> Tally:
    """Kills, stops and drains on a SQLite file."""
    async with Hunt(Place("sqlite", f"sqlite:{folder / 'runs.db'}"), folder, seed) as hunt:
        await hunt.kills(_share(KILLS, share))
        await hunt.stops(_share(STOPS, share))
        await hunt.drains(_share(DRAINS, share))
    return hunt.tally


async def hunt_postgres(seed: int, share: float, folder: Path) -> Tally:
    """Kills, stops, drains, cut connections and server crashes on PostgreSQL."""
    with PrivatePostgres(QUICK_SETTINGS) as server:
        async with Hunt(Place("postgres", server.dsn(), server), folder, seed) as hunt:
            await hunt.kills(_share(KILLS, share))
            await hunt.stops(_share(STOPS, share))
            await hunt.drains(_share(DRAINS, share))
            await hunt.cuts(_share(CUTS, share))
            await hunt.crashes(_share(CRASHES, share))
        return hunt.tally


def _share(count: int, share: float) -> int:
    return max(1, round(count * share))


def chaos(seed: int, share: float) -> bool:
    """Hunt on both stores. Return whether all checks passed."""
    tallies = []
    for place in (hunt_sqlite, hunt_postgres):
        say(f"{place.__name__}: python -m tests.chaos.hunt chaos --seed {seed} --share {share:g}")
        with tempfile.TemporaryDirectory(prefix="tenure-hunt-") as folder:
            tallies.append(asyncio.run(place(seed, share, Path(folder))))
        print_tally(tallies[-1])
    print_table(summary(tallies))
    return all(tally.clean for tally in tallies)


def print_tally(tally: Tally) -> None:
    """Print one line for each problem."""
    for kind in ("lost", "doubled", "stuck", "findings"):
        for line in getattr(tally, kind):
            print(f"{tally.place} {kind}: {line}")


def print_table(rows: list[dict[str, str]]) -> None:
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    for row in ({name: name for name in names}, *rows):
        print("  ".join(row[name].ljust(widths[name]) for name in names).rstrip())


def simulate(seed: int, share: float) -> bool:
    """Simulate seeds that the test suite does not run."""
    seeds = _share(SIMULATED_SEEDS, share)
    return run(sys.executable, "-m", "tenure.cli", "simulate", "--start", str(seed), "--seeds", str(seeds))


def fuzz(seed: int, share: float) -> bool:
    """Run the property tests and schemathesis with many cases."""
    with tempfile.TemporaryDirectory(prefix="tenure-hunt-") as folder:
        noted = Path(folder, "tally")
        given = {
            "HUNT_CASES": str(_share(FUZZ_CASES, share)),
            "HUNT_TALLY": str(noted),
            "HUNT_SEED": str(seed),
        }
        pytest = (
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--timeout",
            str(FUZZ_SECONDS_MAX),
            f"--hypothesis-seed={seed}",
        )
        held = {what: run(*pytest, *words, **given) for what, words in FUZZED.items()}
        sent = read_tally(noted)
    rows = [{"fuzzed": what, "cases": "", "held": "yes" if well else "NO"} for what, well in held.items()]
    rows += [{"fuzzed": what, "cases": str(count), "held": ""} for what, count in sorted(sent.items())]
    rows.append({"fuzzed": "requests in all", "cases": str(sum(sent.values())), "held": ""})
    print_table(rows)
    return all(held.values()) and sum(sent.values()) >= int(given["HUNT_CASES"])


def pgbouncer(_seed: int, _share: float) -> bool:
    """Run the conformance tests through a pooler in transaction mode."""
    return run(sys.executable, "-m", "tests.chaos.pgbouncer")


def run(*words: str, **environment: str) -> bool:
    """Run a program. Return whether its exit code is 0."""
    say(" ".join(words[1:]))
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode == 0


def say(what: str) -> None:
    """Print progress to stderr, with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Hunt. Return 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.hunt", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="the parts to run (default: all)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**31), help="the seed of faults and cases"
    )
    parser.add_argument("--share", type=float, default=1.0, help="a factor for all counts: 0.1 runs a tenth")
    given = parser.parse_args()
    held = {
        part: globals()[part](given.seed, given.share) for part in PARTS if part in (given.parts or PARTS)
    }
    for part, well in held.items():
        drawn = f" (--seed {given.seed})" if part in SEEDED else ""
        print(f"{part}: {'passed' if well else 'FAILED'}{drawn}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
