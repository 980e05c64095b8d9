"""`python -m bench.peers dbos`: one peer alone, to look for its best settings.

    python -m bench.peers dbos-postgres --set threads=8 --set mode=async

Prints a JSON line per figure. `python -m bench --peers ...` is what compares.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop

from bench.peers.environments import NotMeasured
from bench.peers.known import PEERS, TENURE, System
from bench.peers.measuring import LONE_RUNS_PER_TURN, lone_turn, sampled
from bench.peers.session import Server, running
from bench.places import _parent
from tenure.devtools.postgres import open_server


async def show(
    system: System, server: Server | None, parent: Path, options: dict[str, str], seconds: float
) -> None:
    """Everything it can be measured by, once."""
    async with running(system, server, parent, options) as session:
        print(msgspec.json.encode({"system": system.name, **session.settings}).decode(), flush=True)
        figures = await sampled(system, session, seconds)
        for _ in range(2):  # the first turn warms up
            if (alone := await lone_turn(session, LONE_RUNS_PER_TURN * 4)) is not None:
                figures["lone"] = alone
        for name, taken in figures.items():
            line: dict[str, Any] = {"figure": name, "value": round(taken.value, 2), "unit": taken.unit}
            line |= {"done": taken.sample.done, "seconds": round(taken.sample.seconds, 2)}
            line |= {
                "cpu_per_1000": taken.sample.cpu_per_thousand,
                "bytes_per_1000": taken.sample.log_per_thousand,
            }
            print(msgspec.json.encode(line).decode(), flush=True)


def main(
    name: Annotated[str, typer.Argument(help="A system, as in bench/peers/known.py.")],
    option: Annotated[list[str], typer.Option("--set", help="A setting of its own: name=value.")] = [],  # noqa: B006 - typer copies it
    seconds: Annotated[float, typer.Option(help="How long a sample should take.")] = 3.0,
) -> None:
    """Measure one system alone."""
    system = next((one for one in (*PEERS, *TENURE) if one.name == name), None)
    if system is None:
        raise typer.BadParameter(f"choose from {', '.join(one.name for one in (*PEERS, *TENURE))}")
    options = dict(one.split("=", 1) for one in option)
    parent = _parent()
    earlier, tempfile.tempdir = tempfile.tempdir, str(parent)
    try:
        with ExitStack() as stack:
            server = open_server() if system.store == "postgres" else None
            if server is not None:
                stack.enter_context(server)
            try:
                uvloop.run(show(system, server, parent, options, seconds))
            except NotMeasured as reason:
                print(msgspec.json.encode({"system": system.name, "not measured": str(reason)}).decode())
                raise typer.Exit(1) from reason
    finally:
        tempfile.tempdir = earlier


if __name__ == "__main__":
    typer.run(main)
