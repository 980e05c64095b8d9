"""`tenure publish`: publishes the status of agent runs, as a process of its own.

Law: it writes nothing to runs. Any number of these processes may run; one at a time publishes to a place, and another takes over when it ends.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.common.backend import wait_for_database as database_wait
from tenure.cli.common.options import Db, ListenDb, WaitForDatabase

_EPILOG = """
Examples:

tenure publish /srv/runs -- from tenure.db in this folder

tenure publish s3://bucket/runs --db postgresql://db/tenure -- to a bucket, with the usual AWS_* variables

tenure status-server --documents /srv/runs -- serves what was published

`tenure serve --publish PLACE` does the same in the process of a server. docs/agent-runs.md explains what is published.
"""

app = typer.Typer()


@app.command(epilog=_EPILOG)
def publish(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE", help="A folder, or s3://BUCKET/PREFIX with the usual AWS_* variables."
        ),
    ],
    wait_for_database: WaitForDatabase = "60s",
    listen_db: ListenDb = None,
    db: Db = None,
) -> None:
    """Publish status.json, manifest.json and steps/N.json of agent runs until it is stopped. Logs go to stderr."""
    from tenure.config import choose_database
    from tenure.engine import Engine
    from tenure.engine.entry_point import run_in_loop
    from tenure.engine.worker_process import shutdown_event
    from tenure.outbound.document_store import check_place

    check_place(place)
    database_wait(choose_database(db), wait_for_database)

    async def run() -> None:
        with shutdown_event() as stop:
            async with Engine(
                db,
                listen_url=listen_db,
                wait_for_database=wait_for_database,
                actor="publisher",
                sweep=False,
                publish=place,
            ):
                await stop.wait()

    run_in_loop(run())
