"""`tenure runs artifacts`: the files that runners have uploaded for a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.session import RunArg, Tenant, call_backend
from tenure.cli.runs.run_tables import make_table
from tenure.private_files import write_file

_NAME = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The file to read; without it they are listed.")
]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(artifacts)


def artifacts(
    run: RunArg,
    name: _NAME = None,
    step: Annotated[str | None, typer.Option("--step", help="Of this step, where several have one.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Of this attempt.")] = None,
    late: Annotated[
        bool | None, typer.Option("--late/--in-time", help="What came after the lease's end, or before it.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="The file to write; without it, to standard output.")
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the files that a run's runners have uploaded, or read one of them.

    A name alone is the accepted file: that of the attempt that succeeded.
    """
    if name is None:
        found = call_backend(db, tenant, lambda backend: backend.runs.list_artifacts(run))
        if as_json:
            print_json({"artifacts": found})
            return
        lines = make_table("name", "step", "attempt", "state", "bytes", "uploaded", "digest")
        for one in found:
            when = f"{one.uploaded_at:%Y-%m-%d %H:%M:%S}"
            cells = (one.name, one.step, one.attempt, one.state, one.size, when, one.digest[:23])
            lines.add_row(*(safe_text(cell) for cell in cells))
        out().print(lines if found else "no artifacts")
        return
    body = call_backend(
        db,
        tenant,
        lambda backend: backend.runs.read_artifact(run, name, step=step, attempt=attempt, late=late),
    )
    if to is None:
        sys.stdout.buffer.write(body)
        sys.stdout.flush()
    else:
        write_file(to, body)
