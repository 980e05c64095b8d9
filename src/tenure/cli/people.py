"""`tenure people`: people who ask a server, and decide.

Law: nobody makes a person's key for them. A code is handed over; the person exchanges it, and is the only one to see the
key.
"""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from tenure.cli.console import out, print_json, shown
from tenure.cli.identity import (
    Name,
    NewName,
    NewRoles,
    Of,
    Roles,
    To,
    ask,
    enrol_here,
    open_for_secret,
    show_list,
    show_one,
    show_secret,
)
from tenure.cli.options import AsJson, Db
from tenure.cli.session import By, seconds

_app = typer.Typer(
    name="people",
    help="People who ask a server, and decide: made by an admin, enrolled by themselves.",
    epilog="""
    Somebody who approves:

    tenure people create ada --name "Ada L." --role approver --group release --tenant acme -- prints a code for Ada

    tenure people redeem --to ada.key -- what Ada does with it (or POST /enrolments): Ada's key, once

    The code is good once, for three days. docs/tenants.md explains the whole.
    """,
    no_args_is_help=True,
)

_Person = Annotated[str, typer.Argument(metavar="PERSON", help="The id, see `tenure people list`.")]
_Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group", help="Whose approvals this person can give; may be repeated.", show_default=False
    ),
]
_GitHub = Annotated[
    str | None,
    typer.Option(
        "--github",
        metavar="LOGIN",
        help="The login at GitHub: this person does not approve what their own pull requests start.",
        show_default=False,
    ),
]
_TOLD = "Hand this code to {}. It is good once and shown only now; `tenure people redeem` or POST /enrolments takes it:"
_KEPT = "The code for {} is in {}: hand it over. It is good once; `tenure people redeem` or POST /enrolments takes it"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


@_app.command()
def create(
    person: Annotated[
        str, typer.Argument(metavar="PERSON", help="An opaque id; histories keep it for good.")
    ],
    roles: Roles,
    name: Name = None,
    groups: _Groups = None,
    github: _GitHub = None,
    tenant: Of = "default",
    to: To = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make a person; prints the enrolment code to hand over."""
    with open_for_secret(to) as file:
        made = ask(
            db,
            tenant,
            by,
            lambda d: d.add_person(
                person=person, name=name or person, roles=roles, groups=groups or (), github=github
            ),
        )
        code = ask(db, tenant, by, lambda d: d.invite(person))
        made = msgspec.structs.replace(made, enrolment_until=code.expires_at)
        told = _TOLD.format(person) if to is None else _KEPT.format(person, to)
        show_secret({"person": made, "enrolment": code}, code.code, as_json, told, file)


@_app.command()
def enrol(
    person: _Person,
    expires: Annotated[str, typer.Option("--expires", help="How long the code is good: 72h, 30m.")] = "72h",
    tenant: Of = "default",
    to: To = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Print a new enrolment code: for somebody who lost the key. Using it ends the keys there were."""
    with open_for_secret(to) as file:
        code = ask(db, tenant, by, lambda d: d.invite(person, seconds(expires)))
        told = _TOLD.format(person) if to is None else _KEPT.format(person, to)
        show_secret(code, code.code, as_json, told, file)


@_app.command()
def redeem(to: To = None, db: Db = None, as_json: AsJson = False) -> None:
    """Exchange an enrolment code (asked for, or from stdin) for one's own key; prints it, once."""
    if sys.stdin.isatty():
        code = typer.prompt("Enrolment code", hide_input=True, err=True)
    else:
        code = sys.stdin.readline()
    with open_for_secret(to) as file:
        person, key, unconfirmed = enrol_here(db, code.strip())
        if to is None:
            told = (
                f"This is the key of {person}, shown now and never again. Keep it where only you can read it:"
            )
        else:
            told = f"The key of {person} is in {to}, and is never shown again."
        if unconfirmed:
            told += (
                f" (Until a second administrator confirms that it was you who enrolled, {', '.join(unconfirmed)} and you count as"
                " one: neither approves what the other has a hand in.)"
            )
        show_secret(key, key.key, as_json, told, file)


@_app.command("list")
def list_people(tenant: Of = "default", db: Db = None, as_json: AsJson = False) -> None:
    """List the people of a tenant, newest first."""
    found = ask(db, tenant, None, lambda d: d.people())
    show_list(
        found,
        "people",
        ("id", "name", "roles", "groups", "slack", "github", "unconfirmed", "closed_at"),
        as_json,
    )


@_app.command()
def show(person: _Person, tenant: Of = "default", db: Db = None, as_json: AsJson = False) -> None:
    """Show a person."""
    show_one(ask(db, tenant, None, lambda d: d.person(person)), as_json)


@_app.command()
def change(
    person: _Person,
    name: NewName = None,
    roles: NewRoles = None,
    groups: _Groups = None,
    github: _GitHub = None,
    tenant: Of = "default",
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Change a person; what is not said stays as it is."""
    before = ask(db, tenant, None, lambda d: d.person(person))
    made = ask(
        db,
        tenant,
        by,
        lambda d: d.set_person(
            person,
            name=name or before.name,
            roles=roles or before.roles,
            groups=groups if groups is not None else before.groups,
            github=github if github is not None else before.github,
        ),
    )
    show_one(made, as_json)


@_app.command()
def close(
    person: _Person, tenant: Of = "default", db: Db = None, by: By = None, as_json: AsJson = False
) -> None:
    """Close a person for good: no key of theirs works any more, at servers within a second."""
    made = ask(db, tenant, by, lambda d: d.close_person(person))
    if as_json:
        print_json(made)
    else:
        out().print(shown(f"{person} is closed"))
