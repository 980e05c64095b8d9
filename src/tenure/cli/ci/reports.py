"""`tenure ci reports`: the reports of runs to the VCS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import print_json, show_fields, show_result
from tenure.cli.common.options import AsJson, Db, RunArg, Tenant
from tenure.cli.common.tables import format_time, show_list

if TYPE_CHECKING:
    from tenure.shapes.reports import VcsReport

SHOWN = 50
SHOWN_MAX = 1_000

app = typer.Typer(
    name="reports",
    help="Reports of runs to GitHub: what was accepted, what waits, and what is refused for good.",
    epilog="""
    Find reports that are refused, fix the cause, and try again:

    tenure ci reports list --state refused -- each with GitHub's reason

    tenure ci reports retry RUN -- after you have granted the permission or corrected the settings

    A run becomes REPORTED only when GitHub has accepted its final state. Outages and rate limits are waited for; nothing
    needs to be retried after them. docs/vcs-reports.md explains how runs get a target.
    """,
    no_args_is_help=True,
)


@app.command("list")
def list_reports(
    state: Annotated[
        Literal["open", "reported", "refused"] | None,
        typer.Option("--state", help="Only reports in this state.", show_default=False),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=SHOWN_MAX, help="The most reports to show.")
    ] = SHOWN,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the reports of a tenant's runs, newest first."""
    found = call_backend(db, tenant, lambda b: b.reports.list(state=state, limit=limit), changes=True)
    columns = ("run_id", "workflow", "repository", "head_sha", "state", "tries", "error")
    show_list(found, "reports", columns, as_json)


@app.command()
def show(run: RunArg, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Show the report of a run: its state, and why the last try failed."""
    found = call_backend(db, tenant, lambda b: b.reports.get(run), changes=True)
    if as_json:
        print_json(found)
    else:
        show_fields(_fields(found))


@app.command()
def retry(run: RunArg, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Try a refused report again, or an open one now. A server that reports runs does the work."""
    found = call_backend(db, tenant, lambda b: b.reports.retry(run), changes=True)
    show_result(found, as_json, f"the report of {run} is {found.state} and is tried now")


def _fields(report: VcsReport) -> dict[str, object]:
    return {
        **msgspec.structs.asdict(report),
        "next_try_at": format_time(report.next_try_at),
        "updated_at": format_time(report.updated_at),
    }
