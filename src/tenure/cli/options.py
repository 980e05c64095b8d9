"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer


def not_empty(given: str | None) -> str | None:
    """An option that was given says something: an unset variable in a script must not pick a default."""
    if given is not None and not given.strip():
        raise typer.BadParameter("it is empty; leave the option out for its default")
    return given


Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|DSN",
        help="The database: a path, sqlite:PATH or postgresql://...  \\[default: $TENURE_DB, else tenure.db]",
        show_default=False,
        callback=not_empty,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
