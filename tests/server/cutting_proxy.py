"""A proxy between a runner and its server that cuts connections at chosen points.

    async with cutting(s.address) as proxy:
        proxy.cut("after", "/runner/claim")     # the server executes the request; the answer is lost

`before`: the request never reaches the server. `after`: the server executes it, and the connection breaks before the answer arrives.
`half`: it breaks in the middle of the answer's body.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Proxy:
    """See above. `seen` lists the requested paths; `cuts` counts the cut requests."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._planned: list[tuple[str, str]] = []
        self.seen: list[str] = []
        self.cuts = 0
        self.address = ""
        self.silent = False
        """Whether nothing comes through at all."""
        self.silent_after_half = False
        """Whether nothing comes through after an answer that broke in its middle."""

    def cut(self, when: str, path: str, times: int = 1) -> None:
        """Cut the next requests whose path contains `path`."""
        self._planned += [(when, path)] * times

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a runner."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head, body = await _message(reader)
        path = head.split(b" ", 2)[1].decode()
        self.seen.append(path)
        plan = next((one for one in self._planned if one[1] in path), None)
        if plan is not None:
            self._planned.remove(plan)
            self.cuts += 1
        if self.silent or (plan is not None and plan[0] == "before"):
            return False
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        try:
            up_writer.write(head + body)
            await up_writer.drain()
            answer, content = await _message(up_reader)
        finally:
            up_writer.close()
        if plan is not None:
            if plan[0] == "half":
                self.silent = self.silent_after_half
                writer.write(answer + content[: len(content) // 2])
                await writer.drain()
            return False
        writer.write(answer + content)
        await writer.drain()
        return True


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head of an HTTP message and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head, await reader.readexactly(length) if length else b""


@asynccontextmanager
async def cutting(address: str) -> AsyncIterator[Proxy]:
    """A proxy in front of a server."""
    parts = urlsplit(address)
    proxy = Proxy(parts.hostname or "", parts.port or 80)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0, limit=1 << 20)
    host, port = server.sockets[0].getsockname()[:2]
    proxy.address = f"http://{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
