"""`tenure bench`: the figures of this machine, each next to the floor it is measured against.

Law: the bench is a part of the repository, not of the installed package: where it is not, that is said.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from tenure.errors import TenureError

_ROOT = Path(__file__).resolve().parents[4]


def register(app: typer.Typer) -> None:
    """Add the command of this module; its options, --help too, are the bench's own."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings)(bench)


def bench(context: typer.Context) -> None:
    """Measure this machine: `tenure bench --help` says how."""
    if not (_ROOT / "bench" / "__main__.py").is_file():
        raise TenureError(
            "INVALID_INPUT", "the bench comes with the repository: clone it and run `make bench` there"
        )
    ended = subprocess.run([sys.executable, "-m", "bench", *context.args], cwd=_ROOT, check=False)
    raise typer.Exit(ended.returncode)
