"""`--server`: which server a command asks, and with which key.

Laws:
1. Every command that has `--db` has `--server` and `--key-file` too: they are added here, in one place (`add_server_options`).
2. A key is never an argument: others on the machine can read those. It comes from a file, or from TENURE_KEY.
3. --db and --server exclude each other; TENURE_SERVER counts where neither is given and TENURE_DB is not set.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.errors import TenureError
from tenure.private_files import hide

if TYPE_CHECKING:
    from tenure.client import Client

SERVER_VARIABLE = "TENURE_SERVER"
KEY_FILE_VARIABLE = "TENURE_KEY_FILE"
_given: dict[str, str] = {}
"""What the command line says: `server`, `key_file`."""


def _keep_server(value: str | None) -> None:
    _keep("server", value)


def _keep_key_file(value: str | None) -> None:
    _keep("key_file", value)


def _keep(name: str, value: str | None) -> None:
    _given.pop(name, None)
    if value is not None:
        _given[name] = value


def _options(
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help=f"Ask this server instead of a database.  \\[default: ${SERVER_VARIABLE}]",
            show_default=False,
            expose_value=False,
            callback=_keep_server,
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help=f"Where the key for the server is.  \\[default: ${KEY_FILE_VARIABLE}, else $TENURE_KEY itself]",
            show_default=False,
            expose_value=False,
            callback=_keep_key_file,
        ),
    ] = None,
) -> None:
    """Whose options every command gets."""
    del server, key_file


@cache
def _made() -> tuple[Any, ...]:
    app = typer.Typer(add_completion=False)
    app.command()(_options)
    command: Any = typer.main.get_command(app)
    return tuple(parameter for parameter in command.params if parameter.name in ("server", "key_file"))


def add_server_options(command: Any) -> Any:
    """Give a command, and all commands below it, the options; see law 1."""
    below: dict[str, Any] = getattr(command, "commands", {})
    for each in below.values():
        add_server_options(each)
    at = next((i for i, parameter in enumerate(command.params) if parameter.name == "db"), None)
    if at is not None:
        command.params[at + 1 : at + 1] = _made()
    return command


def server_address(db: str | None) -> str | None:
    """The server to ask; None: a database."""
    server = _given.get("server")
    if server is not None and db is not None:
        raise TenureError("INVALID_INPUT", "--db and --server exclude each other")
    if server is None and db is None and not os.environ.get("TENURE_DB"):
        server = os.environ.get(SERVER_VARIABLE)
    return server or None


def server_key() -> str | None:
    """The key to ask it with; see law 2."""
    file = _given.get("key_file") or os.environ.get(KEY_FILE_VARIABLE)
    if not file:  # an empty variable is one that is not set
        return None
    hide(file)
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise TenureError("INVALID_INPUT", f"the key file cannot be read: {fault}") from fault


def chosen_server(db: str | None) -> Client | None:
    """A client of the server to ask, if one is."""
    server = server_address(db)
    if server is None:
        return None
    from tenure.client import Client

    return Client(server, server_key())


def refuse_server(why: str = "this command works on a database: use --db instead of --server") -> None:
    """For what needs the database itself."""
    if "server" in _given:
        raise TenureError("INVALID_INPUT", why)
