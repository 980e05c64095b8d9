"""A connection that comes back: where it leads, what it is set to, what it has prepared, how it is reached again.

Laws:
1. A link has one user at a time (`turn`), and its statements are prepared once per connection.
2. A link whose connection is in doubt is dropped; the next user gets a fresh one.
3. Plans are made once (generic) and must be right for any size of any table, so a link for transactions
   leaves the planner no choice: nested loops over indexes, driven by the rows that were sent. A hash join
   or a sequential scan, chosen while a table was small, would stay in the cached plan as it grows; and
   locks are taken in the order of the rows only if the join keeps it.
4. Settings go with the start-up of a session. A pooler gives each transaction another session, so behind one they
   are verified, and where they are not in force each transaction sets them as it begins (`Link.begin`).
5. Statements name the schema of every table and type (`qualify`): nothing depends on `search_path`.
6. A DSN with several hosts, or one host that changes, leads to the primary: a standby's answer is not final, nor is
   a server that starts, ends or is full. Such answers are asked for again until the deadline.
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
from tenure.kernel.model import ROWS
from tenure.logs import get_logger
from tenure.store import families
from tenure.store.postgres.faults import NOT_REACHED, StandbyFound, heals, translated, unavailable

log = get_logger(__name__)

CONNECT_SECONDS_MAX = 10.0
HOST_SECONDS_MAX = 3.0
"""How long one host of several may take to answer: behind a dead one the next may be alive."""
PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 1.0
GOODBYE_SECONDS_MAX = 5.0
STATEMENTS_MAX = 256
"""Statements kept prepared per connection; the oldest goes first."""
IDLE_IN_TRANSACTION_SECONDS_MAX = 15
"""A process that is stopped within a transaction must not hold its runs for longer than this."""

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
"""What every pooler keeps per client."""
_BESIDE = {**_SESSION, "search_path": "pg_catalog"}
"""What a session of our own is set to besides. With this path, a statement that omits a table's schema fails; see law 5."""

_TABLES = "|".join(sorted({*ROWS, *families.ROWS, "feed_key", "schema_version"}))
_TABLE = re.compile(rf"\b(from|join|into|update|using|table)(\s+)({_TABLES})\b(?!\.)")
_TYPE = re.compile(r"::(\w+_in)\[\]")


@cache
def qualify(text: str, schema: str) -> str:
    """A statement with the schema before every table and type of ours."""
    return _TYPE.sub(rf"::{schema}.\1[]", _TABLE.sub(rf"\1\2{schema}.\3", text))


def hosts_of(dsn: str) -> tuple[list[str], str | None]:
    """A DSN for each host of a DSN, and the `target_session_attrs` it asks for."""
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


class Session(NamedTuple):
    """A connection, and what is true of it."""

    connection: asyncpg.Connection
    pooled: bool
    """Whether a pooler is in between: each transaction may have another session of the server."""
    settled: bool
    """Whether the settings asked for are in force; else each transaction has to set them."""


class Target:
    """Where the database is, and in which of its schemas ours lives."""

    def __init__(self, dsn: str, schema: str, *, only_reads: bool = False) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise TenureError("INVALID_INPUT", f"{schema!r} is no name for a schema: use a-z, 0-9 and _")
        try:
            self._hosts, wanted = hosts_of(dsn)
        except ValueError as fault:
            raise TenureError("STORE_NOT_A_DATABASE", "the DSN is not one of PostgreSQL") from fault
        self.schema = schema
        if wanted is None:  # whoever only reads is content with a standby it has named by itself
            wanted = "any" if only_reads and len(self._hosts) == 1 else "primary"
        self._wanted = wanted
        self._bare = False  # a pooler has refused our settings at start-up

    async def connect(
        self, settings: Mapping[str, str], *, seconds: float, command_seconds: float
    ) -> Session:
        """One try at each host: the first that is what we want."""
        last: Exception | None = None
        if len(self._hosts) > 1:
            seconds = min(seconds, HOST_SECONDS_MAX)
        for dsn in self._hosts:
            try:
                return await self._connect_to(dsn, settings, seconds, command_seconds)
            except (*NOT_REACHED, TenureError) as fault:
                # What may heal is told before what will not: one of several hosts may be misconfigured.
                if last is None or (heals(fault) and not heals(last)):
                    last = fault
        assert last is not None
        raise last

    async def _connect_to(
        self, dsn: str, settings: Mapping[str, str], seconds: float, command_seconds: float
    ) -> Session:
        try:
            connection = await asyncpg.connect(
                dsn,
                timeout=seconds,
                command_timeout=command_seconds,
                server_settings=_SESSION if self._bare else {**settings, **_BESIDE},
                target_session_attrs="any",
            )
        except ValueError as fault:
            # Also asyncpg's own errors about a malformed DSN; its text may repeat the DSN, so ours does not.
            raise TenureError("STORE_NOT_A_DATABASE", "the DSN is not one of PostgreSQL") from fault
        except asyncpg.ProtocolViolationError as fault:
            if self._bare or "startup parameter" not in str(fault):
                raise
            self._bare = True
            return await self._connect_to(dsn, settings, seconds, command_seconds)
        try:
            async with asyncio.timeout(seconds):
                return await self._look_at(connection, settings)
        except BaseException:
            connection.terminate()
            raise

    async def _look_at(self, connection: asyncpg.Connection, settings: Mapping[str, str]) -> Session:
        """Whether a fresh connection is what we want, and what is true of it."""
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
            return Session(connection, pooled=False, settled=True)
        await _check_pooler(connection)
        found = await connection.fetch(
            "select name, setting from pg_settings where name = any($1::text[])", list(settings)
        )
        return Session(connection, pooled=True, settled=dict(found) == settings)

    async def reach(
        self,
        settings: Mapping[str, str],
        deadline: float,
        *,
        command_seconds: float,
        heal_deadline: float = 0.0,
        tell: Callable[[str], None] | None = None,
    ) -> Session:
        """Connect, trying again with growing random pauses until the deadline; at least once. What answers and is not
        ready yet (a standby, a server that starts) is asked until `heal_deadline`, where that is later."""
        pause = PAUSE_SECONDS_MIN
        while True:
            left = max(deadline, heal_deadline) - time.monotonic()
            seconds = CONNECT_SECONDS_MAX if left <= 0 else min(max(left, 0.5), CONNECT_SECONDS_MAX)
            try:
                return await self.connect(settings, seconds=seconds, command_seconds=command_seconds)
            except NOT_REACHED as fault:
                refused = isinstance(fault, asyncpg.PostgresError) and (fault.sqlstate or "")[:2] in (
                    "28",
                    "3D",
                )
                until = max(deadline, heal_deadline) if heals(fault) else deadline
                if refused or time.monotonic() + pause >= until:
                    raise unavailable(fault) from fault
                if tell is not None:
                    tell(unavailable(fault).message)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, PAUSE_SECONDS_MAX)


