"""A worker as its own process: what it serves, and how it ends.

Law: the first SIGTERM or SIGINT lets work finish for the grace period and releases the rest; the second ends the process at once, as a
crash would. Both are handled even while code blocks the event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tenure.commands.confinement import describe_commands
from tenure.engine.engine import Engine
from tenure.errors import TenureError
from tenure.logs import get_logger
from tenure.sdk.definitions import Registry, Tool, Workflow
from tenure.worker.remote_source import RemoteWorkSource
from tenure.worker.worker import GRACE_SECONDS, Worker

log = get_logger(__name__)

Definitions = Registry | Workflow[..., Any] | Tool


async def run_worker(
    url: str | None,
    definitions: Sequence[Definitions],
    *,
    slots: int = 100,
    queues: Iterable[str] | None = None,
    name: str | None = None,
    grace: float = GRACE_SECONDS,
    commands: bool = False,
    command_user: str | None = None,
    allow_unconfined_commands: bool = False,
    connectors: str | None = None,
    policy: str | None = None,
    evidence: bool = False,
    signing_key: str | None = None,
    listen_url: str | None = None,
    queue: str | None = None,
    wait_for_database: str | float = 0,
) -> int:
    """Be a worker, with a sweeper and a scheduler, until the process gets a signal; see the law above.

    Returns how many steps were given up and are still running.
    """
    served = _check_definitions(definitions, commands)
    with shutdown_event() as shutdown:
        async with Engine(
            url,
            connectors=connectors,
            policy=policy,
            evidence=evidence,
            signing_key=signing_key,
            listen_url=listen_url,
            queue=queue,
            wait_for_database=wait_for_database,
        ) as engine:
            engine.log_durability_risks()
            worker = engine.worker(
                *served,
                slots=slots,
                queues=None if queues is None else tuple(queues),
                commands=commands,
                name=name,
                command_user=command_user,
                allow_unconfined_commands=allow_unconfined_commands,
            )
            return await _run_until(shutdown, worker, grace)


async def run_remote_worker(
    server: str,
    key: str,
    definitions: Sequence[Definitions],
    *,
    slots: int = 100,
    queues: Iterable[str] | None = None,
    name: str | None = None,
    grace: float = GRACE_SECONDS,
    commands: bool = False,
    command_user: str | None = None,
    allow_unconfined_commands: bool = False,
) -> int:
    """Be a worker of a server, with a runner's key. The server sweeps and schedules."""
    served = _check_definitions(definitions, commands)
    with shutdown_event() as shutdown:
        async with RemoteWorkSource(server, key) as work_source:
            worker = Worker(
                work_source,
                *served,
                slots=slots,
                queues=None if queues is None else tuple(queues),
                commands=commands,
                name=name,
                command_user=command_user,
                allow_unconfined_commands=allow_unconfined_commands,
            )
            return await _run_until(shutdown, worker, grace)


def _check_definitions(definitions: Sequence[Definitions], commands: bool) -> tuple[Definitions, ...]:
    if not definitions and not commands:
        raise TenureError(
            "INVALID_INPUT", "a worker needs something it can do: name a module, or allow commands"
        )
    return tuple(definitions) or (Registry(),)  # an empty registry: without any, a worker serves everything


async def start_worker(worker: Worker) -> None:
    """Start a worker, and log what it serves."""
    await worker.start()
    log.info("worker_started", worker=worker.name, serves=list(worker.queues), slots=worker.slots)
    if worker.commands:
        tell = log.warning if worker.confinement.kind == "none" else log.info
        tell("commands_run", worker=worker.name, **describe_commands(worker.confinement))


async def _run_until(shutdown: asyncio.Event, worker: Worker, grace: float) -> int:
    await start_worker(worker)
    await shutdown.wait()
    log.info("worker_stopping", worker=worker.name, leases=len(worker.busy), grace_seconds=grace)
    await worker.stop(grace)
    log.info("worker_stopped", worker=worker.name, stuck=worker.stuck, **worker.counts)
    return worker.stuck


@contextmanager
def shutdown_event() -> Iterator[asyncio.Event]:
    """An event that the first signal sets. The second signal ends the process."""
    loop = asyncio.get_running_loop()
    shutdown = asyncio.Event()
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(128 + number)
        loop.call_soon_threadsafe(shutdown.set)

    before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield shutdown
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
