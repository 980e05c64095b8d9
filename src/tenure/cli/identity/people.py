"""`tenure people`: people who make requests to a server, and decide.

Law: nobody creates a key for another person. The person exchanges an enrolment code for a key, and nobody else sees the key.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tenure.cli.common.arguments import parse_seconds
from tenure.cli.common.backend import call_backend
from tenure.cli.common.options import AsJson, By, Db, Tenant
from tenure.cli.common.tables import show_list, show_struct
from tenure.cli.identity.shared import (
    Name,
    NewName,
    NewRoles,
    Roles,
    SecretFile,
    open_for_secret,
    show_closed,
    show_secret,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tenure.cli.common.backend import Backend
    from tenure.shapes.identity import Enrolment, Person

app = typer.Typer(
    name="people",
    help="People who make requests to a server, and decide. An admin creates them; they enrol themselves.",
    epilog="""
    Add a person who approves:

    tenure people create ada --name "Ada L." --role approver --group release --tenant acme -- prints a code for Ada

    tenure people redeem --to ada.key -- Ada exchanges the code for her key (or sends it to POST /enrolments)

    The code works once, within three days. docs/tenants.md explains clients, people and keys.
    """,
    no_args_is_help=True,
)

_Person = Annotated[str, typer.Argument(metavar="PERSON", help="The person's id, see `tenure people list`.")]
_Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group", help="A group whose approvals this person can give; repeatable.", show_default=False
    ),
]
_GitHub = Annotated[
    str | None,
    typer.Option(
        "--github",
        metavar="LOGIN",
        help="The GitHub login: this person does not approve what their own pull requests start.",
        show_default=False,
    ),
]


def _code_message(person: str, to: Path | None) -> str:
    how = "The code works once: `tenure people redeem` or POST /enrolments takes it"
    if to is None:
        return f"Give this code to {person}. It is shown only now. {how}:"
    return f"The code for {person} is in {to}. Give it to {person}. {how}."


@app.command()
def create(
    person: Annotated[
        str, typer.Argument(metavar="PERSON", help="The new id. Histories keep it, so use an opaque one.")
    ],
    roles: Roles,
    name: Name = None,
    groups: _Groups = None,
    github: _GitHub = None,
    tenant: Tenant = "default",
    to: SecretFile = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Create a person and print an enrolment code for them."""

    async def call(backend: Backend) -> tuple[Person, Enrolment]:
        made = await backend.people.create(
            person=person, name=name or person, roles=roles, groups=groups or (), github=github
        )
        code = await backend.people.invite(person)
        return msgspec.structs.replace(made, enrolment_until=code.expires_at), code

    with open_for_secret(to) as file:
        made, code = call_backend(db, tenant, call, changes=True, by=by)
        shown = {"person": made, "enrolment": code}
        show_secret(shown, code.code, as_json, _code_message(person, to), file)


@app.command()
def enrol(
    person: _Person,
    expires: Annotated[str, typer.Option("--expires", help="How long the code works: 72h, 30m.")] = "72h",
    tenant: Tenant = "default",
    to: SecretFile = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Print a new enrolment code, for a person who lost their key. Redeeming it revokes the person's earlier keys."""
    seconds = parse_seconds(expires)
    with open_for_secret(to) as file:
        code = call_backend(
            db, tenant, lambda backend: backend.people.invite(person, seconds), changes=True, by=by
        )
        show_secret(code, code.code, as_json, _code_message(person, to), file)


@app.command()
def redeem(to: SecretFile = None, db: Db = None, as_json: AsJson = False) -> None:
    """Exchange an enrolment code (from a prompt or stdin) for your own key, and print the key once."""
    if sys.stdin.isatty():
        code = typer.prompt("Enrolment code", hide_input=True, err=True)
    else:
        code = sys.stdin.readline()
    with open_for_secret(to) as file:
        made = call_backend(db, "default", lambda backend: backend.people.enrol(code.strip()), changes=True)
        message = f"The key of {made.person} is in {to}, and is never shown again."
        if to is None:
            message = f"This is the key of {made.person}, shown now and never again. Keep it where only you can read it:"
        if made.unconfirmed:
            message += (
                f" (Until a second administrator confirms your enrolment, you and {', '.join(made.unconfirmed)} count as one"
                " person: neither approves what the other is involved in.)"
            )
        show_secret(made.key, made.key.key, as_json, message, file)


@app.command("list")
def list_people(tenant: Tenant = "default", db: Db = None, as_json: AsJson = False) -> None:
    """List the people of a tenant, newest first."""
    found = call_backend(db, tenant, lambda backend: backend.people.list())
    columns = ("id", "name", "roles", "groups", "slack", "github", "unconfirmed", "closed_at")
    show_list(found, "people", columns, as_json)


@app.command()
def show(person: _Person, tenant: Tenant = "default", db: Db = None, as_json: AsJson = False) -> None:
    """Show a person."""
    show_struct(call_backend(db, tenant, lambda backend: backend.people.get(person)), as_json)


@app.command()
def change(
    person: _Person,
    name: NewName = None,
    roles: NewRoles = None,
    groups: _Groups = None,
    github: _GitHub = None,
    tenant: Tenant = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Change a person. Options that are not given keep their values."""

    async def call(backend: Backend) -> Person:
        before = await backend.people.get(person)
        return await backend.people.update(
            person,
            name=name or before.name,
            roles=roles or before.roles,
            groups=before.groups if groups is None else groups,
            github=before.github if github is None else github,
        )

    show_struct(call_backend(db, tenant, call, changes=True, by=by), as_json)


@app.command()
def close(
    person: _Person, tenant: Tenant = "default", db: Db = None, by: By = None, as_json: AsJson = False
) -> None:
    """Close a person permanently. Servers refuse their keys within a second."""
    made = call_backend(db, tenant, lambda backend: backend.people.close(person), changes=True, by=by)
    show_closed(made, as_json)
