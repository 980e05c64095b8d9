"""`tenure clients`: programs that make requests to a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.backend import call_backend
from tenure.cli.common.options import AsJson, By, Db, Tenant
from tenure.cli.common.tables import show_list, show_struct
from tenure.cli.identity.shared import Name, NewName, NewRoles, Roles, show_closed

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.identity import ApiClient

app = typer.Typer(
    name="clients",
    help="Programs that make requests to a server. Each client has roles, and keys that can be rotated.",
    epilog="""
    Let a program start runs:

    tenure clients create ci --name "Our CI" --role operator --tenant acme

    tenure keys create --client ci --tenant acme --to ci.key -- its key, printed once

    docs/roles.md says what each role may do; docs/tenants.md explains clients, people and keys.
    """,
    no_args_is_help=True,
)

_Client = Annotated[str, typer.Argument(metavar="CLIENT", help="The client's id, see `tenure clients list`.")]
_Owner = Annotated[
    str | None,
    typer.Option("--owner", metavar="PERSON", help="The person who answers for it.", show_default=False),
]


@app.command()
def create(
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="The new id: letters, digits, dots, dashes.")
    ],
    roles: Roles,
    name: Name = None,
    owner: _Owner = None,
    tenant: Tenant = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Create a client. It needs a key to make requests: `tenure keys create --client CLIENT`."""
    made = call_backend(
        db,
        tenant,
        lambda backend: backend.clients.create(client=client, name=name or client, roles=roles, owner=owner),
        changes=True,
        by=by,
    )
    show_struct(made, as_json)


@app.command("list")
def list_clients(tenant: Tenant = "default", db: Db = None, as_json: AsJson = False) -> None:
    """List the clients of a tenant, newest first."""
    found = call_backend(db, tenant, lambda backend: backend.clients.list())
    show_list(found, "clients", ("id", "name", "roles", "owner", "unconfirmed", "closed_at"), as_json)


@app.command()
def show(client: _Client, tenant: Tenant = "default", db: Db = None, as_json: AsJson = False) -> None:
    """Show a client."""
    show_struct(call_backend(db, tenant, lambda backend: backend.clients.get(client)), as_json)


@app.command()
def change(
    client: _Client,
    name: NewName = None,
    roles: NewRoles = None,
    owner: _Owner = None,
    tenant: Tenant = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Change a client. Options that are not given keep their values."""

    async def call(backend: Backend) -> ApiClient:
        before = await backend.clients.get(client)
        return await backend.clients.update(
            client, name=name or before.name, roles=roles or before.roles, owner=owner or before.owner
        )

    show_struct(call_backend(db, tenant, call, changes=True, by=by), as_json)


@app.command()
def close(
    client: _Client, tenant: Tenant = "default", db: Db = None, by: By = None, as_json: AsJson = False
) -> None:
    """Close a client permanently. Servers refuse its keys within a second."""
    made = call_backend(db, tenant, lambda backend: backend.clients.close(client), changes=True, by=by)
    show_closed(made, as_json)
