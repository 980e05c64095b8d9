"""A relay between a runner and its server, for the conformance suite: it records the runner's requests, and breaks some as planned.

Laws:
1. Every response that is a JSON object gets an extra field that the protocol does not name: a runner must ignore it.
2. `before`: the request never reaches the server. `after`: it does, and the response is lost. `busy`: the relay itself responds with 503.
3. A blocked request gets no response at all, as if the network were gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal

import msgspec

from tenure.errors import TenureError
from tenure.server.error_responses import encode_error

FaultKind = Literal["before", "after", "busy"]
UNKNOWN_FIELD = "a_field_of_a_later_version"
_BUSY = encode_error(TenureError("SERVER_BUSY"), "conformance")
LIMIT = 1 << 20


class RelayedRequest(msgspec.Struct, kw_only=True):
    begun: float
    ended: float | None = None
    method: str
    path: str
    credential: str
    body: Any = None
    status: int | None = None
    """None: there was no response."""
    answer: Any = None

    @property
    def code(self) -> str | None:
        error = self.answer.get("error") if isinstance(self.answer, dict) else None
        return error.get("code") if isinstance(error, dict) else None


class Relay:
    def __init__(self) -> None:
        self.requests: list[RelayedRequest] = []
        self.address = ""
        self.upstream: tuple[str, int] | None = None
        """The server's address; None while it is down."""
        self.blocked: str | None = None
        """Requests with this text in their path or body get no response."""
        self._planned: list[tuple[FaultKind, str]] = []
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LIMIT)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def plan(self, how: FaultKind, part: str) -> None:
        """Break the next request whose path contains `part`."""
        self._planned.append((how, part))

    @property
    def faults_left(self) -> int:
        return len(self._planned)

    def forget_plans(self) -> None:
        self._planned.clear()
        self.blocked = None

    def _is_blocked(self, asked: RelayedRequest, body: bytes) -> bool:
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
        asked = RelayedRequest(
            begun=now(),
            method=method.decode(),
            path=target.decode(),
            credential=_header(head, b"authorization").rpartition(" ")[2],
            body=_json(body),
        )
        self.requests.append(asked)
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
    """A head for a body of this length that is not chunked."""
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
