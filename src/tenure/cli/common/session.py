"""What the commands about runs share: their options, their engine, and how they read what people type.

Laws:
1. A command that changes something ends by doing what is due and delivering what is owed: nobody else may come.
2. With --server (or TENURE_SERVER) a command asks that server instead of a database; it works the same. The key is
   read from TENURE_KEY or a file, never from the command line.
3. Only `runs create` makes a database, and only a file; everything else says STORE_NOT_MIGRATED.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from tenure.canonical import decode_json
from tenure.cli.common.console import err, safe_text
from tenure.cli.common.options import not_empty
from tenure.cli.common.server_option import chosen_server, refuse_server
from tenure.clock import HostClock
from tenure.config import Database, choose_database
from tenure.errors import TenureError
from tenure.limits import NAME_CHARS_MAX

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.engine import Engine

T = TypeVar("T")

IDS_OFFERED = 30
CLI_REQUESTER = "cli"
"""Who asks for what `tenure run` starts in a file of one's own."""


def complete_run_ids(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids for the shell to offer: the newest runs of the database the command line names."""
    given = context.params

    async def call() -> list[tuple[str, str]]:
        async with open_backend(given.get("db"), given.get("tenant") or "default") as backend:
            lines = await backend.runs.list(limit=IDS_OFFERED)
            return [(line.id, f"{line.workflow} {line.status}") for line in lines]

    try:
        return [each for each in run_async(call()) if each[0].startswith(incomplete)]
    except TenureError:
        return []


RunArg = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run's id, see `tenure runs list`.", autocompletion=complete_run_ids
    ),
]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose: the tenant's id.")]


def _opaque(given: str | None) -> str | None:
    text = not_empty(given)
    if text is not None and (len(text) > NAME_CHARS_MAX or not text.isprintable() or " " in text):
        raise typer.BadParameter(f"an id has 1 to {NAME_CHARS_MAX} characters and no blanks")
    return text


def _by(what: str, default: str = "uid:N of this account") -> Any:
    help_text = f"{what}, as an opaque id without blanks.  \\[default: {default}]"
    return typer.Option("--by", metavar="ID", help=help_text, show_default=False, callback=_opaque)


By = Annotated[str | None, _by("Who asks")]
StartedBy = Annotated[str | None, _by("Who asks", "`cli` in a file, uid:N in PostgreSQL")]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CODE = re.compile(r"[A-Z0-9_]{1,64}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def caller_id(given: str | None) -> str:
    """The opaque id of whoever asks."""
    return given or f"uid:{os.getuid()}"


async def requester_for(backend: Backend, db: str | None, run: str, given: str | None) -> str:
    """Who goes on with a run, and comes to stand behind it. Of what `tenure run` has asked for as the program, in a file,
    it is still the program: whoever might answer it before may do so after."""
    if (
        given is None
        and choose_database(db).kind == "sqlite"
        and (await backend.get(run)).requester == CLI_REQUESTER
    ):
        return CLI_REQUESTER
    return caller_id(given)


@asynccontextmanager
async def open_backend(db: str | None, tenant: str) -> AsyncIterator[Backend]:
    """Where a command looks: at a server, or at a database, even one that cannot be written."""
    if (server := chosen_server(db)) is not None:
        async with server as backend:
            yield backend
    else:
        async with _engine(db, tenant, only_reads=True) as engine:
            yield engine


@asynccontextmanager
async def _engine(
    db: str | None, tenant: str, *, by: str | None = None, make: bool = False, only_reads: bool = False
) -> AsyncIterator[Engine]:
    """An engine for one command."""
    from tenure.engine import Engine

    database = choose_database(db)
    migrate = make and database.kind == "sqlite"
    address = database.address if database.kind == "postgres" else f"sqlite:{database.address}"
    async with Engine(
        address,
        tenant=tenant,
        actor=caller_id(by),
        migrate=migrate,
        sweep=False,
        only_reads=only_reads,
    ) as engine:
        yield engine


@asynccontextmanager
async def open_backend_for_change(
    db: str | None, tenant: str, *, by: str | None = None, make: bool = False
) -> AsyncIterator[Backend]:
    """Where a command changes something; see law 1."""
    if (server := chosen_server(db)) is not None:
        async with server as backend:
            yield backend
    else:
        async with _engine(db, tenant, by=by, make=make) as engine:
            yield engine
            await engine.settle()


async def call_engine(
    db: str | None, tenant: str, call: Callable[[Engine], Awaitable[T]], *, make: bool = False
) -> T:
    """One call of an engine, for what no server can do."""
    refuse_server()
    async with _engine(db, tenant, make=make) as engine:
        found = await call(engine)
        await engine.settle()
        return found


def wait_for_database(database: Database, patience: str) -> None:
    """Wait until PostgreSQL can be reached, and say so; a file is not waited for."""
    from tenure.store.factory import open_store, throttle_messages

    length = parse_seconds(patience)
    if database.kind == "postgres" and length > 0:
        tell = throttle_messages(
            lambda why: err().print(
                safe_text(f"waiting for the database ({patience} at most): {why}", "yellow")
            )
        )
        asyncio.run(open_store(database).wait_until_reachable(length, tell))


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Carry out a command."""
    return asyncio.run(work)


def call_backend(
    db: str | None,
    tenant: str,
    call: Callable[[Backend], Awaitable[T]],
    *,
    changes: bool = False,
    make: bool = False,
    by: str | None = None,
) -> T:
    """One call of an engine or a server, as a command of its own."""

    async def run() -> T:
        opened = (
            open_backend_for_change(db, tenant, by=by, make=make) if changes else open_backend(db, tenant)
        )
        async with opened as backend:
            return await call(backend)

    return run_async(run())


# ---------------------------------------------------------------------------------------- what people type


def parse_seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `2h`, `1d` in seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"'{text}' is not a duration like 90s, 5m, 2h or 1d")
    length = float(found[1]) * _UNITS[found[2]]
    if not math.isfinite(length):
        raise typer.BadParameter(f"'{text}' is too long")
    return length


