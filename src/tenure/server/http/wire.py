"""The bytes of HTTP, before there is a request: what is too large, too slow or no HTTP at all.

Laws:
1. What cannot be read is answered with the one shape of errors, and its connection ends.
2. A request's line and headers are bounded in bytes and in time, and nothing of them is kept beyond that.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenure.errors import TenureError
from tenure.server.problems import body_of

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from tenure.server.settings import Settings

_LARGE = "the headers are too large"


class _Refused(Exception):
    """Ends the parsing; the parser makes an error of its own of it."""


def wire(settings: Settings) -> type[HttpToolsProtocol]:
    """The protocol of a server's connections, with its limits."""
    most, seconds = settings.header_bytes_max, settings.header_seconds

    class Wire(HttpToolsProtocol):
        """See the laws above."""

        _begun = False
        """Whether a request has begun whose headers are not complete: nearly all come whole, and need no timer."""
        _left = most
        _fed = 0
        """Bytes that came while the headers were not complete: a header without end shows in nothing else."""
        _why = ""
        _hurry: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
            super().connection_made(transport)
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._have()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._begun and not self.transport.is_closing():  # its headers are not complete
                if self._hurry is None:
                    self._expect()
                self._fed += len(data)
                if self._fed > 2 * most:
                    self.send_400_response(_LARGE)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._left = most
            self._begun = True

        def on_url(self, url: bytes) -> None:
            self._spend(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._spend(len(name) + len(value))
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._begun = False
            self._have()
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            """Answer what cannot be read; see law 1."""
            self._have()
            if self.transport.is_closing():
                return
            if (
                cycle := cast("RequestResponseCycle | None", self.cycle)
            ) is None or cycle.response_complete:  # else it would stand inside another answer
                request_id = f"req_{secrets.token_hex(8)}"
                body = body_of(TenureError("REQUEST_MALFORMED", self._why or msg), request_id)
                head = (
                    "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
                    "x-content-type-options: nosniff\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
                )
                self.transport.write(head.encode() + body)
            self.transport.close()

        def _spend(self, count: int) -> None:
            self._left -= count
            if self._left < 0:
                self._why = _LARGE
                raise _Refused

        def _expect(self) -> None:
            self._fed = 0
            self._hurry = self.loop.call_later(seconds, self._too_slow)

        def _have(self) -> None:
            if self._hurry is not None:
                self._hurry.cancel()
                self._hurry = None

        def _too_slow(self) -> None:
            self._hurry = None
            self.send_400_response("the request did not arrive in time")

    return Wire
