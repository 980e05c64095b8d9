"""A connection that comes back: what it is set to, what it has prepared, how it is reached again.

Laws:
1. A link has one user at a time (`turn`), and its statements are prepared once per connection.
2. A link whose connection is in doubt is dropped; the next user gets a fresh one.
3. Plans are made once (generic) and must be right for any size of any table, so a link for transactions
   leaves the planner no choice: nested loops over indexes, driven by the rows that were sent. A hash join
   or a sequential scan, chosen while a table was small, would stay in the cached plan as it grows; and
   locks are taken in the order of the rows only if the join keeps it.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Mapping
from typing import Any

import asyncpg

from tenure.errors import TenureError
from tenure.store.postgres.faults import translated, unavailable

CONNECT_SECONDS_MAX = 10.0
PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 1.0
GOODBYE_SECONDS_MAX = 5.0
STATEMENTS_MAX = 256
"""Statements kept prepared per connection; the oldest goes first."""
IDLE_IN_TRANSACTION_SECONDS_MAX = 15
"""A process that is stopped within a transaction must not hold its runs for longer than this."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,50}")

COMMON_SETTINGS: Mapping[str, str] = {
    "application_name": "tenure",
    "default_transaction_isolation": "read committed",
    "jit": "off",  # compiling costs more than any of our statements runs
    "plan_cache_mode": "force_generic_plan",  # planning a save costs as much as running it
    "timezone": "UTC",
}
READER_SETTINGS: Mapping[str, str] = {**COMMON_SETTINGS, "enable_seqscan": "off"}
LANE_SETTINGS: Mapping[str, str] = {
    **COMMON_SETTINGS,
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_SECONDS_MAX}s",
}


class Target:
    """Where the database is, and in which of its schemas ours lives."""

    def __init__(self, dsn: str, schema: str) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise TenureError("INVALID_INPUT", f"{schema!r} is no name for a schema: use a-z, 0-9 and _")
        self.dsn = dsn
        self.schema = schema

    async def connect(
        self, settings: Mapping[str, str], *, seconds: float, command_seconds: float
    ) -> asyncpg.Connection:
        """One try to connect."""
        try:
            return await asyncpg.connect(
                self.dsn,
                timeout=seconds,
                command_timeout=command_seconds,
                server_settings={**settings, "search_path": self.schema},
            )
        except ValueError as fault:
            # Also asyncpg's own errors about a malformed DSN; its text may repeat the DSN, so ours does not.
            raise TenureError("STORE_NOT_A_DATABASE", "the DSN is not one of PostgreSQL") from fault

    async def reach(
        self, settings: Mapping[str, str], deadline: float, *, command_seconds: float
    ) -> asyncpg.Connection:
        """Connect, trying again with growing random pauses until the deadline; at least once."""
        pause = PAUSE_SECONDS_MIN
        while True:
            left = deadline - time.monotonic()
            seconds = CONNECT_SECONDS_MAX if left <= 0 else min(max(left, 0.5), CONNECT_SECONDS_MAX)
            try:
                return await self.connect(settings, seconds=seconds, command_seconds=command_seconds)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as fault:
                refused = isinstance(fault, asyncpg.PostgresError) and (fault.sqlstate or "")[:2] in (
                    "28",
                    "3D",
                )
                if refused or time.monotonic() + pause >= deadline:
                    raise unavailable(fault) from fault
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
        self._statements: dict[str, Any] = {}
        self._leaving: set[asyncio.Future[None]] = set()

    async def ready(self, deadline: float) -> asyncpg.Connection:
        """The connection, made anew when it is gone."""
        if self._connection is None or self._connection.is_closed():
            self.drop()
            self._connection = await self._target.reach(
                self._settings, deadline, command_seconds=self._command_seconds
            )
        return self._connection

    async def statement(self, text: str) -> Any:
        """A statement, prepared on first use."""
        found = self._statements.get(text)
        if found is None:
            assert self._connection is not None
            try:
                found = await self._connection.prepare(text)
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
