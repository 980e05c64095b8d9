"""`make hunt`: the long form of the chaos tests, the fuzzers and the parts that take long to set up. It prints a table and exits 1 where
anything did not hold.

    python -m tests.chaos.hunt                       everything
    python -m tests.chaos.hunt chaos --seed 7        one part, with what was drawn before

Parts: `chaos` (kills, stops, drains, cut connections, crashes of PostgreSQL), `simulate` (seeds beyond those of the suite), `fuzz` (the
property tests and schemathesis with many cases), `pgbouncer` (the stores' conformance behind a pooler).
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
"""The parts that draw from the seed; what it covers of `chaos` is in `harness.py`, law 3."""
KILLS, STOPS, DRAINS, CUTS, CRASHES = 150, 26, 20, 200, 10
"""Kills, stops and drains on each of the two stores; cuts and crashes on PostgreSQL."""
SIMULATED_SEEDS = 5_000
FUZZ_CASES = 20_000
FUZZED = {
    "property tests": ("-m", "hypothesis", "tests"),
    "parsers": ("tests/server/test_parser_cost.py",),
    "schemathesis": ("--numprocesses", "2", "tests/server/test_openapi.py", "-k", "schemathesis"),
}
"""What draws its cases at random (`tests/cases.py`), as pytest is told; schemathesis on one store in each process."""
FUZZ_SECONDS_MAX = 3_600


async def hunt_sqlite(seed: int, share: float, folder: Path) -> Tally:
    """Kills, stops and drains on a SQLite file."""
    async with Hunt(Place("sqlite", f"sqlite:{folder / 'runs.db'}"), folder, seed) as hunt:
        await hunt.kills(_share(KILLS, share))
        await hunt.stops(_share(STOPS, share))
        await hunt.drains(_share(DRAINS, share))
    return hunt.tally


async def hunt_postgres(seed: int, share: float, folder: Path) -> Tally:
    """The same on PostgreSQL, with connections that are cut and a server that crashes."""
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
    """Hunt on both stores; whether everything held."""
    tallies = []
    for place in (hunt_sqlite, hunt_postgres):
        say(f"{place.__name__}: python -m tests.chaos.hunt chaos --seed {seed} --share {share:g}")
        with tempfile.TemporaryDirectory(prefix="tenure-hunt-") as folder:
            tallies.append(asyncio.run(place(seed, share, Path(folder))))
        print_tally(tallies[-1])
    print_table(summary(tallies))
    return all(tally.clean for tally in tallies)


def print_tally(tally: Tally) -> None:
    """What did not hold, each on a line."""
    for kind in ("lost", "doubled", "stuck", "findings"):
        for line in getattr(tally, kind):
            print(f"{tally.place} {kind}: {line}")


def print_table(rows: list[dict[str, str]]) -> None:
    """Columns of their own width."""
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    for row in ({name: name for name in names}, *rows):
        print("  ".join(row[name].ljust(widths[name]) for name in names).rstrip())


def simulate(seed: int, share: float) -> bool:
    """Simulated worlds that the suite does not run."""
    seeds = _share(SIMULATED_SEEDS, share)
    return run(sys.executable, "-m", "tenure.cli", "simulate", "--start", str(seed), "--seeds", str(seeds))


def fuzz(seed: int, share: float) -> bool:
    """The property tests and schemathesis, with many cases."""
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
    """The conformance suite behind a pooler in transaction mode."""
    return run(sys.executable, "-m", "tests.chaos.pgbouncer")


def run(*words: str, **environment: str) -> bool:
    """Run a program; whether it ended well."""
    say(" ".join(words[1:]))
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode == 0


def say(what: str) -> None:
    """Progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Hunt; 1 where anything did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.hunt", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], help="what to hunt in; everything by default"
    )
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**31), help="what faults and cases are drawn from"
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="how much of the usual count: 0.1 is a tenth"
    )
    given = parser.parse_args()
    held = {
        part: globals()[part](given.seed, given.share) for part in PARTS if part in (given.parts or PARTS)
    }
    for part, well in held.items():
        drawn = f" (--seed {given.seed})" if part in SEEDED else ""
        print(f"{part}: {'held' if well else 'DID NOT HOLD'}{drawn}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
