"""`tenure ci trigger`: start a CI run by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import show_result
from tenure.cli.common.options import AsJson, Db, Tenant
from tenure.shapes.ci import CiTrigger

app = typer.Typer()


@app.command(
    epilog="""
    Examples:

    tenure ci trigger --repo shop --server https://ci.example.com -- the default branch of a server's repository

    tenure ci trigger --repo shop --ref feature/cart -- a branch

    tenure ci trigger --repo shop --ref refs/tags/v2 --base 4f1c... -- compare with another commit than usual

    The repository is one of the server's CI settings. On a database of your own, name the settings with TENURE_CI.
    Then: tenure runs watch RUN
    """
)
def trigger(
    repo: Annotated[
        str, typer.Option("--repo", metavar="NAME", help="Its name in the settings, or OWNER/NAME at GitHub.")
    ],
    ref: Annotated[
        str,
        typer.Option(
            "--ref", help="A branch, or a full ref.  \\[default: the default branch]", show_default=False
        ),
    ] = "",
    head: Annotated[
        str,
        typer.Option(
            "--head",
            metavar="COMMIT",
            help="The commit.  \\[default: the newest of the ref]",
            show_default=False,
        ),
    ] = "",
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="COMMIT",
            help="Compare with this commit.  \\[default: where the ref left the default branch]",
            show_default=False,
        ),
    ] = "",
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Start a CI run for a ref: fetch it, plan what its change needs, and run that."""
    asked = CiTrigger(repository=repo, ref=ref, head=head, base=base)
    run = call_backend(db, tenant, lambda b: b.ci.trigger(asked), changes=True)
    show_result({"run_id": run}, as_json, run)
