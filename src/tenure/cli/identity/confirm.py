"""`tenure confirm`: a second person says that what somebody made or changed is as it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.session import Tenant, call_backend

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.identity import ConfirmationResult

_EPILOG = """
Look at it, then confirm what you have looked at:

tenure people show ada -- roles, groups, and who has made, enrolled or promoted her

tenure confirm person ada --revision 2

tenure hooks show HOOK -- its rules in full, then: tenure confirm hook HOOK --revision 3

tenure workflows show release -- its whole file, then: tenure confirm workflow release --version 7 --digest 4f1c...

Nobody confirms what they made themselves. Beside a database the account that has it may confirm what others made, and the tenant's
chain says that it was the database owner. docs/separation-of-duties.md explains the whole.
"""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=_EPILOG)(confirm)


def _known(given: str) -> str:
    from tenure.shapes.identity import Confirmable

    if given not in get_args(Confirmable):
        raise typer.BadParameter(f"'{given}' is not one of {', '.join(get_args(Confirmable))}")
    return given


def confirm(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="hook, schedule, workflow, client, key or person.", callback=_known
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its id or name.")],
    revision: Annotated[
        int | None,
        typer.Option("--revision", min=1, help="The revision you have looked at.", show_default=False),
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", help="Of a workflow: which version.", show_default=False)
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option("--digest", help="Of a workflow: the digest you have looked at.", show_default=False),
    ] = None,
    operator: Annotated[
        bool,
        typer.Option(
            "--operator",
            help="Of a person, over a server, with the installation operator's key: breaks the glass.",
        ),
    ] = False,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Confirm, as a second person, what somebody has made or changed.

    Until then whoever did that stands behind the runs that are made through it (of a person: counts as one with that person), and
    approves none of them.
    """
    if operator and kind != "person":
        raise typer.BadParameter("the operator confirms people only", param_hint="--operator")

    async def call(backend: Backend) -> ConfirmationResult:
        said: dict[str, Any] = {"revision": revision, "version": version, "digest": digest}
        if operator:
            from tenure.client import Client

            if not isinstance(backend, Client):
                raise typer.BadParameter(
                    "beside a database you are its owner: leave it out", param_hint="--operator"
                )
            return await backend.confirmations.confirm_as_operator(tenant, name, revision=revision)
        return await backend.confirmations.confirm(kind, name, **said)  # type: ignore[arg-type]  # checked: a known kind

    made = call_backend(db, tenant, call, changes=True)
    if as_json:
        print_json(made)
        return
    if not made.confirmed:
        out().print(
            safe_text(f"nothing of {kind} {name} was unconfirmed: there was nothing to confirm"),
            soft_wrap=True,
        )
        return
    left = f"; still unconfirmed: {' '.join(made.unconfirmed)}" if made.unconfirmed else ""
    of = " ".join(made.confirmed)
    out().print(safe_text(f"{kind} {name} is confirmed, as {of} left it{left}"), soft_wrap=True)
