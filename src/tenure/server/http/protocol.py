"""The bytes of HTTP, before there is a request: what is too large, too slow, too much or not HTTP at all.

Laws:
1. Bytes that cannot be parsed are answered with the one shape of errors, and the connection ends.
2. A request's line and headers are limited in bytes, in number and in time. Trailers are not kept.
3. Connections, half-sent bodies and the bytes of headers and bodies are counted here, where they first take memory
   (`load_limits`). Pipelined requests are counted one by one until they are answered, and their number is limited.
4. Behind a proxy, a request's client address is the one that the trusted proxies report (`forwarded`).
5. A client that does not read its answers loses its connection, because the requests behind the answer wait for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tenure.errors import TenureError
from tenure.server.error_responses import encode_error, error_headers
from tenure.server.http.forwarded import address_group, client_address, forwarded_scheme
from tenure.server.http.middleware import HSTS
from tenure.server.load_limits import PIPELINED, SLOW_READERS

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from tenure.server.load_limits import LoadLimits
    from tenure.server.settings import Settings

_LARGE = "the headers are too large"

HEADERS_MAX = 200
_MANY = f"the request has more than {HEADERS_MAX} headers, which is the limit"
HEADER_BYTES = 100
"""What a header takes in memory besides its text."""
READ_BYTES_MIN = 64 * 1024
"""What a client must read within `unread_seconds` while answers wait. A large answer may take several such periods."""
PIPELINED_MAX = 100
"""Unanswered requests of one connection. Each takes some kilobytes, however short it is."""


class _Account:
    """What is counted for one request until it is answered or its connection ends."""

    __slots__ = ("counted_group", "cycle", "half_sent_group", "held_bytes")

    def __init__(self) -> None:
        self.cycle: RequestResponseCycle | None = None
        self.held_bytes = 0
        """Bytes of its line, headers and body."""
        self.half_sent_group: str | None = None
        """The address group that its half-sent body is counted for."""
        self.counted_group: str | None = None
        """The address group that it is counted for, behind a proxy."""


class _Refused(Exception):
    """Ends the parsing. The parser turns it into an error of its own."""


class LimitedProtocol(HttpToolsProtocol):
    """A connection; see the laws above. `make_protocol` sets its class attributes."""

    _settings: Settings
    _load: LoadLimits
    _header_bytes_max: int
    _proxies: int
    """How many trusted proxies are in front."""

    _in_headers = False
    """Whether a request's headers are incomplete. Nearly all requests arrive whole and need no timer."""
    _header_bytes_left = 0
    _bytes_since_progress = 0
    """Bytes since the parser last completed anything: a header, trailer or chunk line without an end shows in nothing else."""
    _refusal: TenureError | None = None
    _header_timer: asyncio.TimerHandle | None = None
    _counted = False
    _counted_group: str | None = None
    """The address group that this connection is counted for."""
    _client_group: str = ""
    """The address group of the current request's client."""
    _accounts: deque[_Account]
    """Of the unanswered requests, oldest first: they are answered in this order."""
    _next_account: _Account | None = None
    """Of the request whose headers are incomplete."""
    _unread_bytes = 0
    """Bytes of answers that waited for the client when the reader timer was set."""
    _reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._accounts = deque()
        self._client_group = address_group(self.client[0] if self.client else "")
        try:
            self._load.open_connection()
            self._counted = True
            if not self._proxies:
                self._load.count_address(self._client_group)
                self._counted_group = self._client_group
        except TenureError as refused:
            self._refuse(refused)
            return
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_reader_timer()
        self._disconnect_cycles()
        if self._next_account is not None:
            self._release(self._next_account)
            self._next_account = None
        while self._accounts:
            self._release(self._accounts.popleft())
        if self._counted_group is not None:
            self._load.uncount_address(self._counted_group)
            self._counted_group = None
        if self._counted:
            self._load.close_connection()
            self._counted = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # In pieces, because the parser does not tell where in a piece a request begins.
        for start in range(0, len(data), self._header_bytes_max):
            if self.transport.is_closing():  # refused: the rest is not read
                return
            piece = data[start : start + self._header_bytes_max]
            self._bytes_since_progress += len(piece)
            super().data_received(piece)
            if self._bytes_since_progress > 2 * self._header_bytes_max:
                self.send_400_response(_LARGE)
        if self.transport.is_closing():
            return
        try:
            if self._in_headers:  # headers are incomplete
                if self._header_timer is None:
                    self._start_header_timer()
                self._hold_headers(self._bytes_since_progress)
            elif self._is_half_sent() and (account := self._accounts[-1]).half_sent_group is None:
                self._load.begin_body(self._client_group)
                account.half_sent_group = self._client_group
        except TenureError as refused:
            self._refuse(refused)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes_left = self._header_bytes_max
        self._in_headers = True
        self._next_account = _Account()

    def on_url(self, url: bytes) -> None:
        self._spend_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._spend_header_bytes(len(name) + len(value))
        if not self._in_headers:  # a trailer
            return
        if len(self.headers) >= HEADERS_MAX:
            self._refusal = TenureError("REQUEST_MALFORMED", _MANY)
            raise _Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._bytes_since_progress = 0
        self._stop_header_timer()
        if len(self._accounts) >= PIPELINED_MAX:
            self._load.refused[PIPELINED] += 1
            raise _Refused  # no answer: it would be taken for the answer to an earlier request
        try:
            account = self._hold_headers()
        except TenureError as refused:
            self._refusal = refused
            raise _Refused from None
        self._in_headers, self._next_account = False, None
        self._accounts.append(account)
        if self._proxies:
            self._read_forwarded(account)
        super().on_headers_complete()
        account.cycle = self.cycle

    def on_body(self, body: bytes) -> None:
        self._bytes_since_progress = 0
        if not self.cycle.response_complete:  # otherwise nobody reads it, and it is not kept
            try:
                self._load.hold_bytes(len(body))
            except TenureError as refused:
                self._refusal = refused
                raise _Refused from None
            self._accounts[-1].held_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_since_progress = 0
        if not self.cycle.response_complete:
            self._end_half_sent(self._accounts[-1])
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._accounts:
            self._release(self._accounts.popleft())
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_reader_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_reader_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():  # otherwise the connection ends when the last byte is read
            self._stop_reader_timer()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start_reader_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that cannot be parsed (law 1)."""
        self._refuse(self._refusal or TenureError("REQUEST_MALFORMED", msg))

    def _read_forwarded(self, account: _Account) -> None:
        """Take the client address and scheme from the proxies (law 4), and count the request for its address."""
        scope: Any = self.scope
        address = client_address(self.headers, self._proxies, self._settings.forwarded_header)
        if address is not None:
            scope["client"] = (address, 0)
        scheme = forwarded_scheme(self.headers)
        if scheme is not None:
            scope["scheme"] = scheme
        client = scope["client"]
        self._client_group = address_group(client[0] if client else "")
        if address is not None:
            try:
                self._load.count_address(self._client_group)
            except TenureError as refused:
                self._refusal = refused
                raise _Refused from None
            account.counted_group = self._client_group

    def _is_half_sent(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return (
            cycle is not None
            and cycle.more_body
            and not cycle.response_complete
            and not self.transport.is_closing()
        )

    def _refuse(self, error: TenureError) -> None:
        """Answer with an error, unless another answer is being sent, and end the connection."""
        self._stop_header_timer()
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete or not (cycle.response_started or self.pipeline):
            request_id = f"req_{secrets.token_hex(8)}"
            body = encode_error(error, request_id)
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "x-request-id": request_id,
                "x-content-type-options": "nosniff",
                "cache-control": "no-store",
                **{name.lower(): value for name, value in error_headers(error).items()},
                **({"strict-transport-security": HSTS} if self.scheme == "https" else {}),
                "connection": "close",
            }
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[error.spec.status] + head.encode() + b"\r\n" + body)
        self._disconnect_cycles()
        self.transport.close()
        self._start_reader_timer()

    def _disconnect_cycles(self) -> None:
        """Tell all handlers of this connection that the client has gone. (uvicorn tells only the newest of pipelined requests, so a stream
        before it would never end.)"""
        for account in self._accounts:
            if account.cycle is not None and not account.cycle.response_complete:
                account.cycle.disconnected = True
                account.cycle.message_event.set()

    def _end_half_sent(self, account: _Account) -> None:
        if account.half_sent_group is not None:
            self._load.end_body(account.half_sent_group)
            account.half_sent_group = None

    def _release(self, account: _Account) -> None:
        self._end_half_sent(account)
        if account.held_bytes:
            self._load.free_bytes(account.held_bytes)
        if account.counted_group is not None:
            self._load.uncount_address(account.counted_group)

    def _hold_headers(self, fed: int = 0) -> _Account:
        """Count the bytes of a request's line and headers; while they are incomplete, at least `fed`."""
        account = cast("_Account", self._next_account)
        more = (
            max(self._header_bytes_max - self._header_bytes_left + HEADER_BYTES * len(self.headers), fed)
            - account.held_bytes
        )
        if more > 0:
            self._load.hold_bytes(more)
            account.held_bytes += more
        return account

    def _spend_header_bytes(self, count: int) -> None:
        self._header_bytes_left -= count
        if self._header_bytes_left < 0:
            self._refusal = TenureError("REQUEST_MALFORMED", _LARGE)
            raise _Refused

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._settings.header_seconds, self._refuse_slow_headers)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse_slow_headers(self) -> None:
        self._header_timer = None
        self.send_400_response("the request did not arrive in time")

    def _start_reader_timer(self) -> None:
        """Check later whether the client reads the answers that wait for it (law 5)."""
        if self._reader_timer is None and (unread := self.transport.get_write_buffer_size()):
            self._unread_bytes = unread
            self._reader_timer = self.loop.call_later(self._settings.unread_seconds, self._check_reader)

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _check_reader(self) -> None:
        self._reader_timer = None
        if self.transport.get_write_buffer_size() > max(self._unread_bytes - READ_BYTES_MIN, 0):
            self._load.refused[SLOW_READERS] += 1
            self.transport.abort()  # closing would wait for the client to read
        else:
            self._start_reader_timer()


def make_protocol(settings: Settings, load: LoadLimits) -> type[HttpToolsProtocol]:
    """The protocol of a server's connections, with its limits."""
    members = {
        "_settings": settings,
        "_load": load,
        "_header_bytes_max": settings.header_bytes_max,
        "_proxies": settings.trusted_proxies if settings.behind_proxy else 0,
    }
    return type("ServerProtocol", (LimitedProtocol,), members)
