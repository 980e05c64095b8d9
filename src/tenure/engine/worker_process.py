"""A worker as a process of its own: what it serves, and how it ends.

Laws:
1. What it is to serve is known before the database is opened: a wrong name is told at once, with the names there are.
2. The first SIGTERM or SIGINT lets work finish for the grace and gives back the rest; the second ends the process at
   once, as a crash would. Both are heard while code holds up the loop.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from tenure.commands.confinement import describe_commands
from tenure.engine.engine import Engine
from tenure.errors import TenureError
from tenure.logs import get_logger
from tenure.sdk.definitions import Registry, Tool, Workflow, registry
from tenure.worker.remote_source import RemoteWorkSource
from tenure.worker.worker import GRACE_SECONDS, Worker

log = get_logger(__name__)

Definitions = Registry | Workflow[..., Any] | Tool
DEFAULT_NAME = "app"


def load_definitions(target: str) -> tuple[Definitions, ...]:
    """What `module` or `module:name` stands for: a registry, a workflow, a tool, or a list of them. Without a name: `app`
    if the module has one, else everything it has registered."""
    place, _, name = target.partition(":")
    module = _module(place)
    found = vars(module).get(name or DEFAULT_NAME)
    if found is not None:
        served = _served(found)
        if served:
            return served
        if name:
            raise TenureError(
                "INVALID_INPUT",
                f"{target} is a {type(found).__name__}; a worker serves a Registry, a workflow, a tool or a list of them",
            )
    if name:
        known = ", ".join(key for key, value in vars(module).items() if _served(value)) or "none"
        raise TenureError("INVALID_INPUT", f"{place} has no {name!r}; what it has for a worker: {known}")
    if not (registry.workflows or registry.tools):
        raise TenureError(
            "INVALID_INPUT", f"{place} has nothing to serve: decorate a function with @tenure.workflow"
        )
    return (registry,)


def _served(found: object) -> tuple[Definitions, ...]:
    if isinstance(found, Registry | Workflow | Tool):
        return (found,)
    if isinstance(found, list | tuple) and all(
        isinstance(each, Registry | Workflow | Tool) for each in found
    ):
        return tuple(found)
    return ()


def _module(name: str) -> ModuleType:
    """Modules are looked for in the current folder first, as `python -m` does."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as fault:
        if fault.name is not None and (name == fault.name or name.startswith(f"{fault.name}.")):
            raise TenureError(
                "INVALID_INPUT", f"there is no module {name!r} in {folder} or installed"
            ) from fault
        raise TenureError("INVALID_INPUT", f"{name} cannot be imported: {fault}") from fault
    except (TypeError, ValueError) as fault:
        raise TenureError("INVALID_INPUT", f"{name!r} cannot be imported: {fault}") from fault


async def run_worker(
    url: str | None,
    target: str | Sequence[Definitions],
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
    wait_for_database: str | float = 0,
) -> int:
    """Be a worker, with a sweeper and a scheduler beside it, until the process is told to end; see the laws above.

    Answers how much work was given up and has not ended.
    """
    known = _known(target, commands)
    with shutdown_event() as told:
        async with Engine(
            url,
            connectors=connectors,
            policy=policy,
            evidence=evidence,
            signing_key=signing_key,
            listen_url=listen_url,
            wait_for_database=wait_for_database,
        ) as engine:
            engine.log_durability_risks()
            only = None if queues is None else tuple(queues)
            worker = engine.worker(
                *known,
                slots=slots,
                queues=only,
                commands=commands,
                name=name,
                command_user=command_user,
                allow_unconfined_commands=allow_unconfined_commands,
            )
            return await _until_told(worker, told, grace)


async def run_remote_worker(
    server: str,
    key: str,
    target: str | Sequence[Definitions],
    *,
    slots: int = 100,
    queues: Iterable[str] | None = None,
    name: str | None = None,
    grace: float = GRACE_SECONDS,
    commands: bool = False,
    command_user: str | None = None,
    allow_unconfined_commands: bool = False,
) -> int:
    """Likewise of a server instead of a database, with a runner's key: sweeping and scheduling are the server's."""
    known = _known(target, commands)
    with shutdown_event() as told:
        async with RemoteWorkSource(server, key) as work_source:
            only = None if queues is None else tuple(queues)
            worker = Worker(
                work_source,
                *known,
                slots=slots,
                queues=only,
                commands=commands,
                name=name,
                command_user=command_user,
                allow_unconfined_commands=allow_unconfined_commands,
            )
            return await _until_told(worker, told, grace)


def _known(target: str | Sequence[Definitions], commands: bool) -> tuple[Definitions, ...]:
    """What a worker serves; see law 1."""
    served: tuple[Definitions, ...] = ()
    if isinstance(target, str):
        served = load_definitions(target) if target else ()
    else:
        served = tuple(target)
    if not served and not commands:
        raise TenureError(
            "INVALID_INPUT", "a worker needs something it can do: name a module, or allow commands"
        )
    return served or (Registry(),)  # commands only; without any definition it would take all there are


async def _until_told(worker: Worker, told: asyncio.Event, grace: float) -> int:
    """Be a worker until the process is told to end; how much work was given up and has not ended."""
    await worker.start()
    log.info("worker_started", worker=worker.name, serves=list(worker.queues), slots=worker.slots)
    if worker.commands:
        tell = log.warning if worker.confinement.kind == "none" else log.info
        tell("commands_run", worker=worker.name, **describe_commands(worker.confinement))
    await told.wait()
    log.info("worker_stopping", worker=worker.name, leases=len(worker.busy), grace_seconds=grace)
    await worker.stop(grace)
    log.info("worker_stopped", worker=worker.name, stuck=worker.stuck, **worker.counts)
    return worker.stuck


@contextmanager
def shutdown_event() -> Iterator[asyncio.Event]:
    """Set by the first signal; see law 2."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    heard: list[int] = []

    def hear(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) > 1:
            os._exit(128 + number)
        loop.call_soon_threadsafe(told.set)

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
