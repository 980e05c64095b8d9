"""`tenure worker`: serve the workflows and tools of an app until it is stopped.

Law: SIGINT and SIGTERM stop it in peace: it claims nothing more, lets work finish for the grace, and gives back the
rest uncharged. A second signal ends it at once; its leases expire and others take over.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.console import err, print_json, shown
from tenure.cli.options import AsJson, Db
from tenure.cli.session import seconds, wait_for

if TYPE_CHECKING:
    from tenure.embedded import Engine
    from tenure.worker import Worker

INTERRUPTED = 130
_EPILOG = """
Examples:

tenure worker app -- everything that app.py (or the package app) registers

tenure worker app:release --slots 4 --queue heavy

tenure worker --commands -- executes the commands of YAML workflows; only on machines where that is meant

Start as many as you like, on as many machines as reach the database. Ctrl-C stops in peace, twice at once.
"""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=_EPILOG)(worker)


Target = Annotated[
    str | None, typer.Argument(metavar="[TARGET]", help="module, module:name or file.py: what to serve.")
]
Slots = Annotated[int, typer.Option("--slots", min=1, help="How much it does at once.")]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", help="Only these queues; may be repeated.  \\[default: each workflow's own]"),
]
Commands = Annotated[
    bool, typer.Option("--commands", help="Execute the commands of YAML workflows on this machine.")
]
Grace = Annotated[str, typer.Option("--grace", help="How long work may finish when it is stopped.")]


def worker(
    target: Target = None,
    slots: Slots = 100,
    queue: Queues = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Under which name.  \\[default: host-pid-random]", show_default=False),
    ] = None,
    grace: Grace = "10s",
    commands: Commands = False,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Serve workflows and tools: take what is ready, do it, say how it went; until you stop it."""
    if target is None and not commands:
        raise typer.BadParameter("name a module to serve, or --commands", param_hint="TARGET")
    from tenure.cli.targets import definitions_of
    from tenure.sdk.definitions import Registry

    definitions = definitions_of(target) if target is not None else (Registry(),)
    how: dict[str, Any] = {
        "slots": slots,
        "queues": tuple(queue) if queue else None,
        "name": name,
        "commands": commands,
    }
    wait_for(_serve(db, definitions, how, seconds(grace), as_json))


async def _serve(
    db: str | None, definitions: tuple[Any, ...], how: dict[str, Any], grace: float, as_json: bool
) -> None:
    from tenure.cli.registering import put_all, workflows_in
    from tenure.config import choose_database
    from tenure.embedded import Engine

    database = choose_database(db)
    sqlite = database.kind == "sqlite"
    address = f"sqlite:{database.address}" if sqlite else database.address
    async with Engine(address, migrate=sqlite) as engine:
        made = engine.worker(*definitions, **how)
        stopping = _signals(made)
        await made.start()
        refused = await put_all(engine, workflows_in(definitions))
        _ready(engine, made, str(database), refused, as_json)
        await stopping.wait()
        if not as_json:
            err().print(shown(f"stopping: up to {grace:g} s for what is under way; again to end at once"))
        await made.stop(grace)
        _stopped(made, as_json)


def _signals(made: Worker) -> asyncio.Event:
    """Told when somebody wants it to stop; see the law above."""
    stopping = asyncio.Event()

    def told() -> None:
        if stopping.is_set():
            made.kill()
            os._exit(INTERRUPTED)  # what runs in threads cannot be stopped otherwise
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    return stopping


def _ready(engine: Engine, made: Worker, database: str, refused: list[str], as_json: bool) -> None:
    del engine
    if as_json:
        print_json({"worker": made.name, "database": database, "slots": made.slots, "queues": made.queues})
        return
    console = err()
    console.print(
        shown(f"{made.name} serves {database} with {made.slots} slots; Ctrl-C stops it"), soft_wrap=True
    )
    for flow in made.registry.workflows.values():
        console.print(shown(f"  workflow {flow.name} version {flow.version} on {flow.queue}"))
    for tool in made.registry.tools:
        console.print(shown(f"  tool {tool}"))
    if any(queue.endswith("|run") for queue in made.queues):
        console.print(shown("  commands of YAML workflows"))
    for line in refused:
        console.print(shown(line, "yellow"), soft_wrap=True)


def _stopped(made: Worker, as_json: bool) -> None:
    counts = {name: number for name, number in made.counts.items() if number}
    if as_json:
        print_json({"worker": made.name, "counts": made.counts})
    else:
        told = ", ".join(f"{number} {name}" for name, number in counts.items()) or "nothing was there to do"
        err().print(shown(f"{made.name} stopped: {told}"))
