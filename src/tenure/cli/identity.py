"""What `tenure tenants`, `clients`, `people` and `keys` share.

Laws:
1. Beside a database these commands may do everything: whoever can write it is the installation's operator. The chain names them
   `database-owner:uid:N`. Over a server they may do what their key may.
2. A secret is printed once, alone on stdout; what to do with it stands on stderr. With `--to` it goes into a new file that only its
   owner can read, and is not printed. That file is made before the secret is, so that no secret is made that nobody gets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tenure.cli.console import err, out, print_json, show_fields, shown
from tenure.cli.runs_show import keep_ids, table
from tenure.cli.servers import server_address, server_key
from tenure.cli.session import moment_of, on_engine, wait_for, who
from tenure.errors import TenureError
from tenure.private_files import create_file

if TYPE_CHECKING:
    from datetime import datetime

    from tenure.cli.offices import InstallationHere, InstallationThere, OfficeHere, OfficeThere
    from tenure.client.transport import Transport
    from tenure.embedded import Engine
    from tenure.server.identity.views import NewKeyView

T = TypeVar("T")

Name = Annotated[
    str | None,
    typer.Option(
        "--name", help="For people to read; it is in no history.  \\[default: the id]", show_default=False
    ),
]
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

To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE",
        help="A new file, mode 0600, for the secret, which is not printed then.",
        show_default=False,
    ),
]


def ask(
    db: str | None,
    tenant: str,
    by: str | None,
    call: Callable[[OfficeHere | OfficeThere], Awaitable[T]],
    *,
    make: bool = False,
) -> T:
    """One call about a tenant's clients, people or keys."""

    def here(engine: Engine) -> Awaitable[T]:
        from tenure.cli.offices import OfficeHere
        from tenure.store.identity import Identity

        people = who(None)  # whatever name is given: this account has the database
        office = OfficeHere(
            Identity(engine.store), tenant, database_owner(by), people=people, breaks_glass=True
        )
        return call(office)

    def there(to: Transport) -> Awaitable[T]:
        from tenure.cli.offices import OfficeThere

        return call(OfficeThere(to))

    return asked(db, here, there, make=make)


def database_owner(by: str | None) -> str:
    """How the chain names whoever has the database."""
    from tenure.store.confirmations import DATABASE_OWNER

    return f"{DATABASE_OWNER}:{who(by)}"


def ask_installation(
    db: str | None,
    by: str | None,
    call: Callable[[InstallationHere | InstallationThere], Awaitable[T]],
    *,
    make: bool = False,
) -> T:
    """One call about tenants."""

    def here(engine: Engine) -> Awaitable[T]:
        from tenure.cli.offices import InstallationHere

        return call(InstallationHere(engine, database_owner(by)))

    def there(to: Transport) -> Awaitable[T]:
        from tenure.cli.offices import InstallationThere

        return call(InstallationThere(to))

    return asked(db, here, there, make=make)


def enrol_here(db: str | None, code: str) -> tuple[str, NewKeyView, list[str]]:
    """Exchange an enrolment code: whose it was, the key, and who counts as one with that person yet."""

    async def here(engine: Engine) -> tuple[str, NewKeyView, list[str]]:
        from tenure.server.identity.installation import enrol
        from tenure.store.identity import Identity

        person, key = await enrol(Identity(engine.store), code)
        return person.id, key, person.unconfirmed.split()

    async def there(to: Transport) -> tuple[str, NewKeyView, list[str]]:
        import msgspec

        from tenure.server.identity.views import NewKeyView

        made = await to.send("POST", "/enrolments", dict[str, Any], {"code": code})
        return str(made["person"]), msgspec.convert(made["key"], NewKeyView), made["unconfirmed"]

    return asked(db, here, there)


def asked(
    db: str | None,
    here: Callable[[Engine], Awaitable[T]],
    there: Callable[[Transport], Awaitable[T]],
    *,
    make: bool = False,
) -> T:
    """Ask a server where one is chosen, else the database."""
    if (server := server_address(db)) is not None:
        return wait_for(_over(server, there))
    return wait_for(on_engine(db, "default", here, make=make))


async def _over(server: str, there: Callable[[Transport], Awaitable[T]]) -> T:
    from tenure.client.transport import Transport

    to = Transport(server, server_key())
    try:
        return await there(to)
    finally:
        await to.close()


def expiry(text: str | None) -> datetime | None:
    """When a key ends."""
    return None if text is None else moment_of(text)


@contextmanager
def open_for_secret(to: Path | None) -> Iterator[IO[bytes] | None]:
    """The new file of `--to`, where it is given. It is removed where no secret comes."""
    if to is None:
        yield None
        return
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(create_file(to))
        except FileExistsError:
            raise TenureError(
                "ALREADY_EXISTS", f"{to} is there already; a secret overwrites no file"
            ) from None
        except OSError as fault:
            raise TenureError("INVALID_INPUT", f"{to} cannot be written: {fault.strerror}") from None
        try:
            yield opened
        except BaseException:
            if not opened.tell():  # a secret that has come stays
                to.unlink(missing_ok=True)
            raise


def show_secret(made: Any, secret: str, as_json: bool, told: str, file: IO[bytes] | None = None) -> None:
    """See law 2."""
    if file is not None:
        file.write(f"{secret}\n".encode())
        file.flush()
        if as_json:
            import msgspec

            print_json(_without(msgspec.to_builtins(made), secret))
        else:
            err().print(shown(told), soft_wrap=True)
        return
    if as_json:
        print_json(made)
        return
    err().print(shown(told), soft_wrap=True)
    print(secret)


def _without(value: Any, secret: str) -> Any:
    if not isinstance(value, dict):
        return value
    return {word: _without(one, secret) for word, one in value.items() if one != secret}


def show_one(made: Any, as_json: bool) -> None:
    """Something, a line per field."""
    if as_json:
        print_json(made)
        return
    fields = {name: getattr(made, name) for name in made.__struct_fields__}
    show_fields(
        {name: value if isinstance(value, list) else _text(value) for name, value in fields.items()}, 17
    )


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
