"""`tenure worker`: serve the workflows and tools of an app until it is stopped.

Law: SIGINT and SIGTERM stop the worker gracefully: it claims nothing more, lets work finish for the grace period, and releases the rest
without counting the attempts. A second signal ends it at once; its leases expire, and other workers take over.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any

import typer

from tenure.cli.common.arguments import parse_seconds
from tenure.cli.common.backend import wait_for_database as database_wait
from tenure.cli.common.console import count_noun, print_json, warn
from tenure.cli.common.options import (
    AsJson,
    ConnectorsFile,
    Db,
    ExternalQueueUrl,
    ListenDb,
    PolicyFile,
    SigningKey,
    WaitForDatabase,
    WithEvidence,
)
from tenure.cli.common.server_option import server_address, server_key
from tenure.errors import TenureError

_EPILOG = """
Examples:

tenure worker app -- everything that app.py (or the package app) registers

tenure worker app:release --slots 4 --queue heavy

tenure worker --commands -- executes the commands of YAML workflows on this machine

tenure worker app --server https://tenure.example.com --key-file runner.key -- without a database, over HTTP

Start as many workers as you like, on all machines that reach the database or the server. Ctrl-C stops a worker gracefully; press
it twice to stop at once.
"""


Target = Annotated[
    str | None, typer.Argument(metavar="[TARGET]", help="What to serve: module, module:name or file.py.")
]
Slots = Annotated[int, typer.Option("--slots", min=1, help="How many steps it runs at once.")]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", help="Serve only this queue; may be repeated.  \\[default: each workflow's own]"),
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
        help="If commands cannot be confined, execute them anyway: they can read this worker's secrets, keys and database.",
    ),
]
Grace = Annotated[str, typer.Option("--grace", help="How long steps may take to finish when it is stopped.")]


app = typer.Typer()


@app.command(epilog=_EPILOG)
def worker(
    target: Target = None,
    slots: Slots = 100,
    queue: Queues = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="The name of this worker.  \\[default: host-pid-random]", show_default=False
        ),
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
    external_queue: ExternalQueueUrl = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Serve workflows and tools: claim steps that are ready, run them and record the results, until you stop it."""
    if target is None and not commands:
        raise typer.BadParameter("name a module to serve, or --commands", param_hint="TARGET")
    for given, option in (
        (command_user is not None, "--command-user"),
        (allow_unconfined_commands, "--allow-unconfined-commands"),
    ):
        if given and not commands:
            raise typer.BadParameter("needs --commands", param_hint=option)
    from tenure.cli.workflows.targets import load_target_definitions
    from tenure.commands.confinement import NOBODY
    from tenure.config import choose_database
    from tenure.engine.entry_point import run_in_loop
    from tenure.engine.worker_process import run_remote_worker, run_worker

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
                "INVALID_INPUT",
                "--policy is for a database; on a server, people activate a policy: tenure policy activate",
            )
        key = server_key() or os.environ.get("TENURE_KEY", "")
        if not key:
            raise TenureError(
                "UNAUTHENTICATED", "a worker of a server needs a runner's key: --key-file FILE, or TENURE_KEY"
            )
        refusals = asyncio.run(_register_on_server(server, key, definitions))
        _show_served(definitions, server, slots, commands, refusals, as_json)
        stuck = run_in_loop(run_remote_worker(server, key, definitions, **how))
    else:
        database = choose_database(db)
        database_wait(database, wait_for_database)
        refusals = asyncio.run(_register(db, definitions, migrate=database.kind == "sqlite"))
        _show_served(definitions, str(database), slots, commands, refusals, as_json)
        stuck = run_in_loop(
            run_worker(
                db,
                definitions,
                connectors=connectors,
                policy=policy,
                evidence=evidence,
                signing_key=signing_key,
                listen_url=listen_db,
                queue=external_queue,
                wait_for_database=wait_for_database,
                **how,
            )
        )
    if stuck:
        warn(f"{count_noun(stuck, 'step')} could not be stopped and will run again")
        sys.stdout.flush()
        os._exit(1)  # a thread that does not end would keep the process alive


async def _register_on_server(server: str, key: str, definitions: tuple[Any, ...]) -> list[str]:
    """Register workflows on the server. Returns refusals, as lines to show."""
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


async def _register(db: str | None, definitions: tuple[Any, ...], *, migrate: bool) -> list[str]:
    """Register workflows in the database. Returns refusals, as lines to show."""
    from tenure.cli.workflows.registration import register_workflows, select_workflows
    from tenure.engine import Engine

    async with Engine(db, migrate=migrate, sweep=False) as engine:
        return await register_workflows(engine, select_workflows(definitions))


def _show_served(
    definitions: tuple[Any, ...],
    database: str,
    slots: int,
    commands: bool,
    refusals: list[str],
    as_json: bool,
) -> None:
    from tenure.cli.workflows.registration import select_tool_names, select_workflows, served_lines

    if as_json:
        workflows = [
            {"name": flow.name, "version": flow.version, "queue": flow.queue}
            for flow in select_workflows(definitions)
        ]
        tools = select_tool_names(definitions)
        print_json({"database": database, "workflows": workflows, "tools": tools, "commands": commands})
        sys.stdout.flush()
        return
    lines = [
        f"serving {database} with {count_noun(slots, 'slot')}; Ctrl-C stops it",
        *served_lines(definitions),
    ]
    if commands:
        lines.append("  commands of YAML workflows; the log says how they are confined")
    for line in lines:
        warn(line, "")
    for refusal in refusals:
        warn(refusal)
