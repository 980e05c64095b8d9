"""`tenure migrate`: bring a database's schema up to date."""

from __future__ import annotations

import asyncio

import typer

from tenure.cli.common.console import show_result
from tenure.cli.common.options import AsJson, Db
from tenure.config import choose_database
from tenure.store.factory import open_store

app = typer.Typer()


@app.command()
def migrate(db: Db = None, as_json: AsJson = False) -> None:
    """Bring a database's schema up to date. Creates the database file if it does not exist.

    It is safe to run this repeatedly, and from many processes at once.
    """
    database = choose_database(db)
    applied = asyncio.run(open_store(database).migrate())
    state = "is up to date now" if applied else "is up to date already"
    lines = [*(f"applied {name}" for name in applied), f"{database} {state}."]
    show_result({"database": str(database), "applied": applied}, as_json, *lines)
