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

from tenure.cli.common.console import err, out, print_json, safe_text, show_fields
from tenure.cli.common.server_option import server_address, server_key
from tenure.cli.common.session import call_engine, caller_id, run_async
from tenure.cli.runs.run_tables import keep_ids_whole, make_table
from tenure.errors import TenureError
from tenure.private_files import create_file

if TYPE_CHECKING:
    from tenure.client.transport import Transport
    from tenure.engine import Engine

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
OfTenant = Annotated[str, typer.Option("--tenant", help="Whose, see `tenure tenants list`.")]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE",
        help="A new file, mode 0600, for the secret, which is not printed then.",
        show_default=False,
    ),
]


def database_owner(by: str | None) -> str:
    """How the chain names whoever has the database."""
    from tenure.store.identity import DATABASE_OWNER

    return f"{DATABASE_OWNER}:{caller_id(by)}"


def call_local_or_server(
    db: str | None,
    here: Callable[[Engine], Awaitable[T]],
    there: Callable[[Transport], Awaitable[T]],
    *,
    make: bool = False,
) -> T:
    """Ask a server where one is chosen, else the database."""
    if (server := server_address(db)) is not None:
        return run_async(_over(server, there))
    return run_async(call_engine(db, "default", here, make=make))


async def _over(server: str, there: Callable[[Transport], Awaitable[T]]) -> T:
    from tenure.client.transport import Transport

    to = Transport(server, server_key())
    try:
        return await there(to)
    finally:
        await to.close()


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
            err().print(safe_text(told), soft_wrap=True)
        return
    if as_json:
        print_json(made)
        return
    err().print(safe_text(told), soft_wrap=True)
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


def show_closed(made: Any, as_json: bool) -> None:
    """Whether something is open or closed."""
    if as_json:
        print_json(made)
    else:
        out().print(safe_text(f"{made.id} is {'open' if made.closed_at is None else 'closed'}"))


def show_list(found: Sequence[Any], what: str, columns: Sequence[str], as_json: bool) -> None:
    """Several of them."""
    if as_json:
        print_json(found)
        return
    if not found:
        out().print(f"no {what}")
        return
    made = make_table(*(column.replace("_", " ") for column in columns))
    for one in found:
        made.add_row(*(safe_text(_text(getattr(one, column))) for column in columns))
    keep_ids_whole(made, (getattr(one, columns[0]) for one in found))
    out().print(made)


def _text(value: Any) -> str:
    from datetime import datetime

    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)
