"""A TCP proxy between a store and PostgreSQL that can drop answers and close connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit, urlunsplit

SAVE_BYTES_MIN = 600
"""A message of this size contains rows to write."""


class TcpProxy:
    """Forwards bytes in both directions on 127.0.0.1 until a test interrupts it."""

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._answers_until_cut = 0
        self._cut_saves = 0
        self.connections = 0
        self.cuts = 0

    @property
    def dsn(self) -> str:
        """The DSN under which clients reach the proxy."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        user = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(
            self._parts._replace(netloc=f"{user}@{host}:{port}", query="sslmode=disable", scheme="postgresql")
        )

    def mute(self) -> None:
        """Drop the answers from now on and keep the connections open (half-open connections)."""
        self._answers.clear()

    def unmute(self) -> None:
        """Forward answers again."""
        self._answers.set()

    def cut_before_an_answer(self, number: int = 1) -> None:
        """Forward what clients send, but close the connection instead of forwarding the given answer (the first by default)."""
        self._answers_until_cut = number

    def cut_before_the_answer_to_a_save(self) -> None:
        """Close the connection instead of forwarding the answer to the next save, so that the outcome of its commit is unknown."""
        self._cut_saves += 1

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        query = parse_qs(self._parts.query)
        port = int(query["port"][0]) if "port" in query else self._parts.port or 5432
        if "host" in query:
            return await asyncio.open_unix_connection(f"{query['host'][0]}/.s.PGSQL.{port}")
        return await asyncio.open_connection(self._parts.hostname, port)

    async def _carry(self, near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far, far_end = await self._open()
        except OSError:  # the server is down
            near_end.close()
            return

        sent = b""

        async def there() -> None:
            nonlocal sent
            while data := await near.read(1 << 16):
                sent = data
                far_end.write(data)

        async def back() -> None:
            while data := await far.read(1 << 16):
                await self._answers.wait()
                is_save = self._cut_saves > 0 and (len(sent) >= SAVE_BYTES_MIN or b"COMMIT" in sent)
                is_now = self._answers_until_cut == 1
                self._answers_until_cut -= self._answers_until_cut > 0
                if is_now or is_save:
                    self._cut_saves -= is_save
                    self.cuts += 1
                    return
                near_end.write(data)

        ways = [asyncio.ensure_future(there()), asyncio.ensure_future(back())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (near_end, far_end):
                end.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (near_end, far_end):
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[TcpProxy]:
        """Run the proxy until the end of the block."""

        def begin(near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(near, near_end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: near_end.close())  # also if it is canceled before it begins

        self._server = await asyncio.start_server(begin, "127.0.0.1", 0)
        try:
            yield self
        finally:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
