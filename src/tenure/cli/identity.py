"""What `tenure tenants`, `clients`, `people` and `keys` share.

Laws:
1. These commands work on the database itself: whoever can write it is the installation's operator.
2. A secret is printed once, alone on stdout, so that it can be piped into a file; what to do with it stands on stderr.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tenure.cli.console import err, out, print_json, shown
from tenure.cli.runs_show import keep_ids, table
from tenure.cli.session import moment_of, on_engine, wait_for, who

if TYPE_CHECKING:
    from datetime import datetime

    from tenure.kernel.service import AdminEvent
    from tenure.server.directory import Directory
    from tenure.server.identity_views import NewKeyView
    from tenure.server.installation import Installation
    from tenure.store.identity import Identity

T = TypeVar("T")

LISTED_MAX = 1_000

Name = Annotated[str, typer.Option("--name", help="For people to read. It is in no history.")]
NewName = Annotated[str | None, typer.Option("--name", help="Another name.", show_default=False)]
Roles = Annotated[
    list[str], typer.Option("--role", help="viewer, operator, approver, admin or runner; may be repeated.")
]
NewRoles = Annotated[
    list[str] | None,
    typer.Option("--role", help="All the roles it is to have; may be repeated.", show_default=False),
]
Of = Annotated[str, typer.Option("--tenant", help="Whose, see `tenure tenants list`.")]
Expires = Annotated[
    str | None,
    typer.Option(
        "--expires", metavar="+90d|TIME", help="When it ends.  \\[default: never]", show_default=False
    ),
]


def ask(
    db: str | None,
    tenant: str,
    by: str | None,
    call: Callable[[Directory], Awaitable[T]],
    *,
    make: bool = False,
) -> T:
    """One call about a tenant's clients, people or keys."""

    async def run(identity: Identity) -> T:
        from tenure.server.directory import Directory

        return await call(Directory(identity, tenant, who(by)))

    return _on_identity(db, run, make=make)


def ask_installation(
    db: str | None, by: str | None, call: Callable[[Installation], Awaitable[T]], *, make: bool = False
) -> T:
    """One call about tenants."""

    async def run(identity: Identity) -> T:
        from tenure.server.installation import Installation

        return await call(Installation(identity, who(by)))

    return _on_identity(db, run, make=make)


def enrol_here(db: str | None, code: str) -> tuple[str, NewKeyView]:
    """Exchange an enrolment code: whose it was, and the key."""

    async def run(identity: Identity) -> tuple[str, NewKeyView]:
        from tenure.server.installation import enrol

        person, key = await enrol(identity, code)
        return person.id, key

    return _on_identity(db, run)


def chain(db: str | None, tenant: str) -> tuple[list[AdminEvent], list[str]]:
    """The newest lines of a tenant's chain, and what is wrong with it as a whole."""

    async def run(identity: Identity) -> tuple[list[AdminEvent], list[str]]:
        from tenure.limits import INTEGER_MAX

        lines = await identity.read("admin_events_before", tenant, INTEGER_MAX, LISTED_MAX)
        return lines, await identity.broken_chain(tenant)

    return _on_identity(db, run)


def read(db: str | None, query: str, *values: Any) -> list[Any]:
    """The rows of a named query."""

    async def run(identity: Identity) -> list[Any]:
        return await identity.read(query, *values)

    return _on_identity(db, run)


def newest(db: str | None, query: str, *first: str, last: tuple[str, ...] = ()) -> list[Any]:
    """The rows of one of the `_before` queries, newest first."""
    from tenure.limits import MOMENT_US_MAX

    return read(db, query, *first, MOMENT_US_MAX, "", LISTED_MAX, *last)


def _on_identity(db: str | None, run: Callable[[Identity], Awaitable[T]], *, make: bool = False) -> T:
    async def call(engine: Any) -> T:
        from tenure.store.identity import Identity

        return await run(Identity(engine.store))

    return wait_for(on_engine(db, "default", call, make=make))


def expiry(text: str | None) -> datetime | None:
    """When a key ends."""
    return None if text is None else moment_of(text)


def show_secret(made: Any, secret: str, as_json: bool, told: str) -> None:
    """See law 2."""
    if as_json:
        print_json(made)
        return
    err().print(shown(told), soft_wrap=True)
    print(secret)


def show_one(made: Any, as_json: bool) -> None:
    """Something, a line per field."""
    if as_json:
        print_json(made)
        return
    for name in made.__struct_fields__:
        out().print(shown(f"{name.replace('_', ' ') + ':':<17}{_text(getattr(made, name))}"), soft_wrap=True)


def show_list(found: Sequence[Any], what: str, columns: Sequence[str], as_json: bool) -> None:
    """Several of them."""
    if as_json:
        print_json(found)
        return
    if not found:
        out().print(f"no {what}")
        return
    made = table(*(column.replace("_", " ") for column in columns))
    for one in found:
        made.add_row(*(shown(_text(getattr(one, column))) for column in columns))
    keep_ids(made, (one.id for one in found))
    out().print(made)


def _text(value: Any) -> str:
    from datetime import datetime

    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)
