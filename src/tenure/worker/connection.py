"""Requests to a server, repeated until there is a response.

Laws:
1. If the connection breaks, the server cannot be reached, or it responds with a retryable error (429, and retryable ones from 500 on),
   the same request is sent again. Any other refusal is raised at once.
2. A request with a time limit fails with UPSTREAM_UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import IO, Any

import httpx
import msgspec

from tenure.errors import CODES, TenureError
from tenure.logs import get_logger

log = get_logger(__name__)

RESPONSE_SECONDS = 20.0
"""How long a server may take to respond, in addition to the time it is asked to wait."""
CONNECT_SECONDS = 5.0
GIVE_UP_SECONDS = 30.0
PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 2.0
CONNECTIONS = 8
DOWNLOAD_BYTES = 1024 * 1024
"""Bytes of a download that are written at once."""
KEEPALIVE_SECONDS = 3.0
"""How long an idle connection is reused. Servers keep connections longer, so a reused one is still open."""


class _Problem(msgspec.Struct):
    code: str
    message: str
    retryable: bool = False


class _Refusal(msgspec.Struct):
    error: _Problem


class RunnerConnection:
    def __init__(self, server: str, key: str, *, connections: int = CONNECTIONS) -> None:
        if not server.startswith(("http://", "https://")):
            raise TenureError("INVALID_INPUT", f"server {server!r} must begin with http:// or https://")
        self._server = server.rstrip("/")
        self._key = key
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(RESPONSE_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(
                max_connections=connections,
                max_keepalive_connections=connections,
                keepalive_expiry=KEEPALIVE_SECONDS,
            ),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        content_type: str = "application/json",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        wait_seconds: float = 0.0,
        give_up_seconds: float | None = GIVE_UP_SECONDS,
    ) -> bytes:
        """Send a request and return the response's body. It is authorized by the lease's `token`, or else by the runner's key. The server
        may take `wait_seconds` longer than usual. After `give_up_seconds` the request is not repeated; None: never give up."""
        sent = {
            "Authorization": f"Bearer {token or self._key}",
            "Content-Type": content_type,
            **(headers or {}),
        }
        began = time.monotonic()
        pause = PAUSE_SECONDS_MIN
        timeout = httpx.Timeout(RESPONSE_SECONDS + wait_seconds, connect=CONNECT_SECONDS)
        while True:
            try:
                response = await self._http.request(
                    method, self._server + path, headers=sent, content=content, timeout=timeout
                )
            except httpx.TransportError as broken:
                fault = TenureError("UPSTREAM_UNAVAILABLE", f"{self._server} cannot be reached: {broken!r}")
            except httpx.InvalidURL as wrong:
                raise TenureError("INVALID_INPUT", f"{self._server}: {wrong}") from wrong
            else:
                if response.status_code < 400:
                    return response.content
                fault = _to_error(response)
                if not fault.retryable:
                    raise fault
            if give_up_seconds is not None and time.monotonic() - began + pause > give_up_seconds:
                raise fault
            log.warning("server_not_reached", server=self._server, error=str(fault))
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def download(
        self,
        path: str,
        into: IO[bytes],
        *,
        token: str,
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> dict[str, str]:
        """Write the body of a response to an empty file, and return its headers. If the connection breaks, the download continues where it
        broke, or begins again if the file has changed since. After `give_up_seconds` without a byte it is given up."""
        at, tag, pause, last = 0, "", PAUSE_SECONDS_MIN, time.monotonic()
        while True:
            headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
            if at:
                headers |= {"Range": f"bytes={at}-", "If-Range": tag}
            try:
                async with self._http.stream("GET", self._server + path, headers=headers) as response:
                    if response.status_code >= 400:
                        await response.aread()
                        fault = _to_error(response)
                        if not fault.retryable:
                            raise fault
                    else:
                        if response.status_code != 206:
                            at = 0
                            await asyncio.to_thread(_restart, into)
                        tag = response.headers.get("etag", "")
                        async for piece in response.aiter_raw(DOWNLOAD_BYTES):
                            await asyncio.to_thread(into.write, piece)
                            at, last, pause = at + len(piece), time.monotonic(), PAUSE_SECONDS_MIN
                        return dict(response.headers)
            except httpx.TransportError as broken:
                fault = TenureError("UPSTREAM_UNAVAILABLE", f"{self._server} cannot be reached: {broken!r}")
            if time.monotonic() - last + pause > give_up_seconds:
                raise fault
            log.warning("server_not_reached", server=self._server, error=str(fault))
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)


def _restart(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()


def _to_error(response: httpx.Response) -> TenureError:
    try:
        problem: Any = msgspec.json.decode(response.content, type=_Refusal).error
    except msgspec.DecodeError:
        code = "UPSTREAM_UNAVAILABLE" if response.status_code >= 500 else "INVALID_INPUT"
        return TenureError(code, f"the server responded with status {response.status_code} and no error code")
    if problem.code in CODES:
        return TenureError(problem.code, CODES[problem.code].plain_message(problem.message))
    return TenureError("UPSTREAM_UNAVAILABLE" if problem.retryable else "INVALID_INPUT", problem.message)
