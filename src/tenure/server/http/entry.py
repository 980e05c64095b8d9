"""Where requests come in: each gets an id, and what is too large, too slow or of the wrong kind goes no further.

Laws:
1. A request's id is its X-Request-ID where that is printable and short, else one of ours; every answer repeats it.
2. A body is read only as far as it may be long, and only for as long as it may take. A client that hangs up before its
   end is no fault of the server: the request is refused, and nothing is logged as a failure.
3. Bodies are JSON, nested no deeper than they may be and with no name twice in one object, but on the routes that say
   otherwise (`_others`).
4. Every answer says that it is not to be kept, guessed at or framed, unless its route says something else.
5. A request that was refused before its body was read ends its connection: nobody reads the rest.
6. HEAD is answered as GET is, without the body; OPTIONS and 405 list the methods there are.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import msgspec
import structlog

from tenure.canonical import DuplicateName, decode_json
from tenure.errors import TenureError
from tenure.limits import ARTIFACT_BYTES_MAX, WORKFLOW_BYTES_MAX
from tenure.server.http.hsts import HEADER as HSTS_HEADER
from tenure.server.http.methods import methods_at
from tenure.server.observe.tracing import Tracing
from tenure.server.problems import body_of, headers_of
from tenure.server.settings import Settings
from tenure.server.work import LARGE_BYTES, run_aside

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

    from tenure.server.observe.observing import Observer


log = structlog.get_logger(__name__)

_ID = re.compile(rb"[\x21-\x7e]{1,255}")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A string of JSON, or the rest of a body with an open one. It never goes back over what it has read."""
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_DEPTHS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
"""Brackets as the signed bytes +1 and -1."""
_DEPTHS_AT_ONCE = 8 * 1024
_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_UNLESS_SAID = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class _Body(msgspec.Struct, frozen=True):
    """What a route takes."""

    bytes_max: int
    json: bool
    seconds_max: float


