"""Notifies other processes that work became ready: LISTEN and NOTIFY on a connection of their own.

Laws:
1. A notification is a hint. Nothing depends on it: a slow poll finds work anyway.
2. It is sent after the commit, never within it: a NOTIFY in a transaction serializes all commits.
   Hints within a few milliseconds are sent as one.
3. One task owns the connection: after a silence it sends a ping, and replaces a connection that does not
   answer. After a reconnect all waiters are woken once, because a hint may have been missed.
4. It needs a session of its own. Through a pooler it only sends hints and receives none: the poll finds the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import asyncpg

from tenure.store.postgres.connection import COMMON_SETTINGS, PAUSE_SECONDS_MAX, PostgresTarget

COALESCE_SECONDS = 0.005
LAST_NOTIFY_SECONDS = 1.0
PING_SECONDS = 5.0
"""How long a silence may last before a ping, and how long the answer to it may take."""


class WorkNotifier:
    """Sends hints to all other processes that listen to the same schema, and receives theirs."""

    def __init__(self, target: PostgresTarget, ping_seconds: float = PING_SECONDS) -> None:
        self._target = target
        self._channel = f"{target.schema}_work"
        self._ping_seconds = ping_seconds
        self._pending = False  # a hint is to be sent
        self._sent = asyncio.Event()  # no hint is to be sent
        self._awake = asyncio.Event()  # the task has something to do
        self._hinted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.pid: int | None = None
        """The server process that serves the listening connection, while there is one."""
        self.listens: bool | None = None
        """Whether it receives hints; None: not known yet."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._reconnect(), name="tenure-postgres-notifier")

    async def stop(self) -> None:
        """Send a pending hint (work may have been released just now), stop listening, and wake the waiters."""
        task, self._task = self._task, None
        if task is not None:
            if self._pending and self.pid is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_NOTIFY_SECONDS):
                        await self._sent.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._hinted.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a hint (True), or until the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._hinted.wait()
        except TimeoutError:
            return False
        self._hinted.clear()
        return True

    def notify(self) -> None:
        """Send a hint soon."""
        self._pending = True
        self._sent.clear()
        self._awake.set()

    async def _reconnect(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # the poll finds work meanwhile; reconnect
                await self._listen()
            self.pid = None
            await asyncio.sleep(PAUSE_SECONDS_MAX / 4)

    async def _listen(self) -> None:
        session = await self._target.reach(
            COMMON_SETTINGS, time.monotonic(), command_seconds=self._ping_seconds
        )
        connection = session.connection
        try:
            connection.add_termination_listener(lambda _: self._awake.set())
            if not session.pooled:
                await connection.add_listener(self._channel, self._heard)
                self.pid = connection.get_server_pid()
            self.listens = not session.pooled
            self._hinted.set()
            while True:
                await self._send_hint(connection)
                try:
                    async with asyncio.timeout(self._ping_seconds):
                        await self._awake.wait()
                except TimeoutError:
                    await connection.execute("select 1")
                self._awake.clear()
        finally:
            connection.terminate()

    async def _send_hint(self, connection: asyncpg.Connection) -> None:
        if connection.is_closed():
            raise ConnectionError("the listening connection was closed")
        if self._pending:
            self._pending = False
            try:
                await connection.execute("select pg_notify($1, '')", self._channel)
            except BaseException:
                self._pending = True
                raise
            self._sent.set()
            await asyncio.sleep(COALESCE_SECONDS)

    def _heard(self, _connection: asyncpg.Connection, pid: int, _channel: str, _payload: Any) -> None:
        if pid != self.pid:  # not our own hint
            self._hinted.set()
