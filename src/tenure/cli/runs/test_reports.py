"""`tenure runs tests`: what the tests of a run's jobs reported."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import print_json, say
from tenure.cli.common.options import AsJson, Db, RunArg, Tenant
from tenure.cli.common.tables import show_table
from tenure.cli.runs.run_tables import format_seconds

app = typer.Typer()


@app.command("tests")
def list_tests(
    run: RunArg,
    step: Annotated[str | None, typer.Option("--step", help="Only the tests of this job.")] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show the tests of a run's jobs: counts of each attempt, and the tests that failed."""
    found = call_backend(db, tenant, lambda backend: backend.runs.tests(run, step))
    if as_json:
        print_json({"tests": found})
        return
    show_table(
        found,
        False,
        "no test reports",
        ("job", "attempt", "tests", "failed", "skipped", "time", ""),
        lambda one: (
            one.step,
            one.attempt,
            one.report.tests,
            one.report.failed,
            one.report.skipped,
            format_seconds(one.report.seconds),
            "late" if one.late else "",
        ),
    )
    for one in found:
        for case in one.report.failed_cases:
            place = f"  {case.file}:{case.line or 1}" if case.file else ""
            say(f"\n{case.outcome} {case.test}  ({one.step}, attempt {one.attempt}){place}", "bold red")
            if case.message:
                say("\n".join(f"  {line}" for line in case.message.splitlines()), "")
        for note in one.report.notes:
            say(f"note: {note}", "yellow")
