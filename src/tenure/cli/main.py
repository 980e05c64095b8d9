"""The `tenure` command.

Laws:
1. An error of Tenure is printed with its code, the places it concerns, what to do and where to read more, and ends the program with 1.
   Wrong usage ends it with 2. With --json both are JSON on stderr.
2. `COMMANDS` lists all commands. Each is in a module with an `app: typer.Typer`.
3. A module is imported when its command is used: help and completion import none of them.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from tenure import logs
from tenure.cli.common.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from tenure.errors import TenureError

COMPLETE_VARIABLE = "_TENURE_COMPLETE"
COLLECT_AFTER = 100_000
"""New objects after which the garbage collector runs. What a command loads stays alive; Python's default of 700 would cost a short
command a tenth of its time."""
LONG_RUNNING = frozenset(
    {"bench", "demo", "dev", "publish", "serve", "simulate", "status-server", "up", "worker"}
)
"""Commands that set the garbage collector themselves."""
QUERY_COMMANDS = frozenset({"runs", "approvals", "receipts", "costs", "signal"})
"""Commands that load no user code. They import structlog, which is slow to load, with their first log line."""

COMMANDS: dict[str, CommandEntry] = {
    # Work with workflows.
    "init": CommandEntry("dev.init", "Begin", "Create a project with a workflow that runs."),
    "run": CommandEntry("runs.run", "Begin", "Run a workflow here and watch it: code or a YAML file."),
    "dev": CommandEntry("dev.dev", "Begin", "Serve an app while you work on it; restarts on every change."),
    "worker": CommandEntry("ops.worker", "Begin", "Run the workflows and tools of an app until you stop it."),
    "serve": CommandEntry(
        "ops.serve", "Begin", "Serve the HTTP API: tenants, keys, triggers, runners and live status."
    ),
    "publish": CommandEntry(
        "ops.publish", "Begin", "Publish the status of agent runs to files or S3, as a process of its own."
    ),
    "status-server": CommandEntry(
        "ops.status_server", "Begin", "Serve what was published, without a database; with a page."
    ),
    "demo": CommandEntry(
        "dev.demo", "Begin", "Watch a release survive the death of its worker, in 15 seconds."
    ),
    "up": CommandEntry(
        "dev.up", "Begin", "Start a whole system, from CI to governed agents, and watch its story."
    ),
    # Look after runs.
    "runs": CommandEntry("runs.runs", "Runs", "List, show, watch and control runs; explain why one waits."),
    "approvals": CommandEntry(
        "approvals.approvals", "Runs", "List the approvals that people are asked for, and answer them."
    ),
    "receipts": CommandEntry(
        "govern.receipts", "Runs", "Show the actions of runs; settle those with an unknown outcome."
    ),
    "costs": CommandEntry(
        "runs.costs", "Runs", "Show what runs have spent, per workflow, provider, model or day."
    ),
    "undo": CommandEntry("govern.undo", "Runs", "Undo the actions of a finished run."),
    "signal": CommandEntry("runs.run_control", "Runs", "Deliver an event to a run."),
    "schedule": CommandEntry("triggers.schedule", "Runs", "Start runs on a schedule."),
    "hooks": CommandEntry(
        "triggers.hooks", "Runs", "Show what hooks received; replay deliveries that were set aside."
    ),
    "workflows": CommandEntry(
        "workflows.workflows", "Runs", "List registered workflows; check YAML files, with line numbers."
    ),
    "ci": CommandEntry("ci.ci", "Runs", "CI: check pipelines, explain plans, run jobs, look after reports."),
    # Govern what runs do to the world.
    "policy": CommandEntry(
        "govern.policy", "Governing", "Check, test, publish and activate the policy for actions."
    ),
    "freeze": CommandEntry(
        "govern.freezes", "Governing", "Deny every action of a tenant, a workflow or a connector, at once."
    ),
    "thaw": CommandEntry("govern.freezes", "Governing", "Allow frozen actions again; takes two people."),
    # Look after who may ask a server.
    "tenants": CommandEntry(
        "identity.tenants", "People and keys", "Manage tenants and their share of the workers."
    ),
    "people": CommandEntry(
        "identity.people", "People and keys", "Manage people who use a server and decide approvals."
    ),
    "clients": CommandEntry("identity.clients", "People and keys", "Manage programs that use a server."),
    "keys": CommandEntry("identity.keys", "People and keys", "Create, rotate and revoke credentials."),
    "confirm": CommandEntry(
        "identity.confirm",
        "People and keys",
        "Confirm, as a second person, what another person created or changed.",
    ),
    # Prove what happened.
    "evidence": CommandEntry("evidence.evidence", "Evidence", "List and export the sealed evidence of runs."),
    "verify": CommandEntry(
        "evidence.verify", "Evidence", "Verify evidence offline: contents, signature and ledger proof."
    ),
    "ledger": CommandEntry(
        "evidence.ledger", "Evidence", "Show, sign and check ledgers against kept checkpoints."
    ),
    "signing-keys": CommandEntry(
        "evidence.signing_keys", "Evidence", "Create, rotate and revoke the keys that sign evidence."
    ),
    # Look after the database.
    "migrate": CommandEntry("ops.migrate", "Database", "Create a database, or bring one up to date."),
    "doctor": CommandEntry("ops.doctor", "Database", "Check every invariant over a database."),
    "explain": CommandEntry("ops.explain", "Database", "Explain an error code, and what to do about it."),
    # Look inside.
    "lifecycle": CommandEntry(
        "dev.lifecycle", "Inside", "Show the lifecycles of runs (profiles), and prove them."
    ),
    "simulate": CommandEntry(
        "dev.simulate", "Inside", "Search for violations in simulated worlds full of faults."
    ),
    "bench": CommandEntry("dev.bench", "Inside", "Benchmark this machine, each figure next to its floor."),
    "runner": CommandEntry("dev.runner", "Inside", "Test a runner of your own against the protocol."),
    "completion": CommandEntry("ops.completion", "Inside", "Print the completion script of your shell."),
}

WITHOUT_PROFILES = frozenset({None, "completion", "explain", "init", "lifecycle", "status-server"})
"""Help and commands that work even if a custom profile is broken. `lifecycle` loads profiles itself, except in `check`."""


class _Root(LazyGroup):
    entries = COMMANDS


app = typer.Typer(
    name="tenure",
    cls=_Root,
    help="Tenure carries runs through crashes, retries, approvals and cancellations, and proves what happened.",
    epilog="""
    First steps:

    tenure init hello -- a project with a workflow, then: cd hello

    tenure run app.py --input name=Ada -- run it here, and answer its question

    tenure runs list -- all runs; then `tenure runs show RUN`, `tenure runs why RUN`

    tenure worker app -- serve its workflows; start as many workers as you like

    The database is tenure.db in this folder unless --db or TENURE_DB names another. Commands have --json.
    `tenure COMMAND --help` explains a command, `tenure explain CODE` an error, and `tenure lifecycle show tenure` the
    states that a run goes through.
    """,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

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
    if context.invoked_subcommand not in LONG_RUNNING:
        gc.set_threshold(COLLECT_AFTER)
    if context.invoked_subcommand is None:
        print(context.get_help())
    elif context.invoked_subcommand in QUERY_COMMANDS:
        logs.configure_on_first_use(log_to_stderr)
    else:
        log_to_stderr()
    if context.invoked_subcommand not in WITHOUT_PROFILES:
        from tenure.config import choose_profiles

        if choose_profiles() is not None:
            from tenure import custom_profiles

            custom_profiles.load_custom_profiles()


def main() -> None:
    """Run the command line; the entry point of the installed `tenure`."""
    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    from tenure.errors import TenureError

    as_json = "--json" in sys.argv[1:]
    # Some versions of typer have their own copy of click, so take its usage error from a subclass.
    usage_error: Any = typer.BadParameter.__mro__[2]
    try:
        # With --json, typer leaves usage errors to us, so that they are JSON, too.
        code = app(prog_name="tenure", standalone_mode=not as_json)
    except TenureError as error:
        _exit(error, as_json)
    except usage_error as wrong:
        _exit(TenureError("INVALID_INPUT", wrong.format_message()), as_json, wrong.exit_code)
    except typer.Abort:
        print("Aborted.", file=sys.stderr)
        sys.exit(1)
    if code:
        sys.exit(code)


def _exit(error: TenureError, as_json: bool, code: int = 1) -> NoReturn:
    from tenure.cli.common.console import show_error

    show_error(error, as_json=as_json)
    sys.exit(code)


def log_to_stderr() -> None:
    """Log to stderr, which keeps stdout for results. Tracebacks do not show the values of variables."""
    import structlog

    def logger(*_: Any) -> structlog.PrintLogger:
        # Look up stderr for every line: a test may have replaced it.
        return structlog.PrintLogger(sys.stderr)

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
        logger_factory=logger,
    )