def parse_time(text: str) -> datetime:
    """`+5m`, or a time as in 2026-02-14T08:00:00Z; without a zone it is UTC."""
    if text.startswith("+"):
        now = datetime.fromtimestamp(HostClock().now_us() / 1e6, UTC)
        try:
            return now + timedelta(seconds=parse_seconds(text[1:]))
        except OverflowError as wrong:
            raise typer.BadParameter(f"'{text}' is after the end of all calendars") from wrong
    try:
        parsed = datetime.fromisoformat(text)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError) as wrong:
        raise typer.BadParameter(
            f"'{text}' is neither +DURATION nor a time like 2026-02-14T08:00Z"
        ) from wrong


def parse_json(text: str | None, what: str) -> Any:
    """A JSON value from the command line, or from a file as `@FILE`."""
    if text is None:
        return None
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            raise TenureError("INVALID_INPUT", f"{what}: {text[1:]} cannot be read: {fault}") from fault
    try:
        return decode_json(text)
    except RecursionError as fault:
        raise TenureError("INVALID_INPUT", f"{what} is nested too deeply") from fault
    except msgspec.DecodeError as fault:
        raise TenureError("INVALID_INPUT", f"{what} is not JSON: {fault}; a text needs its quotes") from fault


def parse_code(text: str) -> str:
    """A code, as it stands in histories and tables."""
    if _CODE.fullmatch(text) is None:
        raise typer.BadParameter(f"'{text}' is not a code: 1 to 64 of A-Z, 0-9 and _, like NOT_NEEDED")
    return text


def parse_pairs(given: list[str] | None) -> dict[str, str]:
    """`key=value` options as a dictionary."""
    found: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"'{text}' is not key=value")
        found[key] = value
    return found
