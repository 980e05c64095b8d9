"""`tenure bench`: the figures of this machine, each next to the floor that it is measured against.

The bench is a part of the repository, not of the installed package.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from tenure.errors import TenureError

_ROOT = Path(__file__).resolve().parents[4]


# The options, --help included, are those of the bench.
_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
app = typer.Typer()


@app.command(context_settings=_SETTINGS)
def bench(context: typer.Context) -> None:
    """Benchmark this machine. `tenure bench --help` lists the options."""
    if not (_ROOT / "bench" / "__main__.py").is_file():
        raise TenureError(
            "INVALID_INPUT", "the bench comes with the repository: clone it and run `make bench` there"
        )
    ended = subprocess.run([sys.executable, "-m", "bench", *context.args], cwd=_ROOT, check=False)
    raise typer.Exit(ended.returncode)
