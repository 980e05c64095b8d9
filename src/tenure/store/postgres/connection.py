"""A connection that reconnects: its target, its settings, and its prepared statements.

Laws:
1. A connection has one user at a time (`turn`); a statement is prepared once per session.
2. A session in doubt is dropped; the next user gets a fresh one.
3. Plans are made once (generic) and must be right for any size of any table, so a connection for transactions
   leaves the planner no choice: nested loops over indexes, driven by the rows that were sent. A hash join or a
   sequential scan, chosen while a table was small, would stay in the cached plan as the table grows; and locks
   are taken in the order of the rows only if the join keeps that order.
4. Settings are sent when a session starts. A pooler gives each transaction another session, so behind a pooler they are
   verified, and if they are not in force, each transaction sets them as it begins (`PostgresConnection.begin`).
5. Statements name the schema of every table and type: nothing depends on `search_path`.
6. A DSN with several hosts, or with one host whose server changes, leads to the primary: while a standby answers, or a server
   that starts, stops or is full, the connection is tried again until the deadline.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from tenure.errors import TenureError
from tenure.logs import get_logger
from tenure.store.postgres.errors import (
    UNREACHABLE_ERRORS,
    StandbyFound,
    is_transient_refusal,
    translate_error,
    unavailable_error,
)

log = get_logger(__name__)

CONNECT_SECONDS_MAX = 10.0
HOST_SECONDS_MAX = 3.0
"""How long one host of several may take to answer: the next one may be alive."""
PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 1.0
CLOSE_SECONDS_MAX = 5.0
STATEMENTS_MAX = 256
"""Statements kept prepared per connection; the oldest goes first."""
IDLE_IN_TRANSACTION_SECONDS_MAX = 15
"""A process that hangs within a transaction must not lock its runs for longer than this."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,50}")

# Durations are written in milliseconds, as pg_settings shows them: what is in force is compared with them.
COMMON_SETTINGS: Mapping[str, str] = {
    "default_transaction_isolation": "read committed",
    "jit": "off",  # compiling costs more than any of our statements runs
    "plan_cache_mode": "force_generic_plan",  # planning a save costs as much as running it
}
READER_SETTINGS: Mapping[str, str] = {**COMMON_SETTINGS, "enable_seqscan": "off"}
LANE_SETTINGS: Mapping[str, str] = {
    **COMMON_SETTINGS,
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_SECONDS_MAX * 1000),
}
_SESSION = {"application_name": "tenure", "timezone": "UTC"}
"""Settings that every pooler keeps per client."""
_UNPOOLED_SESSION = {**_SESSION, "search_path": "pg_catalog"}
"""Further settings of a session without a pooler. With this path, a statement that omits a table's schema fails (law 5)."""

DEFAULT_SCHEMA = "tenure"
"""The schema that the .sql files name."""


@cache
def use_schema(text: str, schema: str) -> str:
    """A statement of the .sql files for another schema than the default."""
    return text.replace(f"{DEFAULT_SCHEMA}.", f"{schema}.")


def split_hosts(dsn: str) -> tuple[list[str], str | None]:
    """A DSN for each host of a DSN, and its `target_session_attrs`."""
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    wanted = query.pop("target_session_attrs", None)
    user, at, netloc = parts.netloc.rpartition("@")
    named = "host" in query
    hosts = (query["host"] if named else netloc).split(",")
    if len(hosts) == 1:
        return [dsn], wanted
    ports = query.get("port", "").split(",")
    found = []
    for number, host in enumerate(hosts):
        mine = dict(query)
        if named:
            mine["host"] = host
        if len(ports) == len(hosts) and ports[number]:
            mine["port"] = ports[number]
        place = netloc if named else host
        found.append(f"{parts.scheme}://{user}{at}{place}{parts.path}?{urlencode(mine, safe='/')}")
    return found, wanted


class PostgresSession(NamedTuple):
    connection: asyncpg.Connection
    pooled: bool
    """Whether there is a pooler: each transaction may run in another session of the server."""
    settled: bool
    """Whether the settings are in force; else each transaction has to set them."""


