"""What `tenure tenants`, `clients`, `people` and `keys` share.

Laws:
1. On a database these commands may do everything: an account that can write the database is the installation's operator. The audit
   chain names it `database-owner:uid:N`. On a server they may do what their key may.
2. A secret is printed once, alone on stdout; what to do with it is printed on stderr. With `--to` it goes into a new file that only its
   owner can read, and is not printed. The file is created before the secret, so that no secret is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import typer

from tenure.cli.common.console import print_json, show_result, warn
from tenure.errors import TenureError
from tenure.private_files import create_file

Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="A name for people to read; histories do not contain it.  \\[default: the id]",
        show_default=False,
    ),
]
NewName = Annotated[str | None, typer.Option("--name", help="The new name.", show_default=False)]
Roles = Annotated[
    list[str], typer.Option("--role", help="viewer, operator, approver, admin or runner; may be repeated.")
]
NewRoles = Annotated[
    list[str] | None,
    typer.Option("--role", help="All roles that it shall have; may be repeated.", show_default=False),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE",
        help="Write the secret to this new file (mode 0600) instead of printing it.",
        show_default=False,
    ),
]


@contextmanager
def open_for_secret(to: Path | None) -> Iterator[IO[bytes] | None]:
    """The new file that `--to` names, or None. If no secret is written to it, it is removed."""
    if to is None:
        yield None
        return
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(create_file(to))
        except FileExistsError:
            raise TenureError(
                "ALREADY_EXISTS", f"{to} exists; a secret overwrites no file, so name a new one"
            ) from None
        except OSError as fault:
            raise TenureError("INVALID_INPUT", f"{to} cannot be written: {fault.strerror}") from None
        try:
            yield opened
        except BaseException:
            if not opened.tell():  # a secret that was written stays
                to.unlink(missing_ok=True)
            raise


def show_secret(made: Any, secret: str, as_json: bool, message: str, file: IO[bytes] | None = None) -> None:
    """Print a secret, or write it to a file; see law 2."""
    if file is not None:
        file.write(f"{secret}\n".encode())
        file.flush()
    if as_json:
        print_json(made if file is None else _without(msgspec.to_builtins(made), secret))
        return
    warn(message, "")
    if file is None:
        print(secret)


def _without(value: Any, secret: str) -> Any:
    if not isinstance(value, dict):
        return value
    return {word: _without(one, secret) for word, one in value.items() if one != secret}


def show_closed(made: Any, as_json: bool) -> None:
    show_result(made, as_json, f"{made.id} is {'open' if made.closed_at is None else 'closed'}")
