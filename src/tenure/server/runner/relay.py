"""A relay between a runner and its server, for the conformance suite: it writes down what the runner says, and breaks what it is told to.

Laws:
1. Every answer that is a JSON object has a field more than the protocol names: a runner passes over it.
2. `before`: the request never reaches the server. `after`: it does, and nobody hears the answer. `busy`: the relay itself answers 503.
3. What is blocked gets no answer at all, as if the network were gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal

import msgspec

from tenure.errors import TenureError
from tenure.server.problems import body_of

How = Literal["before", "after", "busy"]
UNKNOWN_FIELD = "a_field_of_a_later_version"
_BUSY = body_of(TenureError("SERVER_BUSY"), "conformance")
LIMIT = 1 << 20


class Asked(msgspec.Struct, kw_only=True):
    """A request of the runner, and what it was answered."""

    begun: float
    ended: float | None = None
    method: str
    path: str
    credential: str
    body: Any = None
    status: int | None = None
    """None: it was not answered."""
    answer: Any = None

    @property
    def code(self) -> str | None:
        """The code of a refusal."""
        error = self.answer.get("error") if isinstance(self.answer, dict) else None
        return error.get("code") if isinstance(error, dict) else None


class Relay:
    """See the laws above."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.address = ""
        self.upstream: tuple[str, int] | None = None
        """Where the server is; None while there is none."""
        self.blocked: str | None = None
        """Requests with this in their path or body get no answer."""
        self._planned: list[tuple[How, str]] = []
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LIMIT)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Listen no more, and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def plan(self, how: How, part: str) -> None:
        """Break the next request whose path has this in it."""
        self._planned.append((how, part))

    @property
    def faults_left(self) -> int:
        """How many requests are still to be broken."""
        return len(self._planned)

    def forget_plans(self) -> None:
        """Break nothing any more."""
        self._planned.clear()
        self.blocked = None

    def _is_blocked(self, asked: Asked, body: bytes) -> bool:
        return self.blocked is not None and (self.blocked in asked.path or self.blocked.encode() in body)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
                while await self._one(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the suite is over
        finally:
            self._connections.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head, body = await _message(reader)
        method, target, _ = head.split(b" ", 2)
        now = asyncio.get_running_loop().time
        asked = Asked(
            begun=now(),
            method=method.decode(),
            path=target.decode(),
            credential=_header(head, b"authorization").rpartition(" ")[2],
            body=_json(body),
        )
        self.asked.append(asked)
        if self._is_blocked(asked, body):
            return False
        plan = next((one for one in self._planned if one[1] in asked.path), None)
        if plan is not None:
            self._planned.remove(plan)
        if plan is not None and plan[0] == "before":
            return False
        if plan is not None and plan[0] == "busy":
            asked.status, asked.answer, asked.ended = 503, _json(_BUSY), now()
            writer.write(b"HTTP/1.1 503 Busy\r\ncontent-type: application/json\r\nretry-after: 0\r\n")
            writer.write(b"content-length: %d\r\n\r\n" % len(_BUSY) + _BUSY)
            await writer.drain()
            return True
        if self.upstream is None:
            return False
        up_reader, up_writer = await asyncio.open_connection(*self.upstream, limit=LIMIT)
        try:
            up_writer.write(_with_length(head, len(body)) + body)
            await up_writer.drain()
            answer, content = await _message(up_reader)
        finally:
            up_writer.close()
        if plan is not None or self._is_blocked(asked, body):
            return False
        asked.status, asked.answer = int(answer.split(b" ", 2)[1]), _json(content)
        if isinstance(asked.answer, dict):
            content = msgspec.json.encode({**asked.answer, UNKNOWN_FIELD: {"is": ["not", "yours"]}})
        writer.write(_with_length(answer, len(content)) + content)
        await writer.drain()
        asked.ended = now()
        return True


def _header(head: bytes, wanted: bytes) -> str:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == wanted:
            return value.strip().decode("latin-1")
    return ""


def _with_length(head: bytes, length: int) -> bytes:
    """The head of a message whose body has this length, in one piece."""
    left = [
        line
        for line in head.split(b"\r\n")
        if line and line.split(b":")[0].strip().lower() not in (b"content-length", b"transfer-encoding")
    ]
    return b"\r\n".join([*left, b"content-length: %d" % length, b"", b""])


def _json(body: bytes) -> Any:
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(body) if body else None
    return None


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head of an HTTP message and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    if _header(head, b"transfer-encoding").lower() == "chunked":
        pieces = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return head, b"".join(pieces)
    length = int(_header(head, b"content-length") or 0)
    return head, await reader.readexactly(length) if length else b""
