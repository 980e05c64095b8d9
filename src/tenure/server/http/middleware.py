"""The outermost part of the application: request ids, limits of bodies, and the headers of every answer.

Laws:
1. A request's id is its X-Request-ID if that is printable and short, otherwise one of ours. Every answer repeats it.
2. A body is read up to its size limit and its time limit. If a client disconnects before the end of its body, the request is
   refused, and nothing is logged as a failure.
3. Bodies are JSON, not nested too deeply and without a duplicate name in an object, except on the routes in `_limits_by_path`.
4. Every answer forbids caching, sniffing and framing, unless its route says otherwise.
5. A request that is refused before its body is read ends its connection, because nobody reads the rest.
6. HEAD is answered like GET, without the body. OPTIONS and 405 list the allowed methods.
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
from tenure.limits import (
    ARTIFACT_BYTES_MAX,
    ARTIFACT_PART_BYTES_MAX,
    LOG_CHUNK_BYTES_MAX,
    TEST_REPORT_BYTES_MAX,
    WORKFLOW_BYTES_MAX,
)
from tenure.server.auth.roles import methods_at
from tenure.server.error_responses import encode_error, error_headers
from tenure.server.observe.tracing import RequestSpan
from tenure.server.settings import Settings
from tenure.work_pool import LARGE_BYTES, run_in_pool

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

    from tenure.server.observe.observer import Observer


log = structlog.get_logger(__name__)

_ID = re.compile(rb"[\x21-\x7e]{1,255}")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A string of JSON, or the rest of a body with an unclosed one. It never backtracks."""
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_DEPTHS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
"""Brackets as the signed bytes +1 and -1."""
_DEPTHS_CHUNK = 8 * 1024
HSTS = "max-age=31536000"
"""Sent if the client came by TLS, to this server or to a trusted proxy that says so. Subdomains may belong to others."""
_COMMON_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_DEFAULT_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class _BodyLimits(msgspec.Struct, frozen=True):
    """The limits of a route's bodies."""

    bytes_max: int
    json: bool
    seconds_max: float


