"""`tenure keys`: credentials of clients and of the installation's operator.

Law: a person's key is made and rotated by that person (`tenure people redeem`, POST /me/keys/KEY/rotate); here it can only
be listed and revoked.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Annotated, Any

import typer

from tenure.cli.console import out, print_json, shown
from tenure.cli.identity import (
    Expires,
    NewName,
    NewRoles,
    Of,
    To,
    ask,
    expiry,
    open_for_secret,
    show_list,
    show_one,
    show_secret,
)
from tenure.cli.options import AsJson, Db
from tenure.cli.session import By, seconds

_app = typer.Typer(
    name="keys",
    help="Keys: made, rotated with an overlap, revoked. A key is printed once; what is kept is its SHA-256.",
    epilog="""
    A key for a program, and its rotation:

    tenure keys create --client ci --tenant acme --expires +90d --to ci.key

    tenure keys rotate KEY --tenant acme --overlap 24h --to next.key -- the old one works a day longer

    tenure keys revoke KEY --tenant acme -- at servers within a second

    tenure keys create --operator --to operator.key -- for whoever looks after the installation: /admin/...

    A key is sent as `Authorization: Bearer tn_...`. docs/tenants.md explains the whole.
    """,
    no_args_is_help=True,
)

_Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Its id, see `tenure keys list`: the part after `tn_`.")
]
_ClientOption = Annotated[
    str | None, typer.Option("--client", help="Whose key: `tenure clients list`.", show_default=False)
]
_OperatorOption = Annotated[bool, typer.Option("--operator", help="The key of the installation's operator.")]
_TOLD = "This is key {} of {}, shown now and never again. Keep it where only its owner can read it:"
_KEPT = "Key {} of {} is in {}, and is never shown again."


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


def _tell(made: Any, as_json: bool, to: Path | None, file: IO[bytes] | None) -> None:
    owner = "the operator" if made.owner_kind == "operator" else f"{made.owner_kind} {made.owner_id}"
    told = _TOLD.format(made.id, owner) if to is None else _KEPT.format(made.id, owner, to)
    show_secret(made, made.key, as_json, told, file)


@_app.command()
def create(
    client: _ClientOption = None,
    operator: _OperatorOption = False,
    name: NewName = None,
    roles: NewRoles = None,
    expires: Expires = None,
    tenant: Of = "default",
    to: To = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, once: of a client (--role narrows it), or of the installation's operator."""
    if operator == (client is not None):
        raise typer.BadParameter(
            "name a --client, or say --operator; people get theirs by `tenure people enrol`"
        )
    until = expiry(expires)
    if client is None and roles:
        raise typer.BadParameter("the operator of the installation has no roles", param_hint="--role")
    with open_for_secret(to) as file:
        if client is None:
            made = ask(db, "", by, lambda d: d.add_operator_key(name=name or "", expires_at=until), make=True)
        else:
            owner = client
            made = ask(
                db,
                tenant,
                by,
                lambda d: d.add_key(owner, name=name or "", roles=roles or None, expires_at=until),
            )
        _tell(made, as_json, to, file)


@_app.command("list")
def list_keys(
    client: _ClientOption = None,
    person: Annotated[str | None, typer.Option("--person", help="Whose keys.", show_default=False)] = None,
    operator: _OperatorOption = False,
    tenant: Of = "default",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """List the keys of a tenant (or of one owner), newest first; never their secrets."""
    found = ask(db, "" if operator else tenant, None, lambda d: d.keys(client=client, person=person))
    columns = (
        "id",
        "owner_kind",
        "owner_id",
        "name",
        "roles",
        "expires_at",
        "replaced_until",
        "revoked_at",
        "used_at",
        "unconfirmed",
    )
    show_list(found, "keys", columns, as_json)


@_app.command()
def show(key: _Key, tenant: Of = "default", db: Db = None, as_json: AsJson = False) -> None:
    """Show a key, without its secret, and who has made it since a second person confirmed it."""
    show_one(ask(db, tenant, None, lambda d: d.key(key)), as_json)


@_app.command()
def rotate(
    key: _Key,
    overlap: Annotated[str, typer.Option("--overlap", help="How much longer the old one works.")] = "24h",
    expires: Expires = None,
    operator: _OperatorOption = False,
    tenant: Of = "default",
    to: To = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Print a new key in the place of one that works a while longer."""
    until, longer = expiry(expires), seconds(overlap)
    with open_for_secret(to) as file:
        made = ask(
            db,
            "" if operator else tenant,
            by,
            lambda d: d.rotate_key(key, overlap=longer, expires_at=until),
        )
        _tell(made, as_json, to, file)


@_app.command()
def revoke(
    key: _Key,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Of a key that seals (`tenure signing-keys list`): from when on nothing it signs is believed.",
            show_default=False,
        ),
    ] = None,
    operator: _OperatorOption = False,
    tenant: Of = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """End a key, and with it its sessions and streams: at servers within a second. With --from, a key that seals."""
    if since is not None:
        from tenure.cli.signing_keys import revoke_key

        revoke_key(key, since, db, by, as_json)
        return
    made = ask(db, "" if operator else tenant, by, lambda d: d.revoke_key(key))
    if as_json:
        print_json(made)
    else:
        out().print(shown(f"{key} is revoked"))
