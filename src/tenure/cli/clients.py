"""`tenure clients`: programs that ask a server."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.console import out, print_json, shown
from tenure.cli.identity import Name, NewName, NewRoles, Of, Roles, ask, show_list, show_one
from tenure.cli.options import AsJson, Db
from tenure.cli.session import By

_app = typer.Typer(
    name="clients",
    help="Programs that ask a server: each has roles, and keys that rotate beneath it.",
    epilog="""
    A program that starts runs:

    tenure clients create ci --name "Our CI" --role operator --tenant acme

    tenure keys create --client ci --tenant acme --to ci.key -- its key, once

    What each role may do is in docs/roles.md; docs/tenants.md explains the whole.
    """,
    no_args_is_help=True,
)

_Client = Annotated[str, typer.Argument(metavar="CLIENT", help="Its id, see `tenure clients list`.")]
_Owner = Annotated[
    str | None, typer.Option("--owner", metavar="PERSON", help="Who answers for it.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


@_app.command()
def create(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Its id: letters, digits, dots, dashes.")],
    roles: Roles,
    name: Name = None,
    owner: _Owner = None,
    tenant: Of = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make a client. It needs a key before it can ask: `tenure keys create --client CLIENT`."""
    made = ask(
        db, tenant, by, lambda d: d.add_client(client=client, name=name or client, roles=roles, owner=owner)
    )
    show_one(made, as_json)


@_app.command("list")
def list_clients(tenant: Of = "default", db: Db = None, as_json: AsJson = False) -> None:
    """List the clients of a tenant, newest first."""
    found = ask(db, tenant, None, lambda d: d.clients())
    show_list(found, "clients", ("id", "name", "roles", "owner", "unconfirmed", "closed_at"), as_json)


@_app.command()
def show(client: _Client, tenant: Of = "default", db: Db = None, as_json: AsJson = False) -> None:
    """Show a client."""
    show_one(ask(db, tenant, None, lambda d: d.client(client)), as_json)


@_app.command()
def change(
    client: _Client,
    name: NewName = None,
    roles: NewRoles = None,
    owner: _Owner = None,
    tenant: Of = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Change a client; what is not said stays as it is."""
    before = ask(db, tenant, None, lambda d: d.client(client))
    made = ask(
        db,
        tenant,
        by,
        lambda d: d.set_client(
            client, name=name or before.name, roles=roles or before.roles, owner=owner or before.owner
        ),
    )
    show_one(made, as_json)


@_app.command()
def close(
    client: _Client, tenant: Of = "default", db: Db = None, by: By = None, as_json: AsJson = False
) -> None:
    """Close a client for good: none of its keys works any more, at servers within a second."""
    made = ask(db, tenant, by, lambda d: d.close_client(client))
    if as_json:
        print_json(made)
    else:
        out().print(shown(f"{client} is closed"))
