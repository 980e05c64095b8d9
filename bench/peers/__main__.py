"""`python -m bench.peers`: measure one system with several settings by turns, to find the best.

    python -m bench.peers dbos-postgres threads=4 threads=8 mode=start
    python -m bench.peers restate - partitions=2,in_flight=256

A setting is `name=value`, or several of them separated by commas. `-` means the defaults of the module. The program prints a
JSON line for each setting. `python -m bench --peers ...` compares the systems.
"""

from __future__ import annotations

import os
import statistics
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from bench.peers.environments import NotMeasured
from bench.peers.known import PEERS, TENURE, System
from bench.peers.measuring import Taken, lone_turn, sampled
from bench.peers.session import Server, running
from bench.places import temporary_files_on_disk
from bench.report import print_json
from tools.postgres_server import open_server

LONE_RUNS = 20
SYSTEMS = {system.name: system for system in (*PEERS, *TENURE)}


def options_of(setting: str) -> dict[str, str]:
    """`a=1,b=2` as a mapping. `-` is empty."""
    return dict(one.split("=", 1) for one in setting.split(",") if "=" in one)


async def once(
    system: System, server: Server | None, parent: Path, setting: str, seconds: float
) -> dict[str, Taken]:
    """All figures of a system with one setting."""
    async with running(system, server, parent, options_of(setting)) as session:
        figures = await sampled(system, session, seconds)
        for _ in range(2):  # the first turn warms up
            if (alone := await lone_turn(session, LONE_RUNS)) is not None:
                figures["lone"] = alone
    return figures


def line_of(setting: str, rounds: list[dict[str, Taken]]) -> dict[str, Any]:
    """The medians of a setting, with every sample."""
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
    system = SYSTEMS[name]
    taken: dict[str, list[dict[str, Taken]]] = {setting: [] for setting in settings or ["-"]}
    with (
        temporary_files_on_disk() as parent,
        open_server() if system.store == "postgres" else nullcontext() as server,
    ):
        for number in range(1, rounds + 1):
            for setting, samples in taken.items():
                try:
                    samples.append(uvloop.run(once(system, server, parent, setting, seconds)))
                except NotMeasured as reason:
                    print(f"{setting} {number}/{rounds}: not measured: {reason}", file=sys.stderr)
    for setting, samples in taken.items():
        if samples:
            print_json(line_of(setting, samples))
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
