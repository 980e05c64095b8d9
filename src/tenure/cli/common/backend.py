"""What a command works on: an engine on a database, or a client of a server.

Laws:
1. `open_backend` chooses between the two. Both have the same groups and methods (`engine.runs.list`, `client.runs.list`); commands
   call a `Backend`, and the type checker proves that either has what they call. Only `tenure run` and `tenure worker`, whose work
   itself differs, and `tenure policy publish`, which leaves the check of a policy to the server, look at `server_address`.
2. A command that changes something in a database ends by doing what is due and delivering what runs owe each other: no other process
   may be there to do it.
3. Only calls with `make` create a database, and only a file. All others raise STORE_NOT_MIGRATED.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from tenure.cli.common.arguments import parse_seconds
from tenure.cli.common.console import warn
from tenure.cli.common.server_option import refuse_server, server_address, server_key
from tenure.config import Database, choose_database
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.engine import Engine

    Backend: TypeAlias = Engine | Client

T = TypeVar("T")

CLI_REQUESTER = "cli"
"""The requester of runs that `tenure run` starts in a database file."""


def caller_id(given: str | None = None) -> str:
    """The id of the person at the command line: the one that was given, else this account's."""
    return given or f"uid:{os.getuid()}"


@asynccontextmanager
async def open_backend(
    db: str | None,
    tenant: str,
    *,
    by: str | None = None,
    changes: bool = False,
    make: bool = False,
    signing_key: str | None = None,
) -> AsyncIterator[Backend]:
    """Without `changes` the database may be read-only."""
    if (server := server_address(db)) is not None:
        from tenure.client import Client

        async with Client(server, server_key()) as client:
            yield client
    else:
        async with _open_engine(
            db, tenant, by=by, changes=changes, make=make, signing_key=signing_key
        ) as engine:
            yield engine


@asynccontextmanager
async def _open_engine(
    db: str | None,
    tenant: str,
    *,
    by: str | None = None,
    changes: bool = True,
    make: bool = False,
    signing_key: str | None = None,
) -> AsyncIterator[Engine]:
    from tenure.engine import Engine

    async with Engine(
        db,
        tenant=tenant,
        actor=caller_id(by),
        migrate=make and choose_database(db).kind == "sqlite",
        sweep=False,
        only_reads=not changes,
        signing_key=signing_key,
    ) as engine:
        yield engine
        if changes:
            await engine.settle()


def call_backend(
    db: str | None,
    tenant: str,
    call: Callable[[Backend], Awaitable[T]],
    *,
    by: str | None = None,
    changes: bool = False,
    make: bool = False,
    signing_key: str | None = None,
) -> T:
    """Open a backend for one call. This is what most commands do."""

    async def run() -> T:
        async with open_backend(
            db, tenant, by=by, changes=changes, make=make, signing_key=signing_key
        ) as backend:
            return await call(backend)

    return asyncio.run(run())


def call_either(
    db: str | None,
    tenant: str,
    local: Callable[[Engine], Awaitable[T]],
    remote: Callable[[Client], Awaitable[T]],
    *,
    by: str | None = None,
    changes: bool = True,
    make: bool = False,
) -> T:
    """Open a backend for one call that differs between engine and client."""
    from tenure.client import Client

    return call_backend(
        db,
        tenant,
        lambda backend: remote(backend) if isinstance(backend, Client) else local(backend),
        by=by,
        changes=changes,
        make=make,
    )


def call_engine(
    db: str | None,
    tenant: str,
    call: Callable[[Engine], Awaitable[T]],
    *,
    make: bool = False,
    refusal: str = "this command works on a database: use --db instead of --server",
) -> T:
    """Open an engine for one call that no server offers."""
    refuse_server(refusal)

    async def run() -> T:
        async with _open_engine(db, tenant, make=make) as engine:
            return await call(engine)

    return asyncio.run(run())


async def check_tenant(backend: Backend, tenant: str | None) -> None:
    """Refuse another tenant than the key's: nobody may believe that they have changed it."""
    from tenure.client import Client

    if tenant is not None and isinstance(backend, Client):
        mine = (await backend.transport.get("/session", dict[str, Any]))["tenant"]
        if mine != tenant:
            raise TenureError("INVALID_INPUT", f"this key is of tenant {mine!r}, not of {tenant!r}")


async def requester_for(backend: Backend, db: str | None, run: str, given: str | None) -> str:
    """The actor of a change to a run. A run that `tenure run` started in a file was requested by the program, not by a
    person. It stays so, and the people who could approve the run before the change still can."""
    if (
        given is None
        and choose_database(db).kind == "sqlite"
        and (await backend.get(run)).requester == CLI_REQUESTER
    ):
        return CLI_REQUESTER
    return caller_id(given)


def wait_for_database(database: Database, patience: str) -> None:
    """Wait until PostgreSQL is reachable, and report the wait on stderr. SQLite files are not waited for."""
    from tenure.store.factory import open_store, throttle_messages

    length = parse_seconds(patience)
    if database.kind == "postgres" and length > 0:
        tell = throttle_messages(lambda why: warn(f"waiting for the database ({patience} at most): {why}"))
        asyncio.run(open_store(database).wait_until_reachable(length, tell))
