"""`tenure keys`: credentials of clients and of the installation's operator.

Law: a person creates and rotates their own keys (`tenure people redeem`, POST /me/keys/KEY/rotate). These commands only list and revoke
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.arguments import parse_seconds, parse_time
from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import show_result
from tenure.cli.common.options import AsJson, By, Db, Tenant
from tenure.cli.common.tables import show_list, show_struct
from tenure.cli.identity.shared import NewName, NewRoles, SecretFile, open_for_secret, show_secret

if TYPE_CHECKING:
    from tenure.shapes.identity import IssuedApiKey

app = typer.Typer(
    name="keys",
    help="Create, rotate (with an overlap) and revoke keys. A key is printed once; only its SHA-256 is kept.",
    epilog="""
    Create a key for a program, and rotate it:

    tenure keys create --client ci --tenant acme --expires +90d --to ci.key

    tenure keys rotate KEY --tenant acme --overlap 24h --to next.key -- the old key works for one more day

    tenure keys revoke KEY --tenant acme -- servers refuse it within a second

    tenure keys create --operator --to operator.key -- for the operator of the installation: /admin/...

    A key is sent as `Authorization: Bearer tn_...`. docs/tenants.md explains clients, people and keys.
    """,
    no_args_is_help=True,
)

_Key = Annotated[
    str, typer.Argument(metavar="KEY", help="The key's id, see `tenure keys list`: the part after `tn_`.")
]
_ClientOption = Annotated[
    str | None, typer.Option("--client", help="The client, see `tenure clients list`.", show_default=False)
]
_OperatorOption = Annotated[bool, typer.Option("--operator", help="A key of the installation's operator.")]
_Expires = Annotated[
    str | None,
    typer.Option(
        "--expires", metavar="+90d|TIME", help="When the key ends.  \\[default: never]", show_default=False
    ),
]


def _show_key(made: IssuedApiKey, as_json: bool, to: Path | None, file: IO[bytes] | None) -> None:
    owner = "the operator" if made.owner_kind == "operator" else f"{made.owner_kind} {made.owner_id}"
    message = f"Key {made.id} of {owner} is in {to}, and is never shown again."
    if to is None:
        message = f"This is key {made.id} of {owner}, shown now and never again. Keep it where only its owner can read it:"
    show_secret(made, made.key, as_json, message, file)


@app.command()
def create(
    client: _ClientOption = None,
    operator: _OperatorOption = False,
    name: NewName = None,
    roles: NewRoles = None,
    expires: _Expires = None,
    tenant: Tenant = "default",
    to: SecretFile = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it once: for a client (--role narrows it) or for the installation's operator."""
    if operator == (client is not None):
        raise typer.BadParameter(
            "give --client or --operator; people get their keys by `tenure people enrol`"
        )
    until = None if expires is None else parse_time(expires)
    if client is None and roles:
        raise typer.BadParameter("the operator of the installation has no roles", param_hint="--role")
    with open_for_secret(to) as file:
        made = call_backend(
            db,
            "" if client is None else tenant,
            lambda backend: (
                backend.keys.create_for_operator(name=name or "", expires_at=until)
                if client is None
                else backend.keys.create(client, name=name or "", roles=roles or None, expires_at=until)
            ),
            changes=True,
            make=client is None,
            by=by,
        )
        _show_key(made, as_json, to, file)


@app.command("list")
def list_keys(
    client: _ClientOption = None,
    person: Annotated[
        str | None, typer.Option("--person", help="The person, see `tenure people list`.", show_default=False)
    ] = None,
    operator: _OperatorOption = False,
    tenant: Tenant = "default",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """List the keys of a tenant, or of one owner, newest first. Secrets are never shown."""
    found = call_backend(
        db, "" if operator else tenant, lambda backend: backend.keys.list(client=client, person=person)
    )
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


@app.command()
def show(key: _Key, tenant: Tenant = "default", db: Db = None, as_json: AsJson = False) -> None:
    """Show a key without its secret, and who created it if nobody has confirmed it yet."""
    show_struct(call_backend(db, tenant, lambda backend: backend.keys.get(key)), as_json)


@app.command()
def rotate(
    key: _Key,
    overlap: Annotated[str, typer.Option("--overlap", help="How much longer the old key works.")] = "24h",
    expires: _Expires = None,
    operator: _OperatorOption = False,
    tenant: Tenant = "default",
    to: SecretFile = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Replace a key and print the new one. The old key works a while longer."""
    until, longer = None if expires is None else parse_time(expires), parse_seconds(overlap)
    with open_for_secret(to) as file:
        made = call_backend(
            db,
            "" if operator else tenant,
            lambda backend: backend.keys.rotate(key, overlap=longer, expires_at=until),
            changes=True,
            by=by,
        )
        _show_key(made, as_json, to, file)


@app.command()
def revoke(
    key: _Key,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="For a signing key (`tenure signing-keys list`): signatures from this time on do not count.",
            show_default=False,
        ),
    ] = None,
    operator: _OperatorOption = False,
    tenant: Tenant = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key with its sessions and streams. Servers refuse it within a second. With --from, revoke a signing key."""
    if since is not None:
        from tenure.cli.evidence.signing_keys import revoke_key

        revoke_key(key, since, db, by, as_json)
        return
    whose = "" if operator else tenant
    made = call_backend(db, whose, lambda backend: backend.keys.revoke(key), changes=True, by=by)
    show_result(made, as_json, f"{key} is revoked")
