"""The routes of the status server.

Laws:
1. There are only reads: `GET /runs/{id}/status`, `/inbox/stats`, `/proposals/pending` and `/events/stream`, each with a key; `/healthz`, and a page.
2. The tenant comes from the key, never from the request.
3. Every answer with status 400 or above has the shape of the ordinary server's errors. What was not published is 404 with Retry-After; storage out
   of reach is 502 UPSTREAM_UNAVAILABLE.
4. An address that sends many wrong keys, and a key that sends many requests, are refused before the storage is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

import msgspec

from tenure.errors import Detail, TenureError
from tenure.logs import get_logger
from tenure.outbound.document_store import VersionedDocument
from tenure.shapes.published import KeyDigest
from tenure.status_server.event_stream import EventStreams
from tenure.status_server.page import PAGE_HEADERS, find_page_file
from tenure.status_server.published_reader import PublishedReader

log = get_logger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUESTS_PER_SECOND, REQUESTS_BURST = 100.0, 500.0
REFUSALS_PER_SECOND, REFUSALS_BURST = 1.0, 20.0
BUCKETS_MAX = 10_000
STREAMS_PER_TENANT_MAX = 500
UNREAD_SECONDS_MAX = 60.0
"""How long a stream waits for a client that does not read."""
_RUN_STATUS = re.compile(r"/runs/([^/]{1,64})/status")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,255}")
_READS = frozenset({"GET", "HEAD"})
_JSON = {"Content-Type": "application/json", "Cache-Control": "private, no-cache"}


class StatusApp:
    """The application, as ASGI."""

    def __init__(self, reader: PublishedReader, *, behind_proxy: bool = False) -> None:
        """`behind_proxy`: the address of a client is the last one in X-Forwarded-For, which the proxy has added."""
        self._reader = reader
        self._behind_proxy = behind_proxy
        self._streams = EventStreams(reader)
        self._streams_of: dict[str, int] = {}
        self._requests = _Buckets(REQUESTS_PER_SECOND, REQUESTS_BURST)
        self._refusals = _Buckets(REFUSALS_PER_SECOND, REFUSALS_BURST)
        self.stopping = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(8)}"
        try:
            await self._answer(_Exchange(scope, headers, request_id, receive, send))
        except TenureError as refused:
            await _send_error(send, refused, request_id, scope["method"])
        except Exception:
            log.error("request_failed", request_id=request_id, traceback=traceback.format_exc())
            await _send_error(send, TenureError("INTERNAL_ERROR"), request_id, scope["method"])

    async def _answer(self, exchange: _Exchange) -> None:
        path = exchange.scope["path"]
        if exchange.method not in _READS:
            raise TenureError(
                "METHOD_NOT_ALLOWED",
                f"{exchange.method} is not allowed: this server only reads",
                allow="GET, HEAD",
            )
        if path == "/healthz":
            await exchange.send_body(b'{"status":"ok"}', _JSON)
            return
        if path == "/page" or path.startswith("/page/"):
            found = await asyncio.to_thread(find_page_file, path)
            if found is None:
                raise TenureError("NOT_FOUND")
            await exchange.send_body(found.body, {**PAGE_HEADERS, "Content-Type": found.media_type})
            return
        run = _RUN_STATUS.fullmatch(path)
        if run is None and path not in ("/inbox/stats", "/proposals/pending", "/events/stream"):
            raise TenureError("NOT_FOUND")
        key = await self._authenticate(exchange)
        if run is not None:
            await _send_document(exchange, await self._reader.status(key.tenant, run[1]))
        elif path == "/inbox/stats":
            await _send_document(exchange, await self._reader.inbox(key.tenant))
        elif path == "/proposals/pending":
            await _send_document(exchange, await self._reader.proposals(key.tenant))
        else:
            await self._stream(exchange, key)

    async def _authenticate(self, exchange: _Exchange) -> KeyDigest:
        client = exchange.scope.get("client")
        address = client[0] if client else ""
        if self._behind_proxy:
            address = exchange.headers.get("x-forwarded-for", "").rpartition(",")[2].strip() or address
        self._refusals.check(address, "too many wrong credentials came from this address")
        try:
            key = await self._reader.authenticate(exchange.headers.get("authorization", ""))
        except TenureError as refused:
            if refused.code == "UNAUTHENTICATED":
                self._refusals.take(address)
            raise
        self._requests.check(key.id, "")
        self._requests.take(key.id)
        return key

    # ----------------------------------------------------------------------------------------------- streams

    async def _stream(self, exchange: _Exchange, key: KeyDigest) -> None:
        if self._streams_of.get(key.tenant, 0) >= STREAMS_PER_TENANT_MAX:
            raise TenureError("TOO_MANY_STREAMS")
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"), max_num_fields=20)
        last_id = exchange.headers.get("last-event-id") or next(iter(query.get("last_event_id", [])), None)
        frames = await self._streams.open(key, last_id)
        self._streams_of[key.tenant] = self._streams_of.get(key.tenant, 0) + 1
        sending = asyncio.ensure_future(exchange.send_frames(frames))
        ends = [
            asyncio.ensure_future(exchange.until_gone()),
            asyncio.ensure_future(self.stopping.wait()),
        ]
        try:
            await asyncio.wait([sending, *ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, *ends):
                task.cancel()
            await asyncio.gather(sending, *ends, return_exceptions=True)
            await frames.aclose()  # type: ignore[attr-defined]  # it is a generator
            self._streams_of[key.tenant] -= 1
            if not self._streams_of[key.tenant]:
                del self._streams_of[key.tenant]
        with suppress(Exception):
            await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})


class _Exchange:
    """A request, and the way to answer it."""

    def __init__(
        self, scope: Scope, headers: dict[str, str], request_id: str, receive: Receive, send: Send
    ) -> None:
        self.scope = scope
        self.headers = headers
        self.request_id = request_id
        self.send = send
        self._receive = receive

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    async def send_body(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        await _send(self.send, status, body, headers, self.request_id, self.method)

    async def send_frames(self, frames: Any) -> None:
        start = {
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }
        await self.send(
            {"type": "http.response.start", "status": 200, "headers": _encode_headers(start, self.request_id)}
        )
        async for data in frames:
            async with asyncio.timeout(UNREAD_SECONDS_MAX):
                await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class _Buckets:
    """Token buckets by name. Their number is bounded: the oldest one is dropped for a new one."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}

    def _left(self, name: str) -> float:
        left, at = self._buckets.get(name, (self._burst, time.monotonic()))
        return min(left + (time.monotonic() - at) * self._rate, self._burst)

    def check(self, name: str, why: str) -> None:
        if self._left(name) < 1:
            raise TenureError("RATE_LIMITED", why, retry_after=1)

    def take(self, name: str) -> None:
        left = self._left(name) - 1
        self._buckets.pop(name, None)
        if len(self._buckets) >= BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = (left, time.monotonic())