class PostgresTarget:
    """The hosts of a database, and the schema of Tenure's tables in it."""

    def __init__(self, dsn: str, schema: str, *, only_reads: bool = False) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise TenureError("INVALID_INPUT", f"{schema!r} is not a valid schema name: use a-z, 0-9 and _")
        try:
            self._hosts, wanted = split_hosts(dsn)
        except ValueError as fault:
            raise TenureError("STORE_NOT_A_DATABASE", "the DSN is not a PostgreSQL DSN") from fault
        self.schema = schema
        if wanted is None:  # a reader may name a single standby
            wanted = "any" if only_reads and len(self._hosts) == 1 else "primary"
        self._wanted = wanted
        self._bare = False  # whether a pooler has refused the settings at start-up

    async def connect(
        self, settings: Mapping[str, str], *, seconds: float, command_seconds: float
    ) -> PostgresSession:
        """Try each host once; the first that fits `target_session_attrs`."""
        last: Exception | None = None
        if len(self._hosts) > 1:
            seconds = min(seconds, HOST_SECONDS_MAX)
        for dsn in self._hosts:
            try:
                return await self._connect_to(dsn, settings, seconds, command_seconds)
            except (*UNREACHABLE_ERRORS, TenureError) as fault:
                # Prefer a temporary error to a lasting one: one of several hosts may be misconfigured.
                if last is None or (is_transient_refusal(fault) and not is_transient_refusal(last)):
                    last = fault
        assert last is not None
        raise last

    async def _connect_to(
        self, dsn: str, settings: Mapping[str, str], seconds: float, command_seconds: float
    ) -> PostgresSession:
        try:
            connection = await asyncpg.connect(
                dsn,
                timeout=seconds,
                command_timeout=command_seconds,
                server_settings=_SESSION if self._bare else {**settings, **_UNPOOLED_SESSION},
                target_session_attrs="any",
            )
        except ValueError as fault:
            # This includes asyncpg's errors about a malformed DSN. Their text may repeat the DSN, so it is not shown.
            raise TenureError("STORE_NOT_A_DATABASE", "the DSN is not a PostgreSQL DSN") from fault
        except asyncpg.ProtocolViolationError as fault:
            if self._bare or "startup parameter" not in str(fault):
                raise
            self._bare = True
            return await self._connect_to(dsn, settings, seconds, command_seconds)
        try:
            async with asyncio.timeout(seconds):
                return await self._inspect(connection, settings)
        except BaseException:
            connection.terminate()
            raise

    async def _inspect(self, connection: asyncpg.Connection, settings: Mapping[str, str]) -> PostgresSession:
        """Check a fresh connection against `target_session_attrs` and the settings."""
        pid, standby, read_only, plans = await connection.fetchrow(
            "select pg_backend_pid(), pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on',"
            " current_setting('plan_cache_mode')"
        )
        if standby and self._wanted in ("primary", "read-write"):
            raise StandbyFound("the server that answers is a standby, and none of the hosts is a primary")
        if not standby and self._wanted in ("standby", "read-only"):
            raise StandbyFound(
                "the server that answers is the primary, and target_session_attrs asks for a standby"
            )
        if read_only and self._wanted == "read-write":
            raise StandbyFound("the server that answers has default_transaction_read_only")
        if pid == connection.get_server_pid() and plans == settings["plan_cache_mode"]:
            return PostgresSession(connection, pooled=False, settled=True)
        await _check_pooler(connection)
        found = await connection.fetch(
            "select name, setting from pg_settings where name = any($1::text[])", list(settings)
        )
        return PostgresSession(connection, pooled=True, settled=dict(found) == settings)

    async def reach(
        self,
        settings: Mapping[str, str],
        deadline: float,
        *,
        command_seconds: float,
        heal_deadline: float = 0.0,
        tell: Callable[[str], None] | None = None,
    ) -> PostgresSession:
        """Connect, trying again with growing random pauses until the deadline; at least once. A server that answers but is not
        ready yet (a standby, or a server that starts) is tried until `heal_deadline`, if that is later."""
        pause = PAUSE_SECONDS_MIN
        while True:
            left = max(deadline, heal_deadline) - time.monotonic()
            seconds = CONNECT_SECONDS_MAX if left <= 0 else min(max(left, 0.5), CONNECT_SECONDS_MAX)
            try:
                return await self.connect(settings, seconds=seconds, command_seconds=command_seconds)
            except UNREACHABLE_ERRORS as fault:
                state = (fault.sqlstate or "") if isinstance(fault, asyncpg.PostgresError) else ""
                until = max(deadline, heal_deadline) if is_transient_refusal(fault) else deadline
                if state.startswith(("28", "3D")) or time.monotonic() + pause >= until:
                    raise unavailable_error(fault) from fault
                if tell is not None:
                    tell(unavailable_error(fault).message)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, PAUSE_SECONDS_MAX)


