"""The bytes of HTTP, before there is a request: what is too large, too slow, too much or no HTTP at all.

Laws:
1. What cannot be read is answered with the one shape of errors, and its connection ends.
2. A request's line and headers are bounded in bytes, in number and in time, and nothing of them is kept beyond that. Nothing of
   trailers is kept at all.
3. Connections, half-sent bodies, and the bytes that the headers and bodies of all requests hold, are counted here, where they
   first take memory (`server.load`). Requests that a client pipelines are counted one by one, each until it is answered, and are
   bounded in number.
4. Behind a proxy a request comes from where the trusted proxies say (`forwarded`), from here on.
5. A client reads its answers, or its connection ends: what it does not read holds the requests behind it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tenure.errors import TenureError
from tenure.server.http.forwarded import address_group, client_address, forwarded_scheme
from tenure.server.http.hsts import HSTS
from tenure.server.load import PIPELINED, SLOW_READERS
from tenure.server.problems import body_of, headers_of

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from tenure.server.load import Load
    from tenure.server.settings import Settings

_LARGE = "the headers are too large"

HEADERS_MAX = 200
"""Headers of one request."""
_MANY = f"the request has more than {HEADERS_MAX} headers, which is the limit"
HEADER_BYTES = 100
"""What a header takes besides its text: two objects, and a pair of them."""
READ_BYTES_MIN = 64 * 1024
"""What a client has to read in `unread_seconds` while answers wait for it: a large answer may take longer than that."""
PIPELINED_MAX = 100
"""Requests of one connection that are not answered yet: each takes some kilobytes, however short it is."""


class _Account:
    """What is counted for one request, until it is answered or its connection has ended."""

    __slots__ = ("came", "cycle", "half", "held")

    def __init__(self) -> None:
        self.cycle: RequestResponseCycle | None = None
        self.held = 0
        """Bytes of its line, headers and body."""
        self.half: str | None = None
        """The address its half-sent body is counted for."""
        self.came: str | None = None
        """The address it is counted for, behind a proxy."""


class _Refused(Exception):
    """Ends the parsing; the parser makes an error of its own of it."""


def wire(settings: Settings, load: Load) -> type[HttpToolsProtocol]:
    """The protocol of a server's connections, with its limits."""
    most, seconds = settings.header_bytes_max, settings.header_seconds
    proxies = settings.trusted_proxies if settings.behind_proxy else 0

    class Wire(HttpToolsProtocol):
        """See the laws above."""

        _begun = False
        """Whether a request has begun whose headers are not complete: nearly all come whole, and need no timer."""
        _left = most
        _fed = 0
        """Bytes that came since anything was complete: a header, trailer or chunk line without end shows in nothing else. What came
        together with the end of something else is not counted."""
        _why: TenureError | None = None
        _hurry: asyncio.TimerHandle | None = None
        _counted = False
        """Whether this connection is among those that are counted."""
        _peer: str | None = None
        """The address this connection is counted for."""
        _asker: str = ""
        """Whoever the request under way comes from."""
        _accounts: deque[_Account]
        """Of the requests under way, the oldest first: they are answered in their order."""
        _next: _Account | None = None
        """Of the request whose headers are not complete."""
        _unread = 0
        """Bytes of answers that waited for the client when the timer was set."""
        _reading: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
            super().connection_made(transport)
            self._accounts = deque()
            self._asker = address_group(self.client[0] if self.client else "")
            try:
                load.open_connection()
                self._counted = True
                if not proxies:
                    load.come_from(self._asker)
                    self._peer = self._asker
            except TenureError as refused:
                self._refuse(refused)
                return
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._have()
            self._stop_watching()
            self._hang_up()
            if self._next is not None:
                self._free(self._next)
                self._next = None
            while self._accounts:
                self._free(self._accounts.popleft())
            if self._peer is not None:
                load.go_from(self._peer)
                self._peer = None
            if self._counted:
                load.close_connection()
                self._counted = False
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            # In pieces: nothing tells where in a piece a request begins.
            for start in range(0, len(data), most):
                if self.transport.is_closing():  # it was refused; what is still on its way is not read
                    return
                piece = data[start : start + most]
                self._fed += len(piece)
                super().data_received(piece)
                if self._fed > 2 * most:
                    self.send_400_response(_LARGE)
            if self.transport.is_closing():
                return
            try:
                if self._begun:  # its headers are not complete
                    if self._hurry is None:
                        self._expect()
                    self._hold_headers(self._fed)
                elif self._is_half_sent() and (account := self._accounts[-1]).half is None:
                    load.begin_body(self._asker)
                    account.half = self._asker
            except TenureError as refused:
                self._refuse(refused)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._left = most
            self._begun = True
            self._next = _Account()

        def on_url(self, url: bytes) -> None:
            self._spend(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._spend(len(name) + len(value))
            if not self._begun:  # a trailer
                return
            if len(self.headers) >= HEADERS_MAX:
                self._why = TenureError("REQUEST_MALFORMED", _MANY)
                raise _Refused
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._fed = 0
            self._have()
            if len(self._accounts) >= PIPELINED_MAX:
                load.refused[PIPELINED] += 1
                raise _Refused  # the connection just ends: an error would stand among the answers to earlier requests
            try:
                account = self._hold_headers()
            except TenureError as refused:
                self._why = refused
                raise _Refused from None
            self._begun, self._next = False, None
            self._accounts.append(account)
            if proxies:
                self._look_behind_proxies(account)
            super().on_headers_complete()
            account.cycle = self.cycle

        def on_body(self, body: bytes) -> None:
            self._fed = 0
            if not self.cycle.response_complete:  # else nobody reads it, and it is not kept
                try:
                    load.hold_bytes(len(body))
                except TenureError as refused:
                    self._why = refused
                    raise _Refused from None
                self._accounts[-1].held += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._fed = 0
            if not self.cycle.response_complete:
                self._end_half(self._accounts[-1])
            super().on_message_complete()

        def on_response_complete(self) -> None:
            if self._accounts:
                self._free(self._accounts.popleft())
            super().on_response_complete()
            if self.transport.is_closing():
                self._watch_reader()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_reader()

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.transport.is_closing():  # else it ends when the last byte is read
                self._stop_watching()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._watch_reader()

        def send_400_response(self, msg: str) -> None:
            """Answer what cannot be read; see law 1."""
            self._refuse(self._why or TenureError("REQUEST_MALFORMED", msg))

        def _look_behind_proxies(self, account: _Account) -> None:
            """Law 4, and the bound of requests by address."""
            scope: Any = self.scope
            address = client_address(self.headers, proxies, settings.forwarded_header)
            if address is not None:
                scope["client"] = (address, 0)
            scheme = forwarded_scheme(self.headers)
            if scheme is not None:
                scope["scheme"] = scheme
            client = scope["client"]
            self._asker = address_group(client[0] if client else "")
            if address is not None:
                try:
                    load.come_from(self._asker)
                except TenureError as refused:
                    self._why = refused
                    raise _Refused from None
                account.came = self._asker

        def _is_half_sent(self) -> bool:
            cycle = cast("RequestResponseCycle | None", self.cycle)
            return (
                cycle is not None
                and cycle.more_body
                and not cycle.response_complete
                and not self.transport.is_closing()
            )

        def _refuse(self, error: TenureError) -> None:
            """Answer with an error, unless that would stand inside another answer; the connection ends."""
            self._have()
            if self.transport.is_closing():
                return
            cycle = cast("RequestResponseCycle | None", self.cycle)
            if cycle is None or cycle.response_complete or not (cycle.response_started or self.pipeline):
                request_id = f"req_{secrets.token_hex(8)}"
                body = body_of(error, request_id)
                headers = {
                    "content-type": "application/json",
                    "content-length": str(len(body)),
                    "x-request-id": request_id,
                    "x-content-type-options": "nosniff",
                    "cache-control": "no-store",
                    **{name.lower(): value for name, value in headers_of(error).items()},
                    **({"strict-transport-security": HSTS} if self.scheme == "https" else {}),
                    "connection": "close",
                }
                head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                self.transport.write(STATUS_LINE[error.spec.status] + head.encode() + b"\r\n" + body)
            self._hang_up()
            self.transport.close()
            self._watch_reader()

        def _hang_up(self) -> None:
            """Tell whoever works on a request that its client has gone, and let them write nothing more. (uvicorn tells the newest
            of pipelined requests only: a stream before it would go on for good.)"""
            for account in self._accounts:
                if account.cycle is not None and not account.cycle.response_complete:
                    account.cycle.disconnected = True
                    account.cycle.message_event.set()

        def _end_half(self, account: _Account) -> None:
            if account.half is not None:
                load.end_body(account.half)
                account.half = None

        def _free(self, account: _Account) -> None:
            """Count off what was counted for a request."""
            self._end_half(account)
            if account.held:
                load.free_bytes(account.held)
            if account.came is not None:
                load.go_from(account.came)

        def _hold_headers(self, fed: int = 0) -> _Account:
            """Count what a request's line and headers hold, or while they are not complete at least so many bytes."""
            account = cast("_Account", self._next)
            more = max(most - self._left + HEADER_BYTES * len(self.headers), fed) - account.held
            if more > 0:
                load.hold_bytes(more)
                account.held += more
            return account

        def _spend(self, count: int) -> None:
            self._left -= count
            if self._left < 0:
                self._why = TenureError("REQUEST_MALFORMED", _LARGE)
                raise _Refused

        def _expect(self) -> None:
            self._hurry = self.loop.call_later(seconds, self._too_slow)

        def _have(self) -> None:
            if self._hurry is not None:
                self._hurry.cancel()
                self._hurry = None

        def _too_slow(self) -> None:
            self._hurry = None
            self.send_400_response("the request did not arrive in time")

        def _watch_reader(self) -> None:
            """Law 5, while answers wait for the client."""
            if self._reading is None and (unread := self.transport.get_write_buffer_size()):
                self._unread = unread
                self._reading = self.loop.call_later(settings.unread_seconds, self._check_reader)

        def _stop_watching(self) -> None:
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None

        def _check_reader(self) -> None:
            self._reading = None
            if self.transport.get_write_buffer_size() > max(self._unread - READ_BYTES_MIN, 0):
                load.refused[SLOW_READERS] += 1
                self.transport.abort()  # to close it would wait for the client to read
            else:
                self._watch_reader()

    return Wire