class Link:
    """One connection and what is prepared on it."""

    def __init__(self, target: Target, settings: Mapping[str, str], command_seconds: float) -> None:
        self.turn = asyncio.Lock()
        self._target = target
        self._settings = settings
        self._command_seconds = command_seconds
        self._connection: asyncpg.Connection | None = None
        self.settled = True
        """Whether a statement on its own has the settings of this link; see law 4."""
        self._statements: dict[str, Any] = {}
        self._leaving: set[asyncio.Future[None]] = set()

    async def ready(self, deadline: float, *, heal_deadline: float = 0.0) -> asyncpg.Connection:
        """The connection, made anew when it is gone; see `Target.reach`."""
        if self._connection is None or self._connection.is_closed():
            self.drop()
            session = await self._target.reach(
                self._settings, deadline, command_seconds=self._command_seconds, heal_deadline=heal_deadline
            )
            self._connection, self.settled = session.connection, session.settled
        return self._connection

    @property
    def begin(self) -> str:
        """The command that begins a transaction; with its settings, where the session does not have them."""
        if self.settled:
            return "begin"
        return _begin_with(tuple(self._settings.items()))

    async def statement(self, text: str) -> Any:
        """A statement, prepared on first use."""
        found = self._statements.get(text)
        if found is None:
            assert self._connection is not None
            try:
                found = await self._connection.prepare(qualify(text, self._target.schema))
            except Exception as fault:
                raise translated(fault) from fault
            if len(self._statements) >= STATEMENTS_MAX:
                del self._statements[next(iter(self._statements))]
            self._statements[text] = found
        return found

    async def command(self, text: str) -> str:
        """Begin, commit or roll back."""
        assert self._connection is not None
        status: str = await self._connection.execute(text)
        return status

    def drop(self) -> None:
        """Let go of a connection that cannot be trusted any more; the server rolls back."""
        connection, self._connection, self._statements = self._connection, None, {}
        if connection is not None and not connection.is_closed():
            connection.terminate()

    def leave(self) -> None:
        """Let go of a connection whose user was interrupted in the middle of something. asyncpg has asked the
        server to cancel it; only when that is done may we hang up, or a statement that waits for a lock would
        go on waiting, and hold the locks it has, without anybody there."""
        connection, self._connection, self._statements = self._connection, None, {}
        if connection is not None and not connection.is_closed():
            leaving = asyncio.ensure_future(_say_goodbye(connection))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Hang up properly, also where others were interrupted before."""
        self.leave()
        while self._leaving:
            await asyncio.wait(self._leaving)


async def _say_goodbye(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=GOODBYE_SECONDS_MAX)
    except Exception:  # whatever it is, it is about a connection nobody wants any more
        connection.terminate()


@cache
def _begin_with(settings: tuple[tuple[str, str], ...]) -> str:
    """One command and one round trip, as a plain `begin` is."""
    kept = (
        f"set local {name} = '{value}'" for name, value in settings if name != "default_transaction_isolation"
    )
    return "; ".join(("begin isolation level read committed", *kept))


async def _check_pooler(connection: asyncpg.Connection) -> None:
    """Refuse a pooler that hands the names of prepared statements on as they are: the next transaction would not find
    them, or find somebody else's. One that keeps them gives them names of its own."""
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
