"""`tenure costs`: what runs have spent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from tenure import money
from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.session import Tenant, call_backend
from tenure.cli.runs.run_tables import make_table
from tenure.clock import HostClock
from tenure.durations import parse_duration
from tenure.errors import TenureError

_Moment = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="A day (2026-02-14), a moment, or how long ago (7d)."),
]


def register(app: typer.Typer) -> None:
    """Add `tenure costs`."""
    app.command("costs")(costs)


def costs(
    run: Annotated[str | None, typer.Argument(help="What this run has spent; else all of them.")] = None,
    by: Annotated[
        Literal["tenant", "workflow", "provider", "model", "day"], typer.Option(help="What is added up.")
    ] = "workflow",
    since: _Moment = None,
    until: _Moment = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show what a run has spent per provider and model, and what it may spend; or what all runs have spent, added up.

    Without --since that is the last thirty days. Days are UTC days and count as a whole; currencies are never added to each
    other. Runs that retention has deleted are not counted.
    """
    if run is not None:
        _show_run(run, db, tenant, as_json=as_json)
        return
    first, last = _when("--since", since), _when("--until", until)
    found = call_backend(db, tenant, lambda backend: backend.costs.report(by=by, since=first, until=last))
    if as_json:
        print_json(found)
        return
    if not found.items:
        out().print(f"nothing was spent from {found.since} to {found.until}")
        return
    named = {"provider": ("provider",), "model": ("provider", "model"), "tenant": ()}.get(by, (by,))
    made = make_table(*named, "spent", "runs", "calls", "tokens in", "out")
    for one in found.items:
        names = [safe_text(str(getattr(one, name))) for name in named]
        counts = (one.runs, one.calls, one.tokens_in, one.tokens_out)
        made.add_row(*names, safe_text(one.text), *map(str, counts))
    out().print(made)
    if found.more:
        out().print("there are more: ask for fewer days")


def _show_run(run: str, db: str | None, tenant: str, *, as_json: bool) -> None:
    found = call_backend(db, tenant, lambda backend: backend.costs.get(run))
    if as_json:
        print_json(found)
        return
    out().print(f"spent {found.text}")
    if found.lines:
        made = make_table("provider", "model", "spent", "calls", "tokens in", "out")
        for one in found.lines:
            spent = money.format_amount(one.micros, one.currency)
            counts = (one.calls, one.tokens_in, one.tokens_out)
            made.add_row(safe_text(one.provider), safe_text(one.model), safe_text(spent), *map(str, counts))
        out().print(made)


def _when(option: str, text: str | None) -> datetime | None:
    """A moment as people write it."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    try:
        ago = timedelta(seconds=parse_duration(text))
    except TenureError:
        raise typer.BadParameter(
            "a day like 2026-02-14, or how long ago, like 7d", param_hint=option
        ) from None
    return datetime.fromtimestamp(HostClock().now_us() / 1e6, UTC) - ago
