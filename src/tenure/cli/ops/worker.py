"""`tenure worker`: serve the workflows and tools of an app until it is stopped.

Law: SIGINT and SIGTERM stop it in peace: it claims nothing more, lets work finish for the grace, and gives back the
rest uncharged. A second signal ends it at once; its leases expire and others take over.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from tenure.cli.common.console import count_noun, err, print_json, safe_text
from tenure.cli.common.options import (
    AsJson,
    ConnectorsFile,
    Db,
    ListenDb,
    PolicyFile,
    SigningKey,
    WaitForDatabase,
    WithEvidence,
)
from tenure.cli.common.session import parse_seconds, run_async
from tenure.cli.common.session import wait_for_database as database_wait
from tenure.errors import TenureError

_EPILOG = """
Examples:

tenure worker app -- everything that app.py (or the package app) registers

tenure worker app:release --slots 4 --queue heavy

tenure worker --commands -- executes the commands of YAML workflows; only on machines where that is meant

tenure worker app --server https://tenure.example.com --key-file runner.key -- without a database, over HTTP

Start as many as you like, on as many machines as reach the database or the server. Ctrl-C stops in peace, twice at once.
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
CommandUserName = Annotated[
    str | None,
    typer.Option(
        "--command-user",
        metavar="USER",
        help="User that commands run as when root starts the worker.  \\[default: nobody]",
        show_default=False,
    ),
]
Unconfined = Annotated[
    bool,
    typer.Option(
        "--allow-unconfined-commands",
        help="Where commands cannot be kept apart, execute them all the same: they can read this worker's secrets, keys and database.",
    ),
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
    command_user: CommandUserName = None,
    allow_unconfined_commands: Unconfined = False,
    connectors: ConnectorsFile = None,
    policy: PolicyFile = None,
    evidence: WithEvidence = False,
    signing_key: SigningKey = None,
    wait_for_database: WaitForDatabase = "60s",
    listen_db: ListenDb = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Serve workflows and tools: take what is ready, do it, say how it went; until you stop it."""
    if target is None and not commands:
        raise typer.BadParameter("name a module to serve, or --commands", param_hint="TARGET")
    for given, option in (
        (command_user is not None, "--command-user"),
        (allow_unconfined_commands, "--allow-unconfined-commands"),
    ):
        if given and not commands:
            raise typer.BadParameter("needs --commands", param_hint=option)
    from tenure.cli.common.server_option import server_address
    from tenure.cli.workflows.targets import load_target_definitions
    from tenure.commands.confinement import NOBODY
    from tenure.config import choose_database
    from tenure.engine.entry_point import run_in_loop
    from tenure.engine.worker_process import run_worker

    definitions = load_target_definitions(target) if target is not None else ()
    how: dict[str, Any] = {
        "slots": slots,
        "queues": tuple(queue) if queue else None,
        "name": name,
        "grace": parse_seconds(grace),
        "commands": commands,
        "command_user": command_user or (NOBODY if commands and os.geteuid() == 0 else None),
        "allow_unconfined_commands": allow_unconfined_commands,
    }
    server = server_address(db)
    if server is not None:
        if policy is not None:
            raise TenureError(
                "INVALID_INPUT", "--policy is for a database; people make a server's policy active"
            )
        _end(_remotely(server, definitions, slots, commands, as_json, how))
        return
    database = choose_database(db)
    database_wait(database, wait_for_database)
    sqlite = database.kind == "sqlite"
    address = f"sqlite:{database.address}" if sqlite else database.address
    lines = run_async(_registered(address, definitions, sqlite))
    _tell(definitions, str(database), slots, commands, lines, as_json)
    _end(
        run_in_loop(
            run_worker(
                address,
                definitions,
                connectors=connectors,
                policy=policy,
                evidence=evidence,
                signing_key=signing_key,
                listen_url=listen_db,
                wait_for_database=wait_for_database,
                **how,
            )
        )
    )


def _end(stuck: int) -> None:
    if stuck:
        err().print(
            safe_text(f"{count_noun(stuck, 'step')} could not be stopped and will be done again", "yellow")
        )
        sys.stdout.flush()
        os._exit(1)  # a thread that does not end would keep the process


def _remotely(
    server: str, definitions: tuple[Any, ...], slots: int, commands: bool, as_json: bool, how: dict[str, Any]
) -> int:
    """Be a worker of a server."""
    from tenure.cli.common.server_option import server_key
    from tenure.engine.entry_point import run_in_loop
    from tenure.engine.worker_process import run_remote_worker

    key = server_key() or os.environ.get("TENURE_KEY", "")
    if not key:
        raise TenureError(
            "UNAUTHENTICATED", "a worker of a server needs a runner's key: --key-file FILE, or TENURE_KEY"
        )
    lines = run_async(_registered_at(server, key, definitions))
    _tell(definitions, server, slots, commands, lines, as_json)
    return run_in_loop(run_remote_worker(server, key, definitions, **how))


async def _registered_at(server: str, key: str, definitions: tuple[Any, ...]) -> list[str]:
    """Tell the server what there is; what it refused."""
    from tenure.cli.workflows.registration import select_workflows
    from tenure.services.catalog import describe_workflow
    from tenure.worker.protocol import WorkflowEntry
    from tenure.worker.remote_source import RemoteWorkSource

    found = [describe_workflow(workflow) for workflow in select_workflows(definitions)]
    entries = [
        WorkflowEntry(name=one["name"], version=one["version"], kind=one["kind"], definition=one)
        for one in found
    ]
    async with RemoteWorkSource(server, key) as work_source:
        return await work_source.register_workflows(entries)


async def _registered(address: str, definitions: tuple[Any, ...], make: bool) -> list[str]:
    """Tell the database what there is; what was refused."""
    from tenure.cli.workflows.registration import register_workflows, select_workflows
    from tenure.engine import Engine

    async with Engine(address, migrate=make, sweep=False) as engine:
        return await register_workflows(engine, select_workflows(definitions))


def _tell(
    definitions: tuple[Any, ...], database: str, slots: int, commands: bool, lines: list[str], as_json: bool
) -> None:
    """What is served, before the work begins."""
    from tenure.cli.workflows.registration import select_tool_names, select_workflows

    flows = select_workflows(definitions)
    tools = select_tool_names(definitions)
    if as_json:
        workflows = [{"name": f.name, "version": f.version, "queue": f.queue} for f in flows]
        print_json({"database": database, "workflows": workflows, "tools": tools, "commands": commands})
        sys.stdout.flush()
        return
    console = err()
    console.print(
        safe_text(f"serving {database} with {count_noun(slots, 'slot')}; Ctrl-C stops it"), soft_wrap=True
    )
    for flow in flows:
        console.print(safe_text(f"  workflow {flow.name} version {flow.version} on {flow.queue}"))
    for tool in tools:
        console.print(safe_text(f"  tool {tool}"))
    if commands:
        console.print(safe_text("  commands of YAML workflows; the log says how they are kept apart"))
    for line in lines:
        console.print(safe_text(line, "yellow"), soft_wrap=True)
