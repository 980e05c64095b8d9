"""The status reporter alone in a process, for tests that kill it: `python -m tests.server.reporter_process DATABASE SETTINGS`."""

import asyncio
import sys

from tenure.engine import Engine
from tenure.publish import vcs_reporter
from tenure.publish.vcs_settings import load_vcs_settings


async def main(database: str, settings: str) -> None:
    vcs_reporter.IN_FLIGHT_SECONDS = 0.2  # its requests are on this machine
    async with Engine(database, migrate=False, sweep=False) as engine:
        reporter = vcs_reporter.VcsReporter(engine.orchestrator, load_vcs_settings(settings))
        await reporter.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
