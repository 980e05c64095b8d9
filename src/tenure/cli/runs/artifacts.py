"""`tenure runs artifacts`: the files that runners have uploaded for a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import print_json
from tenure.cli.common.options import AsJson, Db, RunArg, Tenant
from tenure.cli.common.tables import format_time, show_table
from tenure.private_files import replace_file

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend

app = typer.Typer()


@app.command()
def artifacts(
    run: RunArg,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The file to read; without it, list all files.")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", help="The file of this step, if several steps have one.")
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="The file of this attempt.")] = None,
    late: Annotated[
        bool | None,
        typer.Option("--late/--in-time", help="The file that came after the end of the lease, or before."),
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", help="The file to write.  \\[default: stdout]")] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the files that runners have uploaded for a run, or read one of them.

    A name alone means the accepted file, from the attempt that succeeded.
    """
    if name is None:
        found = call_backend(db, tenant, lambda backend: backend.runs.list_artifacts(run))
        if as_json:
            print_json({"artifacts": found})
            return
        show_table(
            found,
            False,
            "no artifacts",
            ("name", "step", "attempt", "state", "bytes", "uploaded", "until", "digest"),
            lambda one: (
                one.name,
                one.step,
                one.attempt,
                one.state,
                one.size,
                format_time(one.uploaded_at),
                "deleted" if one.deleted_at else format_time(one.expires_at),
                one.digest[:23],
            ),
        )
        return

    async def read(backend: Backend) -> None:
        pieces = backend.runs.stream_artifact(run, name, step=step, attempt=attempt, late=late)
        if to is None:
            async for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            return
        with replace_file(to) as opened:
            async for piece in pieces:
                opened.write(piece)

    call_backend(db, tenant, read)
