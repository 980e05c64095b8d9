"""Where requests come in: each gets an id, and what is too large or of the wrong kind goes no further.

Laws:
1. A request's id is its X-Request-ID where that is printable and short, else one of ours; every answer repeats it.
2. A body is read only as far as it may be long.
3. Bodies are JSON, but on the routes that say otherwise.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

from tenure.errors import TenureError
from tenure.server.problems import body_of, headers_of
from tenure.server.settings import Settings

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

_ID = re.compile(rb"[\x21-\x7e]{1,255}")
_OTHER_BODIES = re.compile(r"/hooks/(?:github|slack|generic)/|/workflows/|/runner/leases/[^/]+/artifacts/")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class Entry:
    """See the laws above; the outermost part of the application."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if str(scope["type"]) != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _ID.fullmatch(given) else f"req_{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = request_id
        named = [(b"x-request-id", request_id.encode())]

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *named]
            await send(message)

        try:
            self._check(scope, headers)
        except TenureError as refused:
            await _refuse(refused, request_id, answered)
            return
        await self._app(scope, self._limited(receive), answered)

    def _check(self, scope: Any, headers: dict[bytes, bytes]) -> None:
        settings = self._settings
        if sum(len(name) + len(value) for name, value in scope["headers"]) > settings.header_bytes_max:
            raise TenureError("REQUEST_MALFORMED", "the headers are too large")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise TenureError("REQUEST_MALFORMED", "Content-Length is no number")
        other = _OTHER_BODIES.match(scope["path"])
        if not other and int(length) > settings.body_bytes_max:
            raise TenureError("PAYLOAD_TOO_LARGE", f"a body has at most {settings.body_bytes_max} bytes")
        has_body = int(length) > 0 or b"transfer-encoding" in headers
        if scope["method"] in _WITH_BODY and has_body and not other:
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                raise TenureError("UNSUPPORTED_MEDIA_TYPE")

    def _limited(self, receive: Receive) -> Receive:
        """A body that is longer than it said, or did not say."""
        left = self._settings.body_bytes_max

        async def limited() -> Any:
            nonlocal left
            message = await receive()
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise TenureError("PAYLOAD_TOO_LARGE")
            return message

        return limited


async def _refuse(error: TenureError, request_id: str, send: Send) -> None:
    headers = {"content-type": "application/json", **headers_of(error)}
    await send(
        {
            "type": "http.response.start",
            "status": error.spec.status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body_of(error, request_id), "more_body": False})
