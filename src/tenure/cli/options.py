"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|DSN",
        help="The database: a path, sqlite:PATH or postgresql://...  [default: $TENURE_DB, else tenure.db]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
