"""`tenure ci`: the group of commands for CI."""

from __future__ import annotations

from typing import ClassVar

import typer

from tenure.cli.common.lazy_group import CommandEntry, LazyGroup

COMMANDS: dict[str, CommandEntry] = {
    "plan": CommandEntry("ci.plan", "Pipelines", "Explain which jobs a change needs, and why."),
    "check": CommandEntry(
        "ci.check", "Pipelines", "Check pipeline files and CI settings, with line numbers."
    ),
    "trigger": CommandEntry("ci.trigger", "Runs", "Start a CI run for a ref of a repository."),
    "explain": CommandEntry("ci.explain", "Runs", "Explain why each job is in the plan of a run, or out."),
    "reports": CommandEntry("ci.reports", "Reports", "List and retry the reports of runs to GitHub."),
}


class _CiGroup(LazyGroup):
    entries: ClassVar[dict[str, CommandEntry]] = COMMANDS


app = typer.Typer(
    name="ci",
    cls=_CiGroup,
    help="CI: check a pipeline, explain which jobs a change needs, and look after reports to GitHub.",
    epilog="""
    Examples:

    tenure ci check -- every problem of .tenure/ci.yaml with its line and column

    tenure ci plan --base main -- why each job is in or out, for the commits since main

    tenure ci plan --base main --format graph -- the same as a tree

    tenure ci reports list --state refused -- reports that GitHub refuses for good

    tenure ci reports retry RUN -- after you have fixed the permission or the settings
    """,
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Its commands are loaded when they are used."""
