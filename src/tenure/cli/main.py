"""The `tenure` command.

Laws:
1. A refusal of Tenure's own is shown with its code, its places, what to do and where to read more, and
   ends the program with 1; a wrong use of the command line ends it with 2. With --json both are JSON, on stderr too.
2. Every command lives in a module of its own with a `register(app)`; `COMMANDS` below is all there is.
3. A module is imported when its command is used: help and completion need none of them.
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
"""New objects after which the garbage collector looks through them. What a command loads stays; looking through it again and again
(every 700, if nothing is said) is a tenth of a short command."""
LONG_RUNNING = frozenset({"bench", "demo", "dev", "serve", "simulate", "worker"})
"""Commands that stay, and see to that themselves."""
QUERY_COMMANDS = frozenset({"runs", "approvals", "receipts", "costs", "signal"})
"""Commands that load no code of users, which might log by itself: structlog, which is slow to load, is left until there is a line."""

COMMANDS: dict[str, CommandEntry] = {
    # Work with workflows.
    "init": CommandEntry("dev.init", "Begin", "Make a project that runs."),
    "run": CommandEntry("runs.run", "Begin", "Run a workflow here and watch it: code or a YAML file."),
    "dev": CommandEntry("dev.dev", "Begin", "Serve an app while you work on it; anew on every change."),
    "worker": CommandEntry(
        "ops.worker", "Begin", "Serve the workflows and tools of an app until you stop it."
    ),
    "serve": CommandEntry(
        "ops.serve", "Begin", "Serve the HTTP API: tenants, keys, triggers, runners and live status."
    ),
    "demo": CommandEntry(
        "dev.demo", "Begin", "Watch a release survive the death of its worker, in 15 seconds."
    ),
    # Look after runs.
    "runs": CommandEntry("runs.runs", "Runs", "List, show, watch and steer runs; say why one waits."),
    "approvals": CommandEntry("approvals.approvals", "Runs", "What people are asked, and their answers."),
    "receipts": CommandEntry(
        "govern.receipts", "Runs", "What runs did to the world; say how an unknown action ended."
    ),
    "costs": CommandEntry(
        "runs.costs", "Runs", "What runs have spent, per workflow, provider, model or day."
    ),
    "undo": CommandEntry("govern.undo", "Runs", "Take back what a finished run did to the world."),
    "signal": CommandEntry("runs.signal", "Runs", "Deliver an event to a run."),
    "schedule": CommandEntry("triggers.schedule", "Runs", "Start runs by the clock."),
    "hooks": CommandEntry(
        "triggers.hooks", "Runs", "What hooks were told; what was set aside, and do it again."
    ),
    "workflows": CommandEntry(
        "workflows.workflows", "Runs", "What is registered; check YAML files, with line numbers."
    ),
    # Govern what runs do to the world.
    "policy": CommandEntry(
        "govern.policy", "Governing", "Check, test, publish and activate what actions are allowed."
    ),
    "freeze": CommandEntry(
        "govern.freezes", "Governing", "Deny every action of a tenant, a workflow or a connector, at once."
    ),
    "thaw": CommandEntry("govern.freezes", "Governing", "Allow what was frozen again; takes two people."),
    # Look after who may ask a server.
    "tenants": CommandEntry(
        "identity.tenants", "People and keys", "Whose runs they are, and their share of the workers."
    ),
    "people": CommandEntry(
        "identity.people", "People and keys", "Who asks a server and decides; their one-time codes."
    ),
    "clients": CommandEntry("identity.clients", "People and keys", "Programs that ask a server."),
    "keys": CommandEntry("identity.keys", "People and keys", "Make, rotate and revoke credentials."),
    "confirm": CommandEntry(
        "identity.confirm", "People and keys", "Confirm, as a second person, what somebody made or changed."
    ),
    # Prove what happened.
    "evidence": CommandEntry(
        "evidence.evidence", "Evidence", "What was sealed of runs, and files of it to take out."
    ),
    "verify": CommandEntry(
        "evidence.verify", "Evidence", "Check evidence offline: whole, sealed by whom, in the ledger."
    ),
    "ledger": CommandEntry(
        "evidence.ledger", "Evidence", "What was sealed, signed for; compare it with a checkpoint."
    ),
    "signing-keys": CommandEntry(
        "evidence.signing_keys", "Evidence", "The keys that seal: made, rotated, revoked."
    ),
    # Look after the database.
    "migrate": CommandEntry("ops.migrate", "Database", "Make a database, or bring one up to date."),
    "doctor": CommandEntry("ops.doctor", "Database", "Check every invariant over a database."),
    "explain": CommandEntry("ops.explain", "Database", "What an error code means, and what to do about it."),
    # Look inside.
    "lifecycle": CommandEntry(
        "dev.lifecycle", "Inside", "The lifecycles a run can have, and the proof that they fit."
    ),
    "simulate": CommandEntry("dev.simulate", "Inside", "Hunt for violations in worlds full of faults."),
    "bench": CommandEntry("dev.bench", "Inside", "Measure this machine: the figures next to their floor."),
    "runner": CommandEntry(
        "dev.runner", "Inside", "Try a runner that you have written against the protocol."
    ),
    "completion": CommandEntry("ops.completion", "Inside", "Print the completion script of your shell."),
}
"""A new command is a module with `register(app: typer.Typer) -> None`, and its line here."""


WITHOUT_PROFILES = frozenset({None, "completion", "explain", "init", "lifecycle"})
"""Help and commands that a broken profile does not hold up; `lifecycle` reads them itself, but for its `check`."""


class _Root(LazyGroup):
    """The commands above."""

    lines = COMMANDS


app = typer.Typer(
    name="tenure",
    cls=_Root,
    help="Tenure carries runs through crashes, retries, approvals and cancellations, and proves what happened.",
    epilog="""
    First steps:

    tenure init hello -- a project with a workflow, then: cd hello

    tenure run app.py --input name=Ada -- run it here, and answer its question

    tenure runs list -- what there is; `tenure runs show RUN`, `tenure runs why RUN`

    tenure worker app -- serve it from now on; start as many as you like

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
        _bring_profiles()


def _bring_profiles() -> None:
    """The user's own profiles, for the whole command; without any, nothing is imported."""
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

    try:
        if "--json" in sys.argv[1:]:
            _for_programs()
        else:
            app(prog_name="tenure")
    except TenureError as error:
        _refused(error)


def _for_programs() -> None:
    """With --json a wrong use of the command line is told like any other refusal; it still ends the program with 2."""
    from tenure.errors import TenureError

    # Some versions of typer bring a click of their own: what a wrong use is, its own error says.
    wrong_use: Any = typer.BadParameter.__mro__[2]
    try:
        code = app(prog_name="tenure", standalone_mode=False)
    except wrong_use as wrong:
        _refused(TenureError("INVALID_INPUT", wrong.format_message()), wrong.exit_code)
    except typer.Abort:
        print("Aborted.", file=sys.stderr)
        sys.exit(1)
    if code:
        sys.exit(code)


def _refused(error: TenureError, code: int = 1) -> NoReturn:
    from tenure.cli.common.console import show_error

    show_error(error, as_json="--json" in sys.argv[1:])
    sys.exit(code)


def log_to_stderr() -> None:
    """What the library logs is no result; and what was in the variables of a program is nobody's business."""
    import structlog

    def logger(*_: Any) -> structlog.PrintLogger:
        # Asked for at every line: whoever captures stderr for a while gets the lines of that while.
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
