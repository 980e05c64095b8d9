"""`tenure receipts`: the actions of runs, and those with an unknown outcome.

Law: on a database, the local account settles a receipt, as it approves; on a server, the owner of the key does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenure.cli.common.arguments import parse_json
from tenure.cli.common.backend import call_backend, caller_id
from tenure.cli.common.console import print_json, show_fields, show_result
from tenure.cli.common.options import AsJson, Db, Tenant
from tenure.cli.common.tables import format_time, show_table

if TYPE_CHECKING:
    from tenure.shapes.receipts import Receipt

app = typer.Typer(
    name="receipts",
    help="Receipts: the actions of runs, and those with an unknown outcome.",
    epilog="""
    Examples:

    tenure receipts list -- actions whose response was lost: a person has to settle their outcome

    tenure receipts show rcp_2026-02-14_0hs5wcgrde1 -- the request, its key, and what is known of its outcome

    tenure receipts settle rcp_2026-02-14_0hs5wcgrde1 done --reason "the label is there"

    People who are involved in a run cannot settle its actions.
    """,
    no_args_is_help=True,
)

_Receipt = Annotated[
    str, typer.Argument(metavar="RECEIPT", help="The receipt's id, see `tenure receipts list`.")
]


@app.command("list")
def list_receipts(
    run: Annotated[str | None, typer.Option("--run", help="All receipts of this run.")] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the actions with an unknown outcome, newest first; with --run, all actions of a run."""
    found = call_backend(db, tenant, lambda backend: backend.receipts.list(run))
    show_table(
        found,
        as_json,
        "no action has an unknown outcome" if run is None else f"{run} has done no action",
        ("receipt", "run", "step", "action", "state", "intended", "until"),
        lambda one: (
            one.id,
            one.run_id,
            one.step,
            one.action,
            one.state,
            format_time(one.intended_at),
            format_time(one.expires_at),
        ),
        whole_ids=True,
    )


@app.command()
def show(receipt: _Receipt, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Show a receipt, with what is known of its outcome."""
    found = call_backend(db, tenant, lambda backend: backend.receipts.get(receipt))
    if as_json:
        print_json(found)
    else:
        show_fields(_fields(found), 12)


def _fields(found: Receipt) -> dict[str, Any]:
    known = found.known
    if isinstance(known, dict):  # the rest of it is in the request
        known = known.get("rationale") or None
    fields = {
        "receipt": found.id,
        "run": f"{found.run_id} ({found.workflow}, {found.step})",
        "action": found.action,
        "state": found.state,
        "key": found.key,
        "repeats": found.repeats,
        "request": found.request,
        "intended": format_time(found.intended_at),
        "error": found.error,
        "known": known,
        "result": found.result,
        "settled by": found.settled_by,
        "approval": found.approval_id,
        "until": format_time(found.expires_at) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


@app.command()
def settle(
    receipt: _Receipt,
    outcome: Annotated[
        Literal["done", "not_done", "retry"],
        typer.Argument(metavar="OUTCOME", help="done, not_done, or retry: call again."),
    ],
    result: Annotated[
        str | None,
        typer.Option("--result", help="If it was done: its result, as JSON or @FILE."),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="How you know the outcome.")] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Settle an action with an unknown outcome. Its step continues with that outcome."""
    answer = parse_json(result, "--result")
    state = call_backend(
        db,
        tenant,
        lambda backend: backend.receipts.settle(
            receipt, outcome, person=caller_id(), result=answer, reason=reason
        ),
        changes=True,
    )
    show_result({"receipt": receipt, "state": state}, as_json, state)
