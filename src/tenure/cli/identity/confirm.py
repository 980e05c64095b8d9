"""`tenure confirm`: a second person confirms what another person created or changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tenure.cli.common.backend import call_backend, call_either
from tenure.cli.common.console import show_result
from tenure.cli.common.options import AsJson, Db, Tenant
from tenure.shapes.identity import Confirmable

if TYPE_CHECKING:
    from tenure.engine import Engine

_EPILOG = """
Look at it, then confirm what you have looked at:

tenure people show ada -- roles, groups, and who created, enrolled or promoted her

tenure confirm person ada --revision 2

tenure hooks show HOOK -- its rules in full, then: tenure confirm hook HOOK --revision 3

tenure workflows show release -- its whole file, then: tenure confirm workflow release --version 7 --digest 4f1c...

Nobody can confirm their own changes. On a database, the account that owns it may confirm what others made; the tenant's audit chain
then names the database owner. docs/separation-of-duties.md explains confirmations.
"""


app = typer.Typer()


@app.command(epilog=_EPILOG)
def confirm(
    kind: Annotated[
        Confirmable, typer.Argument(metavar="KIND", help="hook, schedule, workflow, client, key or person.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its id or name.")],
    revision: Annotated[
        int | None,
        typer.Option("--revision", min=1, help="The revision that you have reviewed.", show_default=False),
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", help="For a workflow: its version.", show_default=False)
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest", help="For a workflow: the digest that you have reviewed.", show_default=False
        ),
    ] = None,
    operator: Annotated[
        bool,
        typer.Option(
            "--operator",
            help="For a person, on a server, with the installation operator's key: an emergency override.",
        ),
    ] = False,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Confirm, as a second person, what another person created or changed.

    Until then, the editor is involved in the runs that the edit causes and cannot approve them. The editor of a person counts as
    one with that person.
    """
    if operator and kind != "person":
        raise typer.BadParameter("the operator confirms people only", param_hint="--operator")

    if operator:
        made = call_either(
            db,
            tenant,
            _refuse_operator,
            lambda client: client.confirmations.confirm_as_operator(tenant, name, revision=revision),
        )
    else:
        made = call_backend(
            db,
            tenant,
            lambda backend: backend.confirmations.confirm(
                kind, name, revision=revision, version=version, digest=digest
            ),
            changes=True,
        )
    left = f"; still unconfirmed: {' '.join(made.unconfirmed)}" if made.unconfirmed else ""
    text = f"{kind} {name} is confirmed, as {' '.join(made.confirmed)} left it{left}"
    show_result(made, as_json, text if made.confirmed else f"{kind} {name} has nothing to confirm")


def _refuse_operator(_: Engine) -> NoReturn:
    raise typer.BadParameter("leave it out: on a database you are its owner", param_hint="--operator")
