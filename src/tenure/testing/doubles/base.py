"""What the doubles share: an HTTP server in threads, a log of requests, and injected faults.

Laws:
1. A double is real on the wire: it has sockets, HTTP, responses and broken connections like a real service.
2. Every request is logged before it is handled.
3. Requests are handled one at a time, so that a double's state needs no locks.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

BODY_BYTES_MAX = 5 * 1024 * 1024
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class DoubleRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    """Without the query, still quoted."""
    query: dict[str, list[str]]
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(unquote(part) for part in self.path.split("/") if part)

    def json(self) -> Any:
        """The decoded body; an empty object if there is none."""
        return msgspec.json.decode(self.body) if self.body else {}

    def first(self, name: str, default: str = "") -> str:
        return self.query.get(name, [default])[0]


class DoubleReply(msgspec.Struct, frozen=True):
    status: int = 200
    json: Any = None
    headers: dict[str, str] = {}


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    drop: Literal["", "before", "after"] = ""
    """The connection breaks before or after the request is handled."""
    status: int = 0
    """The response has this status, and the request is not handled unless `done` is set."""
    headers: dict[str, str] = {}
    json: Any = None
    done: bool = False
    methods: frozenset[str] = WRITES


class Double:
    """A stand-in for a service. A context manager; `url` is its address."""

    def __init__(self, *, token: str = "", host: str = "127.0.0.1", port: int = 0) -> None:
        self.token = token
        """The token that requests need. If it is empty, they need none."""
        self.requests: list[DoubleRequest] = []
        self.url = ""
        self._address = (host, port)
        self._faults: deque[InjectedFault] = deque()
        self._handling = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def handle(self, request: DoubleRequest) -> DoubleReply:
        """Handle a request; implemented by each double."""
        raise NotImplementedError

    def trouble(self, **how: Any) -> None:
        """Inject a fault into the next request (the next that writes, unless `methods` says otherwise)."""
        self._faults.append(InjectedFault(**how))

    @property
    def writes(self) -> list[DoubleRequest]:
        return [request for request in self.requests if request.method in WRITES]

    def answer(self, request: DoubleRequest) -> DoubleReply | None:
        """The response to a request, or None if the connection breaks."""
        with self._handling:
            self.requests.append(request)
            fault = InjectedFault()
            if self._faults and request.method in self._faults[0].methods:
                fault = self._faults.popleft()
            if fault.drop == "before":
                return None
            instead = DoubleReply(fault.status, fault.json, fault.headers)
            if fault.status and not fault.done:
                return instead
            reply = self.handle(request)
        if fault.drop == "after":
            return None
        return instead if fault.status else reply

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(self._address, partial(_Handler, self))
        self._server.daemon_threads = True
        host, port = self._server.server_address[:2]
        self.url = f"http://{host!s}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, double: Double, *connection: Any) -> None:
        self._double = double
        super().__init__(*connection)

    def _do(self) -> None:
        split = urlsplit(self.path)
        size = min(int(self.headers.get("Content-Length") or 0), BODY_BYTES_MAX)
        body = self.rfile.read(size)
        if len(body) < size:  # the client is gone, and the request is incomplete
            self.close_connection = True
            return
        request = DoubleRequest(
            method=self.command,
            path=split.path,
            query=parse_qs(split.query, keep_blank_values=True),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body,
        )
        reply = self._double.answer(request)
        if reply is None:  # break the connection
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        content = b"" if reply.json is None else msgspec.json.encode(reply.json)
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(OSError):  # the client is gone
            self.wfile.write(content)

    def __getattr__(self, name: str) -> Any:
        """The standard library calls `do_GET` and so on."""
        if name.startswith("do_"):
            return self._do
        raise AttributeError(name)

    def handle(self) -> None:
        with suppress(OSError, ValueError):  # ValueError: its file was closed
            super().handle()

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # the name in the standard library
        """Log nothing: `Double.requests` has the requests."""