async def _send_document(exchange: _Exchange, document: VersionedDocument) -> None:
    """A document, or 304 if the client has it."""
    tag = f'"{hashlib.sha256(document.body).hexdigest()[:32]}"'
    headers = {**_JSON, "ETag": tag}
    given = [one.strip().removeprefix("W/") for one in exchange.headers.get("if-none-match", "").split(",")]
    if tag in given:
        await exchange.send_body(b"", headers, 304)
    else:
        await exchange.send_body(document.body, headers)


class _ErrorFields(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    details: tuple[Detail, ...]
    type: str
    request_id: str
    retryable: bool


async def _send_error(send: Send, error: TenureError, request_id: str, method: str) -> None:
    fields = _ErrorFields(
        code=error.code,
        message=error.message,
        details=error.details,
        type=f"/errors/{error.code}",
        request_id=request_id,
        retryable=error.retryable,
    )
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    if "retry_after" in error.data:
        headers["Retry-After"] = str(error.data["retry_after"])
    if "allow" in error.data:
        headers["Allow"] = str(error.data["allow"])
    if error.spec.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    with suppress(RuntimeError):  # the answer had begun
        await _send(
            send, error.spec.status, msgspec.json.encode({"error": fields}), headers, request_id, method
        )


async def _send(
    send: Send, status: int, body: bytes, headers: dict[str, str], request_id: str, method: str
) -> None:
    sized = headers if status == 304 else {**headers, "Content-Length": str(len(body))}
    await send(
        {"type": "http.response.start", "status": status, "headers": _encode_headers(sized, request_id)}
    )
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})


def _encode_headers(headers: dict[str, str], request_id: str) -> list[tuple[bytes, bytes]]:
    common = {
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
        "X-Request-ID": request_id,
    }
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in {**common, **headers}.items()]
