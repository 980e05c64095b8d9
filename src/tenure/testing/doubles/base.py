"""What the doubles share: a server in threads, a log of requests, and trouble on demand.

Laws:
1. A double is real on the wire: sockets, HTTP, answers and broken connections are what a service's would be.
2. It logs every request as it came, before anything is done.
3. Requests are handled one at a time: what a double keeps needs no locks of its own.
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


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request, as it came."""

    method: str
    path: str
    """Without its query, still quoted."""
    query: dict[str, list[str]]
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of its path, unquoted."""
        return tuple(unquote(part) for part in self.path.split("/") if part)

    def json(self) -> Any:
        """Its body; an empty object where there is none."""
        return msgspec.json.decode(self.body) if self.body else {}

    def first(self, name: str, default: str = "") -> str:
        """A parameter of its query."""
        return self.query.get(name, [default])[0]


class Reply(msgspec.Struct, frozen=True):
    """An answer."""

    status: int = 200
    json: Any = None
    headers: dict[str, str] = {}


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong with a request."""

    drop: Literal["", "before", "after"] = ""
    """The connection breaks: before anything is done, or when it is."""
    status: int = 0
    """This is answered instead, and nothing is done."""
    headers: dict[str, str] = {}
    json: Any = None
    done: bool = False
    """With a status: it is done all the same."""
    methods: frozenset[str] = WRITES


class Double:
    """A service that is none. Used as a context manager; `url` is where it is."""

    def __init__(self, *, token: str = "", host: str = "127.0.0.1", port: int = 0) -> None:
        self.token = token
        """What requests have to show; empty: nothing."""
        self.requests: list[Request] = []
        self.url = ""
        self._address = (host, port)
        self._troubles: deque[Trouble] = deque()
        self._handling = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def handle(self, request: Request) -> Reply:
        """Do what a request asks for. The part of each double."""
        raise NotImplementedError

    def trouble(self, **how: Any) -> None:
        """Something goes wrong with the next request (that writes, where `methods` says nothing else)."""
        self._troubles.append(Trouble(**how))

    @property
    def writes(self) -> list[Request]:
        """The requests that were to change something."""
        return [request for request in self.requests if request.method in WRITES]

    def answer(self, request: Request) -> Reply | None:
        """The answer to a request; None: none, the connection breaks."""
        with self._handling:
            self.requests.append(request)
            trouble = Trouble()
            if self._troubles and request.method in self._troubles[0].methods:
                trouble = self._troubles.popleft()
            if trouble.drop == "before":
                return None
            instead = Reply(trouble.status, trouble.json, trouble.headers)
            if trouble.status and not trouble.done:
                return instead
            reply = self.handle(request)
        if trouble.drop == "after":
            return None
        return instead if trouble.status else reply

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
    """HTTP for a double."""

    protocol_version = "HTTP/1.1"

    def __init__(self, double: Double, *connection: Any) -> None:
        self._double = double
        super().__init__(*connection)

    def _do(self) -> None:
        split = urlsplit(self.path)
        size = min(int(self.headers.get("Content-Length") or 0), BODY_BYTES_MAX)
        body = self.rfile.read(size)
        if len(body) < size:  # whoever sent it has gone: a request that is not whole is none
            self.close_connection = True
            return
        request = Request(
            method=self.command,
            path=split.path,
            query=parse_qs(split.query, keep_blank_values=True),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body,
        )
        reply = self._double.answer(request)
        if reply is None:
            self._break()
            return
        content = b"" if reply.json is None else msgspec.json.encode(reply.json)
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(OSError):  # nobody waits for it any more
            self.wfile.write(content)

    def __getattr__(self, name: str) -> Any:
        """The standard library asks for `do_GET` and its kind."""
        if name.startswith("do_"):
            return self._do
        raise AttributeError(name)

    def _break(self) -> None:
        """Reset the connection instead of answering."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def handle(self) -> None:
        """All requests of a connection, until somebody breaks it."""
        with suppress(OSError, ValueError):  # ValueError: its file was closed beneath it
            super().handle()

    def finish(self) -> None:
        """The end of a connection."""
        with suppress(OSError, ValueError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # the name in the standard library
        """Nothing: what came is in `requests`."""
