"""`tenure signal`: the same as `tenure runs signal`, where it is looked for first."""

from __future__ import annotations

import typer

from tenure.cli.runs import run_control


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(run_control.signal)
