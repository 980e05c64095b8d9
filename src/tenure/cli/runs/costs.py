"""`tenure costs`: what runs have spent."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Literal

import typer

from tenure import money
from tenure.cli.common.arguments import now
from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import print_json, say
from tenure.cli.common.options import AsJson, Db, Tenant
from tenure.cli.common.tables import show_table
from tenure.durations import parse_duration
from tenure.errors import TenureError

_Moment = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="A day (2026-02-14), a moment, or how long ago (7d)."),
]


app = typer.Typer()


@app.command()
def costs(
    run: Annotated[
        str | None, typer.Argument(help="Show what this run has spent.  \\[default: all runs]")
    ] = None,
    by: Annotated[
        Literal["tenant", "workflow", "provider", "model", "day"], typer.Option(help="Add up costs by this.")
    ] = "workflow",
    since: _Moment = None,
    until: _Moment = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show what a run has spent per provider and model, and its budget; or the sums over all runs.

    Without --since the sums are of the last thirty days. Days are whole UTC days. Different currencies are never added up. Runs
    that retention has deleted are not counted.
    """
    if run is not None:
        _show_run(run, db, tenant, as_json=as_json)
        return
    first, last = _when("--since", since), _when("--until", until)
    found = call_backend(db, tenant, lambda backend: backend.costs.report(by=by, since=first, until=last))
    if as_json:
        print_json(found)
        return
    named = {"model": ("provider", "model"), "tenant": ()}.get(by, (by,))
    show_table(
        found.items,
        False,
        f"nothing was spent from {found.since} to {found.until}",
        (*named, "spent", "runs", "calls", "tokens in", "out"),
        lambda one: (
            *(getattr(one, name) for name in named),
            one.text,
            one.runs,
            one.calls,
            one.tokens_in,
            one.tokens_out,
        ),
    )
    if found.more:
        say("there are more rows: ask for fewer days")


def _show_run(run: str, db: str | None, tenant: str, *, as_json: bool) -> None:
    found = call_backend(db, tenant, lambda backend: backend.costs.get(run))
    if as_json:
        print_json(found)
        return
    say(f"spent {found.text}")
    if found.lines:
        show_table(
            found.lines,
            False,
            "",
            ("provider", "model", "spent", "calls", "tokens in", "out"),
            lambda one: (
                one.provider,
                one.model,
                money.format_amount(one.micros, one.currency),
                one.calls,
                one.tokens_in,
                one.tokens_out,
            ),
        )


def _when(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    try:
        return now() - timedelta(seconds=parse_duration(text))
    except TenureError:
        raise typer.BadParameter(
            "give a day like 2026-02-14, or how long ago, like 7d", param_hint=option
        ) from None
