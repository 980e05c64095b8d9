"""`tenure receipts`: what runs did to the world, and what nobody knows the end of.

Law: beside a database whoever settles is the one local person, like whoever approves; at a server it is whose key it is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from tenure.cli.common.console import out, print_json, safe_text, show_fields
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.session import Tenant, call_backend, caller_id, parse_json
from tenure.cli.runs.run_tables import format_time, keep_ids_whole, make_table

_app = typer.Typer(
    name="receipts",
    help="What runs did to the world, and what nobody knows the end of.",
    epilog="""
    Examples:

    tenure receipts list -- actions whose answer was lost: a person has to say how they ended

    tenure receipts show rcp_2026-02-14_0hs5wcgrde1 -- what was asked, under which key, and what is known

    tenure receipts settle rcp_2026-02-14_0hs5wcgrde1 done --reason "the label is there"

    Whoever stands behind a run does not settle what it did.
    """,
    no_args_is_help=True,
)

_Receipt = Annotated[
    str, typer.Argument(metavar="RECEIPT", help="The receipt's id, see `tenure receipts list`.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


@_app.command("list")
def list_receipts(
    run: Annotated[str | None, typer.Option("--run", help="All receipts of this run.")] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the actions that nobody knows the end of, newest first; with --run all of a run's."""
    found = call_backend(db, tenant, lambda backend: backend.receipts.list(run))
    if as_json:
        print_json(found)
        return
    console = out()
    if not found:
        console.print("nothing is unknown" if run is None else "it did nothing")
        return
    made = make_table("receipt", "run", "step", "action", "state", "intended", "until")
    keep_ids_whole(made, [one.id for one in found])
    for one in found:
        made.add_row(
            one.id,
            one.run_id,
            safe_text(one.step),
            safe_text(one.action),
            one.state,
            format_time(one.intended_at),
            format_time(one.expires_at),
        )
    console.print(made)


@_app.command()
def show(receipt: _Receipt, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Show a receipt, with what is known of how it ended."""
    found = call_backend(db, tenant, lambda backend: backend.receipts.get(receipt))
    if as_json:
        print_json(found)
        return
    show_fields(_fields(found), 12)


def _fields(found: Any) -> dict[str, Any]:
    known = found.known
    if isinstance(known, dict):  # the rest of it is in the request
        known = known.get("rationale") or None
    lines: list[tuple[str, Any]] = [
        ("receipt", found.id),
        ("run", f"{found.run_id} ({found.workflow}, {found.step})"),
        ("action", found.action),
        ("state", found.state),
        ("key", found.key),
        ("repeats", found.repeats),
        ("request", found.request),
        ("intended", format_time(found.intended_at)),
        ("error", found.error),
        ("known", known),
        ("result", found.result),
        ("settled by", found.settled_by),
        ("approval", found.approval_id),
        ("until", format_time(found.expires_at) if found.expires_at is not None else None),
    ]
    return {name: value for name, value in lines if value is not None}


@_app.command()
def settle(
    receipt: _Receipt,
    outcome: Annotated[
        Literal["done", "not_done", "retry"],
        typer.Argument(metavar="OUTCOME", help="done, not_done, or retry: call again."),
    ],
    result: Annotated[
        str | None,
        typer.Option("--result", help="Of one that was done: what was answered, as JSON or @FILE."),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="How that is known.")] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Say how an unknown action ended; its step goes on by that."""
    answer = parse_json(result, "--result")
    state = call_backend(
        db,
        tenant,
        lambda backend: backend.receipts.settle(
            receipt, outcome, person=caller_id(None), result=answer, reason=reason
        ),
        changes=True,
    )
    if as_json:
        print_json({"receipt": receipt, "state": state})
    else:
        out().print(Text(state))
