"""Requests of a client to its server.

Laws:
1. Every POST carries an idempotency key, the caller's or a random one. So a request whose response was lost is sent again, and has
   one effect.
2. A refusal of the server is raised as the same `TenureError` that an engine would raise: code, message, details.
3. If the server is unreachable or asks to retry later, the request is sent again until `patience_seconds` have passed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from tenure.canonical import encode_json
from tenure.errors import CODES, Detail, TenureError
from tenure.shapes.pages import Page

T = TypeVar("T")

KEY_VARIABLE = "TENURE_KEY"
PATIENCE_SECONDS = 30.0
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 3.0
_AGAIN = frozenset({429, 502, 503})


class _ErrorFields(msgspec.Struct):
    code: str
    message: str = ""
    details: tuple[Detail, ...] = ()
    request_id: str = ""


class _ErrorBody(msgspec.Struct):
    error: _ErrorFields


class Transport:
    """An async context manager."""

    def __init__(
        self,
        server: str,
        key: str | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        verify: bool | str = True,
    ) -> None:
        """`key` is a credential `tn_...`; without one TENURE_KEY is used. `verify`: a file of certificates to trust."""
        key = key or os.environ.get(KEY_VARIABLE)
        if not server.startswith(("http://", "https://")):
            raise TenureError(
                "INVALID_INPUT", f"a server's address must begin with http:// or https://, unlike {server!r}"
            )
        headers = {"Accept": "application/json", "User-Agent": "tenure-client"}
        if key:
            headers["Authorization"] = f"Bearer {key.strip()}"
        self.server = server.rstrip("/")
        self._patience = patience_seconds
        self._http = httpx.AsyncClient(
            base_url=self.server, headers=headers, timeout=patience_seconds, verify=verify
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        content_type: str = "application/json",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool = True,
    ) -> httpx.Response:
        """Send a request and return the response. A refusal is raised; without `again`, a retryable one too."""
        sent = {name: value for name, value in (params or {}).items() if value is not None}
        extra = dict(headers or {})
        if content is None and body is not None:
            try:
                content = encode_json(body)
            except (TypeError, ValueError, OverflowError, RecursionError) as fault:
                raise TenureError("INVALID_INPUT", f"what is sent must be JSON: {fault}") from fault
        if content is not None:
            extra["Content-Type"] = content_type
        if method == "POST":
            extra["Idempotency-Key"] = key or f"client-{secrets.token_hex(12)}"
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self._patience, PAUSE_SECONDS_MIN
        while True:
            last = loop.time() + pause >= until
            try:
                answer = await self._http.request(method, path, params=sent, content=content, headers=extra)
            except httpx.TransportError as fault:
                if last:
                    raise TenureError(
                        "UPSTREAM_UNAVAILABLE",
                        f"{self.server} cannot be reached: {str(fault) or type(fault).__name__}",
                    ) from fault
            else:
                if not again or answer.status_code not in _AGAIN or last or not _refused(answer).retryable:
                    if answer.status_code >= 400:
                        raise _refused(answer)
                    return answer
                pause = max(pause, float(answer.headers.get("retry-after", 0)))
            await asyncio.sleep(min(pause, max(until - loop.time(), 0)))
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def get(self, path: str, answer: type[T], **params: Any) -> T:
        return msgspec.json.decode((await self.ask("GET", path, params=params)).content, type=answer)

    async def send(self, method: str, path: str, answer: type[T], body: Any = None, **options: Any) -> T:
        """Send a request that changes something, and return the decoded answer."""
        return msgspec.json.decode(
            (await self.ask(method, path, body=body, **options)).content or b"null", type=answer
        )

    async def pages(self, path: str, item: type[T], *, limit: int | None = None, **params: Any) -> list[T]:
        """A whole list, or its first `limit` items, read page by page."""
        return (await self.part(path, item, limit=limit, **params))[0]

    async def part(
        self, path: str, item: type[T], *, limit: int | None = None, cursor: str | None = None, **params: Any
    ) -> tuple[list[T], str | None]:
        """Items of a list after a cursor, read page by page, and the cursor of the items that follow them."""
        found: list[T] = []
        while limit is None or len(found) < limit:
            size = 200 if limit is None else min(limit - len(found), 200)
            page = await self.get(path, Page[item], **params, limit=size, cursor=cursor)  # type: ignore[valid-type]  # known when it is called
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        return found, cursor

    async def lines(self, path: str, headers: Mapping[str, str], **params: Any) -> AsyncIterator[str]:
        """The lines of a stream."""
        timeout = httpx.Timeout(self._patience, read=60.0)
        async with self._http.stream(
            "GET", path, params=params, headers=dict(headers), timeout=timeout
        ) as answer:
            if answer.status_code >= 400:
                await answer.aread()
                raise _refused(answer)
            async for line in answer.aiter_lines():
                yield line

    async def pieces(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """The body of a response, in pieces. It is not asked for again after the first byte."""
        given = {name: value for name, value in params.items() if value is not None}
        async with self._http.stream("GET", path, params=given) as answer:
            if answer.status_code >= 400:
                await answer.aread()
                raise _refused(answer)
            try:
                async for piece in answer.aiter_bytes():
                    yield piece
            except httpx.TransportError as fault:
                raise TenureError(
                    "UPSTREAM_UNAVAILABLE", f"the response of {self.server} broke off: {fault!r}"
                ) from fault


def _refused(answer: httpx.Response) -> TenureError:
    """The error of a response, as an engine would raise it."""
    try:
        problem = msgspec.json.decode(answer.content, type=_ErrorBody).error
    except msgspec.DecodeError:
        return TenureError(
            "UPSTREAM_UNAVAILABLE",
            f"the server responded with status {answer.status_code} and no Tenure error code; check that the URL is a Tenure server",
        )
    if problem.code not in CODES:  # a newer server knows more than we do
        code = "INTERNAL_ERROR" if answer.status_code >= 500 else "INVALID_INPUT"
        return TenureError(code, f"{problem.code}: {problem.message}", problem.details)
    return TenureError(
        problem.code,
        CODES[problem.code].plain_message(problem.message),
        problem.details,
        request_id=problem.request_id,
    )


class RemoteGroup:
    """A group of an engine, over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def _post(self, field: str, path: str, body: Any = None) -> str:
        """Send a POST, and return one field of the answer as text."""
        return str((await self._transport.send("POST", path, dict[str, Any], body))[field])


def join_path(*parts: str) -> str:
    """A path of percent-encoded segments."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def drop_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
