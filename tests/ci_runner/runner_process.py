"""A CI runner as a process of its own, with a storage in a folder. Its settings are JSON in its first argument."""

import asyncio
import logging
import sys
from pathlib import Path

import msgspec
import structlog

from tenure.ci.mirror import GitSettings
from tenure.ci_runner.job_host import RunnerSettings
from tenure.ci_runner.runner import CiRunner
from tenure.engine.worker_process import shutdown_event
from tenure.outbound.address_rules import AllowedNetworks
from tenure.sandbox.sandbox import IsolationKind
from tenure.worker.remote_source import RemoteWorkSource
from tests.ci_runner.folder_storage import FolderStorage


class ProcessSettings(msgspec.Struct, kw_only=True):
    server: str
    key: str
    folder: str
    storage: str
    slots: int = 2
    labels: tuple[str, ...] = ()
    secrets: dict[str, str] = {}
    isolation: IsolationKind = "bubblewrap"
    cancel_grace_seconds: float | None = None
    loopback: bool = False
    grace_seconds: float = 0.0
    protocols: tuple[str, ...] = ("file",)


async def run_process(settings: ProcessSettings) -> None:
    runner_settings = RunnerSettings(
        folder=Path(settings.folder),
        slots=settings.slots,
        labels=settings.labels,
        secrets=settings.secrets,
        git=GitSettings(protocols=settings.protocols),
        reach=AllowedNetworks(loopback=settings.loopback),
        cancel_grace_seconds=settings.cancel_grace_seconds,
    )
    with shutdown_event() as shutdown:
        async with RemoteWorkSource(settings.server, settings.key) as work_source:
            runner = CiRunner(
                work_source,
                runner_settings,
                lambda lease, _token: FolderStorage(Path(settings.storage), lease),
                isolation=settings.isolation,
                name="test-runner",
            )
            await runner.start()
            await shutdown.wait()
            await runner.stop(settings.grace_seconds)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(run_process(msgspec.json.decode(sys.argv[1], type=ProcessSettings)))
