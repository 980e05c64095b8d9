"""The options `--server` and `--key-file`.

Laws:
1. Every command with `--db` also has `--server` and `--key-file`; `add_server_options` adds them.
2. A key is never an argument, because other users of the machine can read arguments. It comes from a file or from TENURE_KEY.
3. --db and --server exclude each other. TENURE_SERVER counts if neither is given and TENURE_DB is not set.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from tenure.errors import TenureError
from tenure.private_files import hide

SERVER_VARIABLE = "TENURE_SERVER"
KEY_FILE_VARIABLE = "TENURE_KEY_FILE"
_given: dict[str, str | None] = {}
"""The options of this command line: `server` and `key_file`."""


def _keep(param: typer.CallbackParam, value: str | None) -> None:
    _given[str(param.name)] = value


def _options(
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help=f"Work on this server instead of a database.  \\[default: ${SERVER_VARIABLE}]",
            show_default=False,
            expose_value=False,
            callback=_keep,
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help=f"The file with the key for the server.  \\[default: ${KEY_FILE_VARIABLE}, else $TENURE_KEY itself]",
            show_default=False,
            expose_value=False,
            callback=_keep,
        ),
    ] = None,
) -> None:
    """A command that has just these options."""
    del server, key_file


@cache
def _parameters() -> tuple[Any, ...]:
    app = typer.Typer(add_completion=False)
    app.command()(_options)
    command: Any = typer.main.get_command(app)
    return tuple(parameter for parameter in command.params if parameter.name in ("server", "key_file"))


def add_server_options(command: Any) -> Any:
    """Add the options to a command and to all commands below it that have `--db`."""
    for each in getattr(command, "commands", {}).values():
        add_server_options(each)
    at = next((i for i, parameter in enumerate(command.params) if parameter.name == "db"), None)
    if at is not None:
        command.params[at + 1 : at + 1] = _parameters()
    return command


def server_address(db: str | None) -> str | None:
    """The URL of the server that the command works on, or None if it works on a database."""
    server = _given.get("server")
    if server is not None and db is not None:
        raise TenureError("INVALID_INPUT", "--db and --server exclude each other")
    if server is None and db is None and not os.environ.get("TENURE_DB"):
        server = os.environ.get(SERVER_VARIABLE)
    return server or None


def server_key() -> str | None:
    """The key from a file, or None: then the client uses TENURE_KEY."""
    file = _given.get("key_file") or os.environ.get(KEY_FILE_VARIABLE)
    if not file:  # an empty variable is one that is not set
        return None
    hide(file)
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise TenureError("INVALID_INPUT", f"the key file cannot be read: {fault}") from fault


def refuse_server(why: str) -> None:
    """Refuse `--server` for a command that needs the database itself."""
    if _given.get("server") is not None:
        raise TenureError("INVALID_INPUT", why)
