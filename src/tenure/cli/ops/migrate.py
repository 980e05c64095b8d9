"""`tenure migrate`: bring a database's schema up to date."""

from __future__ import annotations

import asyncio

import typer
from rich.text import Text

from tenure.cli.common.console import out, print_json
from tenure.cli.common.options import AsJson, Db
from tenure.config import choose_database
from tenure.store.factory import open_store


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(migrate)


def migrate(db: Db = None, as_json: AsJson = False) -> None:
    """Bring a database's schema up to date, making the database if there is none.

    Safe to run from many processes at once, and again.
    """
    database = choose_database(db)
    applied = asyncio.run(open_store(database).migrate())
    if as_json:
        print_json({"database": str(database), "applied": applied})
        return
    console = out()
    for name in applied:
        console.print(Text(f"applied {name}"))
    state = "is up to date now" if applied else "is up to date already"
    console.print(Text(f"{database} {state}."))
