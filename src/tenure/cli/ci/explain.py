"""`tenure ci explain`: why each job is in the plan of a run or not."""

from __future__ import annotations

import typer

from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import print_json, say
from tenure.cli.common.options import AsJson, Db, RunArg, Tenant
from tenure.cli.common.tables import make_table

app = typer.Typer()


@app.command()
def explain(run: RunArg, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Explain why each job of the pipeline is in the plan of a CI run, or out of it."""
    found = call_backend(db, tenant, lambda b: b.ci.plan(run))
    if as_json:
        print_json(found)
        return
    since = "nothing: everything is planned" if found.base is None else found.base[:12]
    say(f"{found.head[:12]}, compared with {since}")
    table = make_table("job", "plan", "why")
    for job in found.jobs:
        table.add_row(job.name, "in" if job.included else "out", "; ".join(job.reasons))
    say(table)
    if found.jobs_left_out:
        say(f"{found.jobs_left_out} more jobs are not listed")
    if found.withheld_secrets:
        say(f"withheld secrets: {', '.join(found.withheld_secrets)}")