class Entry:
    """See the laws above; the outermost part of the application."""

    def __init__(self, app: ASGIApp, settings: Settings, observer: Observer) -> None:
        self._app = app
        self._observer = observer
        self._settings = settings
        seconds = settings.body_seconds
        self._usual = _Body(settings.body_bytes_max, True, seconds)
        self._others = (
            (
                re.compile(r"/hooks/(?:github|slack|generic)/"),
                _Body(settings.hook_body_bytes_max, False, seconds),
            ),
            (
                re.compile(r"/workflows/"),
                _Body(max(WORKFLOW_BYTES_MAX, settings.body_bytes_max), False, seconds),
            ),
            (re.compile(r"/runner/leases/[^/]+/artifacts/"), _Body(ARTIFACT_BYTES_MAX, False, 10 * seconds)),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if str(scope["type"]) != "http":
            await self._app(scope, receive, send)
            return
        headers, method = dict(scope["headers"]), str(scope.get("method"))
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _ID.fullmatch(given) else f"req_{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = request_id
        named = (b"x-request-id", request_id.encode())
        began, status = time.perf_counter(), 0
        sent: dict[bytes, bytes] = {}
        tracing = Tracing(method, headers, request_id)

        async def answered(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                said: list[tuple[bytes, bytes]] = list(message["headers"])
                if status == 405:
                    allow = (methods_at(scope["path"]) or "").encode()
                    said = [*(pair for pair in said if pair[0] != b"allow"), (b"allow", allow)]
                sent = dict(said)
                said += (named, *_ALWAYS, *(pair for pair in _UNLESS_SAID if pair[0] not in sent))
                if scope["scheme"] == "https":
                    said.append(HSTS_HEADER)
                message["headers"] = said
            await send(message)

        try:
            try:
                body = self._check(scope, headers)
            except TenureError as refused:
                await _refuse(refused, request_id, answered)
            else:
                if method == "HEAD":
                    scope = cast("Scope", {**scope, "method": "GET"})
                    await self._app(scope, self._limited(receive, body), _without_body(answered))
                elif method == "OPTIONS" and (allow := methods_at(scope["path"])):
                    await _say_methods(allow, answered)
                else:
                    await self._app(scope, self._limited(receive, body), answered)
        finally:
            seconds = time.perf_counter() - began
            tracing.end(scope, status)
            if "keyed" in scope["state"]:
                self._observer.answered(scope["state"], status, sent, scope["user"].tenant)
            self._observer.metrics.answered(scope.get("path_template"), method, status, seconds)
            if self._settings.log_requests:
                _tell(scope, request_id, status, seconds)

    def _check(self, scope: Any, headers: dict[bytes, bytes]) -> _Body:
        """Refuse what the headers tell already."""
        body = next((other for path, other in self._others if path.match(scope["path"])), self._usual)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise TenureError("REQUEST_MALFORMED", "Content-Length is no number")
        if len(length) > 18 or int(length) > body.bytes_max:
            raise too_large(body.bytes_max)
        if body.json and scope["method"] in _WITH_BODY and (int(length) or b"transfer-encoding" in headers):
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                sent = kind[:60].decode("latin-1") or "without a content type"
                raise TenureError(
                    "UNSUPPORTED_MEDIA_TYPE", f"the body is {sent}; send it as application/json"
                )
        return body

    def _limited(self, receive: Receive, body: _Body) -> Receive:
        """The rest of laws 2 and 3: what only the body itself tells."""
        left, pieces, until = body.bytes_max, [b""], None
        depth_max, seconds = self._settings.depth_max, body.seconds_max

        async def limited() -> Any:
            nonlocal left, until
            if until is None:
                until = asyncio.get_running_loop().time() + seconds
            if left == _READ:
                return await receive()  # what comes now is that the client has gone
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise TenureError(
                    "REQUEST_MALFORMED", "the body did not arrive in time", close=True
                ) from None
            if message["type"] != "http.request":
                raise TenureError(
                    "REQUEST_MALFORMED", "the client closed the connection before its body was complete"
                )
            piece = message.get("body", b"")
            left -= len(piece)
            if left < 0:
                raise too_large(body.bytes_max)
            more = message.get("more_body", False)
            if body.json:
                pieces.append(piece)
                if not more:
                    whole = b"".join(pieces)
                    pieces.clear()
                    if len(whole) > LARGE_BYTES:
                        await run_aside(check_body, whole, depth_max)
                    else:
                        check_body(whole, depth_max)
            if not more:
                left = _READ
            return message

        return limited


_READ = -1
"""In place of what is left of a body that has been read."""


def too_large(most: int) -> TenureError:
    """A body has more bytes than it may."""
    return TenureError("PAYLOAD_TOO_LARGE", f"a body has at most {most} bytes here", close=True)


def check_body(body: bytes, most: int) -> None:
    """Refuse a body whose form alone is wrong."""
    check_depth(body, most)
    check_names(body)


def check_depth(body: bytes, most: int) -> None:
    """Refuse a body that is nested too deeply, in linear time. Few have so many brackets that it has to be looked at
    closely."""
    if body.count(b"[") + body.count(b"{") <= most:
        return
    steps = _STRING.sub(b"", body).translate(_DEPTHS, _NO_BRACKETS)
    depth = 0
    for at in range(0, len(steps), _DEPTHS_AT_ONCE):
        *_, depth = depths = tuple(accumulate(array("b", steps[at : at + _DEPTHS_AT_ONCE]), initial=depth))
        if max(depths) > most:
            raise TenureError("REQUEST_MALFORMED", f"the body is nested deeper than {most} levels")


def check_names(body: bytes) -> None:
    """Refuse a body that has a name twice in one object; what is no JSON at all is told by the route."""
    try:
        decode_json(body)
    except DuplicateName as twice:
        raise TenureError("REQUEST_MALFORMED", f"{twice}; send it once") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return


def _tell(scope: Any, request_id: str, status: int, seconds: float) -> None:
    """A request's line in the log: nothing of its body, of its query or of its credential but the key's id."""
    who = scope.get("user")
    log.info(
        "request",
        request_id=request_id,
        method=scope["method"],
        route=scope.get("path_template"),
        status=status,
        ms=round(seconds * 1000, 1),
        key_id=None if who is None else who.key_id,
        tenant=None if who is None else who.tenant,
    )


def _without_body(send: Send) -> Send:
    """An answer to HEAD: it is over with its headers."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return sent


async def _say_methods(allow: str, send: Send) -> None:
    headers = [(b"allow", allow.encode())]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse(error: TenureError, request_id: str, send: Send) -> None:
    headers = {"content-type": "application/json", **headers_of(error), "connection": "close"}
    body = body_of(error, request_id)
    headers["content-length"] = str(len(body))
    await send(
        {
            "type": "http.response.start",
            "status": error.spec.status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})
