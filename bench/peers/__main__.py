"""`python -m bench.peers`: one system in several settings by turns, to look for its best.

    python -m bench.peers dbos-postgres threads=4 threads=8 mode=start
    python -m bench.peers restate - partitions=2,in_flight=256

A setting is `name=value`, several of them with commas between; `-` is what the module itself takes. Prints a JSON
line for each. `python -m bench --peers ...` is what compares.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop

from bench.peers.environments import NotMeasured
from bench.peers.known import PEERS, TENURE, System
from bench.peers.measuring import Taken, lone_turn, sampled
from bench.peers.session import Server, running
from bench.places import _parent
from tools.postgres_server import open_server

LONE_RUNS = 20
SYSTEMS = {system.name: system for system in (*PEERS, *TENURE)}


def options_of(setting: str) -> dict[str, str]:
    """`a=1,b=2` as a mapping; `-` is none."""
    return dict(one.split("=", 1) for one in setting.split(",") if "=" in one)


async def once(
    system: System, server: Server | None, parent: Path, setting: str, seconds: float
) -> dict[str, Taken]:
    """Everything it can be measured by."""
    async with running(system, server, parent, options_of(setting)) as session:
        figures = await sampled(system, session, seconds)
        for _ in range(2):  # the first turn warms up
            if (alone := await lone_turn(session, LONE_RUNS)) is not None:
                figures["lone"] = alone
    return figures


def line_of(setting: str, rounds: list[dict[str, Taken]]) -> dict[str, Any]:
    """Medians, and every sample behind them."""
    line: dict[str, Any] = {"setting": setting}
    for name in rounds[0]:
        taken = [one[name] for one in rounds]
        cpu = [one.sample.cpu_per_thousand for one in taken]
        line[name] = {
            "value": round(statistics.median(one.value for one in taken), 1),
            "unit": taken[0].unit,
            "samples": [round(one.value, 1) for one in taken],
            "cpu_seconds_per_1000": [one and round(one, 2) for one in cpu],
        }
    return line


def main(
    name: Annotated[str, typer.Argument(help="A system, as in bench/peers/known.py.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings to try: name=value,name=value or -.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long a sample should take.")] = 3.0,
    rounds: Annotated[int, typer.Option(help="Samples of each setting, by turns.")] = 2,
) -> None:
    """Look for the best settings of one system."""
    if name not in SYSTEMS:
        raise typer.BadParameter(f"choose from {', '.join(SYSTEMS)}")
    system, parent = SYSTEMS[name], _parent()
    taken: dict[str, list[dict[str, Taken]]] = {setting: [] for setting in settings or ["-"]}
    earlier, tempfile.tempdir = tempfile.tempdir, str(parent)
    try:
        with ExitStack() as stack:
            server = open_server() if system.store == "postgres" else None
            if server is not None:
                stack.enter_context(server)
            for number in range(1, rounds + 1):
                for setting, samples in taken.items():
                    try:
                        samples.append(uvloop.run(once(system, server, parent, setting, seconds)))
                    except NotMeasured as reason:
                        print(f"{setting} {number}/{rounds}: not measured: {reason}", file=sys.stderr)
    finally:
        tempfile.tempdir = earlier
    for setting, samples in taken.items():
        if samples:
            print(msgspec.json.encode(line_of(setting, samples)).decode())
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
