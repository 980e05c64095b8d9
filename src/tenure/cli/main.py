"""The `tenure` command.

Laws:
1. A refusal of Tenure's own is shown with its code, its places, what to do and where to read more, and
   ends the program with 1 (with --json as JSON, on stderr too); a wrong use of the command line ends it with 2.
2. Every command lives in a module of its own with a `register(app)`; the list below is all there is.
"""

from __future__ import annotations

import sys
from importlib import metadata

import structlog
import typer

from tenure.cli import approvals, demo, doctor, lifecycle, migrate, runs, schedule, simulate
from tenure.cli.console import show_error
from tenure.errors import TenureError

MODULES = (
    lifecycle,
    migrate,
    doctor,
    runs,
    approvals,
    schedule,
    demo,
    simulate,
)
"""A new command is a module with `register(app: typer.Typer) -> None`, and its name here."""

app = typer.Typer(
    name="tenure",
    help="Tenure carries runs through crashes, retries, approvals and cancellations, and proves what happened.",
    epilog="""
    First steps:

    tenure demo -- a few hundred runs, a killed worker, and the proof that all went well

    tenure runs --help -- start, watch and steer runs by hand

    tenure schedule --help -- start runs by the clock

    tenure lifecycle list -- which lifecycles a run can have

    tenure lifecycle show delta-ci -- the words, tables, timing and failure rules of one

    tenure lifecycle prove -- that each of them is a view of the same kernel

    tenure migrate -- make a database, or bring one up to date

    tenure doctor -- check every invariant over it

    `tenure COMMAND --help` explains a command; docs/ARCHITECTURE.md explains the whole.
    """,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"tenure {metadata.version('tenure')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    del version  # its callback has answered
    if context.invoked_subcommand is None:
        print(context.get_help())


for module in MODULES:
    module.register(app)


def main() -> None:
    """Run the command line; the entry point of the installed `tenure`."""
    _log_to_stderr()
    try:
        app()
    except TenureError as error:
        show_error(error, as_json="--json" in sys.argv[1:])
        sys.exit(1)


def _log_to_stderr() -> None:
    """What the library logs is no result; and what was in the variables of a program is nobody's business."""
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        # Asked for at every line: whoever captures stderr for a while gets the lines of that while.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
