"""A CI runner as its own process: the first SIGTERM or SIGINT lets jobs finish for the grace period, the second ends it at once."""

from __future__ import annotations

from tenure.ci_runner.http_storage import HttpJobStorage
from tenure.ci_runner.job_host import RunnerSettings
from tenure.ci_runner.job_storage import JobStorage
from tenure.ci_runner.runner import GRACE_SECONDS, CiRunner
from tenure.engine.worker_process import shutdown_event
from tenure.sandbox.sandbox import IsolationKind
from tenure.worker.connection import RunnerConnection
from tenure.worker.remote_source import RemoteWorkSource


async def run_ci_runner(
    server: str,
    key: str,
    settings: RunnerSettings,
    *,
    isolation: IsolationKind = "bubblewrap",
    name: str | None = None,
    grace: float = GRACE_SECONDS,
) -> None:
    """Be a CI runner of a server until the process gets a signal. SANDBOX_UNAVAILABLE if jobs cannot be isolated."""
    # Uploads have connections of their own, so that they do not delay messages.
    connection = RunnerConnection(server, key, connections=settings.slots + 2)

    def make_storage(lease_id: str, token: str) -> JobStorage:
        return HttpJobStorage(connection, lease_id, token, folder=settings.folder)

    with shutdown_event() as shutdown:
        try:
            async with RemoteWorkSource(server, key) as work_source:
                runner = CiRunner(work_source, settings, make_storage, isolation=isolation, name=name)
                await runner.start()
                await shutdown.wait()
                await runner.stop(grace)
        finally:
            await connection.close()
