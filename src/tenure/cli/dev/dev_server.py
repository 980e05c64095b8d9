"""What `tenure dev` starts and starts anew: the server, a worker, the sweeper and the scheduler in one process.

Laws:
1. There is one engine: what is asked over HTTP is done by this process, at once.
2. The first signal stops it in peace, as a worker and a server do; the second at once. So does its owner's end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import msgspec
import structlog

from tenure.cli.common.console import count_noun, err, safe_text, show_error
from tenure.cli.common.session import run_async, wait_for_database
from tenure.commands.confinement import describe_commands
from tenure.config import choose_database
from tenure.errors import TenureError

NO_DATABASE = 75
"""How this process ends where it has no database to work on: no change of a file helps that."""

log = structlog.get_logger(__name__)


class DevOptions(msgspec.Struct, kw_only=True):
    """What the command line said, on its way to this process."""

    target: str | None
    slots: int
    queues: list[str] | None
    grace: float
    commands: bool
    db: str | None
    host: str
    port: int
    wait_for_database: str = "0"
    server: bool
    """Whether there is a server to be had: it is an extra."""
    connectors: str | None = None
    policy: str | None = None
    evidence: bool = False
    signing_key: str | None = None
    owner: int | None = None
    """A pipe that ends when whoever started this process does."""


def main() -> None:
    """Be that process; its one argument is a `DevOptions` as JSON."""
    from tenure.cli.main import log_to_stderr

    log_to_stderr()
    wanted = msgspec.json.decode(sys.argv[1], type=DevOptions)
    if wanted.owner is not None:
        threading.Thread(target=_end_with, args=(wanted.owner,), daemon=True).start()
    try:
        wait_for_database(choose_database(wanted.db), wanted.wait_for_database)
        stuck = run_async(_develop(wanted))
    except TenureError as error:
        show_error(error)
        sys.exit(NO_DATABASE if error.code.startswith("STORE_") else 1)
    if stuck:
        os._exit(1)  # a thread that does not end would keep the process


def _end_with(owner: int) -> None:
    """End in peace when our owner has ended, also by a signal that it could not pass on."""
    os.read(owner, 1)
    os.kill(os.getpid(), signal.SIGTERM)


async def _develop(wanted: DevOptions) -> int:
    from tenure.cli.workflows.registration import register_workflows, select_workflows
    from tenure.cli.workflows.targets import load_target_definitions
    from tenure.engine import Engine
    from tenure.engine.worker_process import shutdown_event
    from tenure.sdk.definitions import Registry

    definitions = load_target_definitions(wanted.target) if wanted.target is not None else ()
    database = choose_database(wanted.db)
    address = f"sqlite:{database.address}" if database.kind == "sqlite" else database.address
    with shutdown_event() as told:
        async with Engine(
            address,
            connectors=wanted.connectors,
            policy=wanted.policy,
            evidence=wanted.evidence,
            signing_key=wanted.signing_key,
        ) as engine:
            refused = await register_workflows(engine, select_workflows(definitions))
            _tell(definitions, str(database), refused)
            worker = None
            if definitions or wanted.commands:
                worker = engine.worker(
                    *(definitions or (Registry(),)),
                    slots=wanted.slots,
                    queues=tuple(wanted.queues) if wanted.queues else None,
                    commands=wanted.commands,
                    allow_unconfined_commands=True,  # one's own code on one's own machine
                )
                await worker.start()
                log.info("worker_started", worker=worker.name, serves=list(worker.queues), slots=wanted.slots)
                if worker.commands:
                    tell = log.warning if worker.confinement.kind == "none" else log.info
                    tell("commands_run", worker=worker.name, **describe_commands(worker.confinement))
            try:
                if wanted.server:
                    await _serve(engine, wanted, told)
                else:
                    await told.wait()
            finally:
                if worker is not None:
                    await worker.stop(wanted.grace)
            return 0 if worker is None else worker.stuck


async def _serve(engine: Any, wanted: DevOptions, told: Any) -> None:
    from tenure.server.http_server import serving
    from tenure.server.settings import Settings
    from tenure.services.identity.bootstrap import PERSON, PROGRAM, TENANT, create_first_tenant

    settings = Settings(
        host=wanted.host,
        port=wanted.port,
        grace_seconds=max(wanted.grace, 1.0),
        webhooks_to_loopback=True,
        secrets_folder=os.environ.get("TENURE_SECRETS"),
    )
    async with serving(engine, settings) as (_service, address):
        keys = await create_first_tenant(engine.runtime)
        console = err()
        console.print(safe_text(f"the API is at {address}; {address}/docs describes it"), soft_wrap=True)
        if keys is None:
            console.print(
                safe_text(
                    f"  another key: tenure keys create --tenant {TENANT} --client {PROGRAM}; another for you:"
                    f" tenure people enrol {PERSON} --tenant {TENANT} | tenure people redeem"
                ),
                soft_wrap=True,
            )
        else:
            console.print(
                safe_text(f"  tenant {TENANT} was made. Its keys are shown now and never again:", "bold")
            )
            console.print(
                safe_text(f"  for you ({PERSON}: every role, approves):  {keys.person}"), soft_wrap=True
            )
            console.print(
                safe_text(f"  for programs ({PROGRAM}: starts runs):     {keys.program}"), soft_wrap=True
            )
            console.print(
                safe_text(
                    "  whoever asks does not approve: start runs with the second, approve with the first"
                )
            )
        sys.stderr.flush()
        await told.wait()


def _tell(definitions: tuple[Any, ...], database: str, refused: list[str]) -> None:
    from tenure.cli.workflows.registration import select_tool_names, select_workflows

    console = err()
    flows = select_workflows(definitions)
    console.print(
        safe_text(f"serving {database} with {count_noun(len(flows), 'workflow')}; Ctrl-C stops it"),
        soft_wrap=True,
    )
    for flow in flows:
        console.print(safe_text(f"  workflow {flow.name} version {flow.version} on {flow.queue}"))
    for tool in select_tool_names(definitions):
        console.print(safe_text(f"  tool {tool}"))
    for line in refused:
        console.print(safe_text(line, "yellow"), soft_wrap=True)


if __name__ == "__main__":
    main()
