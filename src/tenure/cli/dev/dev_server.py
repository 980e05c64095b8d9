"""The process that `tenure dev` starts and restarts: the server, a worker, the sweeper and the scheduler.

Laws:
1. There is one engine: this process runs what arrives over HTTP, at once.
2. The first signal stops it gracefully, like a worker and a server; the second at once. The end of its parent is such a signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from tenure.cli.common.backend import wait_for_database
from tenure.cli.common.console import count_noun, show_error, warn
from tenure.config import choose_database
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.engine import Engine

NO_DATABASE = 75
"""The exit code of this process if it has no database. No change of a file helps then."""


class DevOptions(msgspec.Struct, kw_only=True):
    """The options of `tenure dev`, for this process."""

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
    """Whether to serve the HTTP API. It needs an extra."""
    connectors: str | None = None
    policy: str | None = None
    evidence: bool = False
    signing_key: str | None = None
    parent_pipe: int | None = None
    """A pipe that is closed when the parent process ends."""


def main() -> None:
    """The process's only argument is a `DevOptions` as JSON."""
    from tenure.cli.main import log_to_stderr

    log_to_stderr()
    wanted = msgspec.json.decode(sys.argv[1], type=DevOptions)
    if wanted.parent_pipe is not None:
        threading.Thread(target=_end_with_parent, args=(wanted.parent_pipe,), daemon=True).start()
    try:
        wait_for_database(choose_database(wanted.db), wanted.wait_for_database)
        stuck = asyncio.run(_develop(wanted))
    except TenureError as error:
        show_error(error)
        sys.exit(NO_DATABASE if error.code.startswith("STORE_") else 1)
    if stuck:
        os._exit(1)  # a thread that does not end would keep the process alive


def _end_with_parent(pipe: int) -> None:
    """End gracefully when the parent has ended, even by a signal that it could not pass on."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


async def _develop(wanted: DevOptions) -> int:
    from tenure.cli.workflows.registration import register_workflows, select_workflows, served_lines
    from tenure.cli.workflows.targets import load_target_definitions
    from tenure.engine import Engine
    from tenure.engine.worker_process import shutdown_event, start_worker
    from tenure.sdk.definitions import Registry

    definitions = load_target_definitions(wanted.target) if wanted.target is not None else ()
    with shutdown_event() as shutdown:
        async with Engine(
            wanted.db,
            connectors=wanted.connectors,
            policy=wanted.policy,
            evidence=wanted.evidence,
            signing_key=wanted.signing_key,
        ) as engine:
            flows = select_workflows(definitions)
            refusals = await register_workflows(engine, flows)
            served = f"serving {choose_database(wanted.db)} with {count_noun(len(flows), 'workflow')}"
            for line in (f"{served}; Ctrl-C stops it", *served_lines(definitions)):
                warn(line, "")
            for refusal in refusals:
                warn(refusal)
            worker = None
            if definitions or wanted.commands:
                worker = engine.worker(
                    *(definitions or (Registry(),)),
                    slots=wanted.slots,
                    queues=tuple(wanted.queues) if wanted.queues else None,
                    commands=wanted.commands,
                    allow_unconfined_commands=True,  # the developer's own code and machine
                )
                await start_worker(worker)
            try:
                if wanted.server:
                    await _serve(engine, wanted, shutdown)
                else:
                    await shutdown.wait()
            finally:
                if worker is not None:
                    await worker.stop(wanted.grace)
            return 0 if worker is None else worker.stuck


async def _serve(engine: Engine, wanted: DevOptions, shutdown: asyncio.Event) -> None:
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
        lines = [f"the API is at {address}; {address}/docs describes it"]
        if keys is None:
            lines.append(
                f"  another key: tenure keys create --tenant {TENANT} --client {PROGRAM}; another for you:"
                f" tenure people enrol {PERSON} --tenant {TENANT} | tenure people redeem"
            )
        else:
            lines += [
                f"  tenant {TENANT} was created. Its keys are shown now and never again:",
                f"  for you ({PERSON}: every role, approves):  {keys.person}",
                f"  for programs ({PROGRAM}: starts runs):     {keys.program}",
                "  requesters cannot approve: start runs with the second key, approve with the first",
            ]
        for line in lines:
            warn(line, "")
        sys.stderr.flush()
        await shutdown.wait()


if __name__ == "__main__":
    main()
