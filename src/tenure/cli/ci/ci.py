"""`tenure ci`: CI runs and their reports to the VCS."""

from __future__ import annotations

import typer

from tenure.cli.ci import reports

app = typer.Typer(
    name="ci",
    help="CI runs: their reports to GitHub.",
    epilog="""
    tenure ci reports list --state refused -- reports that GitHub refuses for good

    tenure ci reports retry RUN -- after you have fixed the permission or the settings
    """,
    no_args_is_help=True,
)
app.add_typer(reports.app, name="reports")
