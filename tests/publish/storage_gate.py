"""A TCP gate in front of an S3 server. A closed gate is a storage outage; a gate can also lose the answer to a write."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class StorageGate:
    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        self._far = (parts.hostname, parts.port)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost_answers = 0
        self.refused = 0
        """Connections that a closed gate has refused."""
        self._is_open = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def close(self) -> None:
        """Cut all connections, and accept none that leads anywhere."""
        self._is_open = False
        for task in self._tasks:
            task.cancel()

    def open(self) -> None:
        self._is_open = True

    def lose_answers(self, count: int) -> None:
        """Forward the next writes, and cut the connection instead of forwarding the answers."""
        self._lost_answers = count

    async def _carry(self, near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_end: asyncio.StreamWriter | None = None
        try:
            if not self._is_open:
                self.refused += 1
                return
            far, far_end = await asyncio.open_connection(*self._far)
            method = b""

            async def there() -> None:
                nonlocal method
                while data := await near.read(1 << 16):
                    method = data[:4] if data[:4] in (b"PUT ", b"GET ", b"HEAD", b"POST", b"DELE") else method
                    far_end.write(data)

            async def back() -> None:
                while data := await far.read(1 << 16):
                    if method == b"PUT " and self._lost_answers > 0:
                        self._lost_answers -= 1
                        return
                    near_end.write(data)

            carriers = [asyncio.ensure_future(there()), asyncio.ensure_future(back())]
            try:
                await asyncio.wait(carriers, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for carrier in carriers:
                    carrier.cancel()
                await asyncio.gather(*carriers, return_exceptions=True)
        except (asyncio.CancelledError, OSError):
            pass
        finally:
            self._tasks.discard(task)
            for end in (near_end, far_end):
                if end is not None:
                    end.transport.abort()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["StorageGate"]:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.close()
            self._server.close()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*self._tasks, return_exceptions=True)