class RequestMiddleware:
    def __init__(self, app: ASGIApp, settings: Settings, observer: Observer) -> None:
        self._app = app
        self._observer = observer
        self._settings = settings
        seconds = settings.body_seconds
        self._limits = _BodyLimits(settings.body_bytes_max, True, seconds)
        self._limits_by_path = (
            (
                re.compile(r"/hooks/(?:github|slack|generic|servicenow)/"),
                _BodyLimits(settings.hook_body_bytes_max, False, seconds),
            ),
            (
                re.compile(r"/workflows/"),
                _BodyLimits(max(WORKFLOW_BYTES_MAX, settings.body_bytes_max), False, seconds),
            ),
            (
                re.compile(r"/runner/leases/[^/]+/artifacts/"),
                _BodyLimits(ARTIFACT_BYTES_MAX, False, 10 * seconds),
            ),
            (
                re.compile(r"/runner/leases/[^/]+/uploads/[^/]+/parts/"),
                _BodyLimits(ARTIFACT_PART_BYTES_MAX, False, 10 * seconds),
            ),
            (
                re.compile(r"/runner/leases/[^/]+/log-chunks/"),
                _BodyLimits(LOG_CHUNK_BYTES_MAX, False, seconds),
            ),
            (
                re.compile(r"/runner/leases/[^/]+/report$"),
                _BodyLimits(TEST_REPORT_BYTES_MAX, True, seconds),
            ),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        tracing = RequestSpan(method, headers, request_id)

        async def answered(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                headers: list[tuple[bytes, bytes]] = list(message["headers"])
                if status == 405:
                    allow = (methods_at(scope["path"]) or "").encode()
                    headers = [*(pair for pair in headers if pair[0] != b"allow"), (b"allow", allow)]
                sent = dict(headers)
                headers += (
                    named,
                    *_COMMON_HEADERS,
                    *(pair for pair in _DEFAULT_HEADERS if pair[0] not in sent),
                )
                if scope["scheme"] == "https":
                    headers.append((b"strict-transport-security", HSTS.encode()))
                message["headers"] = headers
            await send(message)

        try:
            try:
                body = self._check(scope, headers)
            except TenureError as refused:
                error_body = encode_error(refused, request_id)
                await send_json(
                    answered,
                    refused.spec.status,
                    {**error_headers(refused), "connection": "close"},
                    error_body,
                )
            else:
                if method == "HEAD":
                    scope = cast("Scope", {**scope, "method": "GET"})
                    await self._app(scope, self._limited(receive, body), _without_body(answered))
                elif method == "OPTIONS" and (allow := methods_at(scope["path"])):
                    await _answer_options(allow, answered)
                else:
                    await self._app(scope, self._limited(receive, body), answered)
        finally:
            seconds = time.perf_counter() - began
            tracing.end(scope, status)
            if "keyed" in scope["state"]:
                self._observer.record_answer(scope["state"], status, sent, scope["user"].tenant)
            self._observer.metrics.count_request(scope.get("path_template"), method, status, seconds)
            if self._settings.log_requests:
                _log_request(scope, request_id, status, seconds)

    def _check(self, scope: Any, headers: dict[bytes, bytes]) -> _BodyLimits:
        """The limits of the request's body; refuse what the headers already show to be wrong."""
        body = next(
            (other for path, other in self._limits_by_path if path.match(scope["path"])), self._limits
        )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise TenureError("REQUEST_MALFORMED", "Content-Length is not a number")
        if len(length) > 18 or int(length) > body.bytes_max:
            raise body_too_large(body.bytes_max)
        if body.json and scope["method"] in _WITH_BODY and (int(length) or b"transfer-encoding" in headers):
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                sent = kind[:60].decode("latin-1") or "without a content type"
                raise TenureError(
                    "UNSUPPORTED_MEDIA_TYPE", f"the body is {sent}; send it as application/json"
                )
        return body

    def _limited(self, receive: Receive, body: _BodyLimits) -> Receive:
        """`receive` with laws 2 and 3."""
        left, pieces, until = body.bytes_max, [b""], None
        depth_max, seconds = self._settings.depth_max, body.seconds_max

        async def limited() -> Any:
            nonlocal left, until
            if until is None:
                until = asyncio.get_running_loop().time() + seconds
            if left == _READ:
                return await receive()  # only a disconnect can follow
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
                raise body_too_large(body.bytes_max)
            more = message.get("more_body", False)
            if body.json:
                pieces.append(piece)
                if not more:
                    whole = b"".join(pieces)
                    pieces.clear()
                    if len(whole) > LARGE_BYTES:
                        await run_in_pool(check_body, whole, depth_max)
                    else:
                        check_body(whole, depth_max)
            if not more:
                left = _READ
            return message

        return limited


_READ = -1
"""The value of `left` once the whole body has been read."""


def body_too_large(most: int) -> TenureError:
    return TenureError("PAYLOAD_TOO_LARGE", f"a body has at most {most} bytes here", close=True)


def check_body(body: bytes, most: int) -> None:
    check_depth(body, most)
    check_names(body)


def check_depth(body: bytes, most: int) -> None:
    """Refuse a body that is nested too deeply, in linear time. Bodies with few brackets are accepted by their count alone."""
    if body.count(b"[") + body.count(b"{") <= most:
        return
    steps = _STRING.sub(b"", body).translate(_DEPTHS, _NO_BRACKETS)
    depth = 0
    for at in range(0, len(steps), _DEPTHS_CHUNK):
        *_, depth = depths = tuple(accumulate(array("b", steps[at : at + _DEPTHS_CHUNK]), initial=depth))
        if max(depths) > most:
            raise TenureError("REQUEST_MALFORMED", f"the body is nested deeper than {most} levels")


def check_names(body: bytes) -> None:
    """Refuse a body that has a name twice in one object. The route refuses what is not JSON."""
    try:
        decode_json(body)
    except DuplicateName as twice:
        raise TenureError("REQUEST_MALFORMED", f"{twice}; send it once") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return


def _log_request(scope: Any, request_id: str, status: int, seconds: float) -> None:
    """Log a request: the key's id, and nothing else of its credential, its query or its body."""
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
    """`send` for HEAD: the headers, and an empty body."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return sent


async def _answer_options(allow: str, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", allow.encode())]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_json(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    """Send an answer with a body in JSON; a 304 has no body."""
    sent = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    if status != 304:
        sent += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body, "more_body": False})