class PostgresConnection:
    def __init__(self, target: PostgresTarget, settings: Mapping[str, str], command_seconds: float) -> None:
        self.turn = asyncio.Lock()
        self._target = target
        self._settings = settings
        self._command_seconds = command_seconds
        self._connection: asyncpg.Connection | None = None
        self.settled = True
        """Whether a statement outside of a transaction has the settings of this connection (law 4)."""
        self._statements: dict[str, Any] = {}
        self._leaving: set[asyncio.Future[None]] = set()

    async def ready(self, deadline: float, *, heal_deadline: float = 0.0) -> asyncpg.Connection:
        """The session, reconnected if it is closed; see `PostgresTarget.reach`."""
        if self._connection is None or self._connection.is_closed():
            self.drop()
            session = await self._target.reach(
                self._settings, deadline, command_seconds=self._command_seconds, heal_deadline=heal_deadline
            )
            self._connection, self.settled = session.connection, session.settled
        return self._connection

    @property
    def begin(self) -> str:
        """The command that begins a transaction, with the settings if the session does not have them."""
        return "begin" if self.settled else _begin_with(tuple(self._settings.items()))

    async def statement(self, text: str) -> Any:
        """A statement, prepared on first use."""
        found = self._statements.get(text)
        if found is None:
            assert self._connection is not None
            try:
                found = await self._connection.prepare(use_schema(text, self._target.schema))
            except Exception as fault:
                raise translate_error(fault) from fault
            if len(self._statements) >= STATEMENTS_MAX:
                del self._statements[next(iter(self._statements))]
            self._statements[text] = found
        return found

    async def command(self, text: str) -> None:
        """Begin, commit or roll back."""
        assert self._connection is not None
        await self._connection.execute(text)

    def drop(self) -> None:
        """Close a session in doubt at once; the server rolls back."""
        connection, self._connection, self._statements = self._connection, None, {}
        if connection is not None and not connection.is_closed():
            connection.terminate()

    def leave(self) -> None:
        """Close a session whose user was canceled in the middle of a statement. asyncpg has asked the server to cancel the
        statement. The session is closed only after that: otherwise a statement that waits for a lock would continue to
        wait, and hold its locks."""
        connection, self._connection, self._statements = self._connection, None, {}
        if connection is not None and not connection.is_closed():
            leaving = asyncio.ensure_future(_close_gently(connection))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Close the session, and wait for those that `leave` is closing."""
        self.leave()
        while self._leaving:
            await asyncio.wait(self._leaving)


async def _close_gently(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=CLOSE_SECONDS_MAX)
    except Exception:  # the connection is not needed any more
        connection.terminate()


@cache
def _begin_with(settings: tuple[tuple[str, str], ...]) -> str:
    """A `begin` with settings, as one command in one round trip."""
    kept = (
        f"set local {name} = '{value}'" for name, value in settings if name != "default_transaction_isolation"
    )
    return "; ".join(("begin isolation level read committed", *kept))


async def _check_pooler(connection: asyncpg.Connection) -> None:
    """Refuse a pooler that passes on the names of prepared statements unchanged: the next transaction would not find them, or
    would find another client's. A pooler that supports prepared statements renames them."""
    name = f"tenure_{secrets.token_hex(8)}"
    try:
        async with connection.transaction():
            statement = await connection.prepare(
                "select count(*) from pg_prepared_statements where name = $1", name=name
            )
            kept = await statement.fetchval(name) == 0
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        kept = False
    if not kept:
        raise TenureError(
            "STORE_POOLER_REFUSED",
            "the pooler before PostgreSQL does not keep prepared statements: use pgbouncer 1.21 or newer with"
            " max_prepared_statements above 0, or connect to PostgreSQL without it",
        )
