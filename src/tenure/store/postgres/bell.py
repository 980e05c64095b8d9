"""Telling other processes that work became ready: LISTEN and NOTIFY on a connection of their own.

Laws:
1. A notification is a hint. Nobody depends on it: beneath it lies a slow poll.
2. It is sent after the commit and never within it: a NOTIFY in a transaction makes all commits queue up.
   Many hints within a few milliseconds are one.
3. The connection is looked after by one task: when nothing was heard for a while it is asked to answer, and
   one that does not is replaced. After a gap everybody is woken once, because a hint may have been missed.
4. It needs a session of its own. Through a pooler it only tells others, and hears nothing: the poll does the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import asyncpg

from tenure.store.postgres.link import COMMON_SETTINGS, PAUSE_SECONDS_MAX, Target

COALESCE_SECONDS = 0.005
LAST_RING_SECONDS = 1.0
PING_SECONDS = 5.0
"""How long nothing may be heard before the server is asked, and how long it may take to answer."""


class Bell:
    """Rings in every other process that listens to the same schema."""

    def __init__(self, target: Target, ping_seconds: float = PING_SECONDS) -> None:
        self._target = target
        self._channel = f"{target.schema}_work"
        self._ping_seconds = ping_seconds
        self._owed = False  # somebody wants the others' bells rung
        self._paid = asyncio.Event()  # nobody does
        self._stirred = asyncio.Event()  # there is something to do for the task
        self._rung = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.pid: int | None = None
        """The server process that serves the listening connection, while there is one."""
        self.listens: bool | None = None
        """Whether it hears others; None while that is not known."""

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.create_task(self._attend(), name="tenure-postgres-bell")

    async def stop(self) -> None:
        """Ring the others where that is owed: work may have been given back just now. Stop listening and wake whoever waits."""
        task, self._task = self._task, None
        if task is not None:
            if self._owed and self.pid is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_RING_SECONDS):
                        await self._paid.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._rung.set()

    async def wait(self, timeout_s: float) -> bool:
        """Until somebody rings (True) or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    def tell(self) -> None:
        """Have the others' bells rung soon."""
        self._owed = True
        self._paid.clear()
        self._stirred.set()

    async def _attend(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # whatever it is: the poll carries on, and so do we
                await self._listen()
            self.pid = None
            await asyncio.sleep(PAUSE_SECONDS_MAX / 4)

    async def _listen(self) -> None:
        """Listen until the connection fails."""
        session = await self._target.reach(
            COMMON_SETTINGS, time.monotonic(), command_seconds=self._ping_seconds
        )
        connection = session.connection
        try:
            connection.add_termination_listener(lambda _: self._stirred.set())
            if not session.pooled:
                await connection.add_listener(self._channel, self._heard)
                self.pid = connection.get_server_pid()
            self.listens = not session.pooled
            self._rung.set()
            while True:
                await self._ring_others(connection)
                try:
                    async with asyncio.timeout(self._ping_seconds):
                        await self._stirred.wait()
                except TimeoutError:
                    await connection.execute("select 1")
                self._stirred.clear()
        finally:
            connection.terminate()

    async def _ring_others(self, connection: asyncpg.Connection) -> None:
        if connection.is_closed():
            raise ConnectionError("the listening connection was closed")
        if self._owed:
            self._owed = False
            try:
                await connection.execute("select pg_notify($1, '')", self._channel)
            except BaseException:
                self._owed = True
                raise
            self._paid.set()
            await asyncio.sleep(COALESCE_SECONDS)

    def _heard(self, _connection: asyncpg.Connection, pid: int, _channel: str, _payload: Any) -> None:
        if pid != self.pid:  # our own ringing is not news to us
            self._rung.set()
