"""HTTP requests to other services, limited to listed hosts and allowed addresses.

Laws:
1. A request goes only to listed hosts and allowed addresses (`tenure.outbound.address_rules`). It uses no proxy from the
   environment and follows no redirect: a redirect is returned like any other response.
2. Nothing is sent after the deadline. The deadline is compared with the boot clock after connecting, after the TLS handshake and
   before each write, so a process that was stopped in between sends nothing late.
3. A failure says whether any byte of the request was sent: `RequestNotSent` or `ResponseLost`. Each request has its own
   connection, because on a reused connection that the peer has closed this cannot be known.
4. A response is read up to a limit and is not decompressed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import httpcore
import httpx

from tenure import clock
from tenure.outbound.address_rules import AddressRefused, AllowedNetworks, GuardedBackend
from tenure.outbound.responses import HttpResponse, RequestNotSent, ResponseLost
from tenure.outbound.urls import OutboundRoute, find_url_problem

ANSWER_BYTES_MAX = 1024 * 1024
REQUEST_BYTES_MAX = 1024 * 1024
CONNECT_SECONDS_MAX = 10.0
DEADLINE_MARGIN_SECONDS = 0.1


class _Gate:
    """The deadline of one request, and whether any byte of it was sent."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.sent = False

    def seconds_left(self) -> float:
        left = self.deadline - clock.boot_seconds()
        if left <= 0:
            raise RequestNotSent("its deadline passed before it was sent", late=True)
        return left


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that checks the deadline before each write of the request. The TLS handshake bypasses it."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, gate: _Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer:
            self._gate.seconds_left()
            self._gate.sent = True
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._gate)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _GatedBackend(GuardedBackend):
    def __init__(self, reach: AllowedNetworks, gate: _Gate, *, plain: bool) -> None:
        super().__init__(reach, "requests", plain=plain)
        self._gate = gate

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await super().connect_tcp(*args, **options), self._gate)


@lru_cache(maxsize=16)
def trusted_certificates(ca_file: str | None) -> ssl.SSLContext:
    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    return httpx.create_ssl_context(trust_env=False)


async def send_request(
    method: str,
    url: str,
    way: OutboundRoute,
    *,
    deadline: float,
    headers: Mapping[str, str] | None = None,
    content: bytes = b"",
) -> HttpResponse:
    """Send one request and return its response, whatever its status. `deadline` is a time of `clock.boot_seconds()`."""
    if (problem := find_url_problem(url, way)) is not None:
        raise RequestNotSent(problem, refused=True)
    if len(content) > REQUEST_BYTES_MAX:
        raise RequestNotSent(f"the request has more than {REQUEST_BYTES_MAX} bytes", refused=True)
    gate = _Gate(deadline)
    left = gate.seconds_left()
    # End before the caller's own timeout, which could not tell whether anything was sent.
    left -= min(DEADLINE_MARGIN_SECONDS, left / 10)
    try:
        async with asyncio.timeout(left):
            return await _exchange(method, url, way, gate, headers or {}, content, left)
    except RequestNotSent:
        if gate.sent:
            raise ResponseLost("its deadline passed while it was being sent") from None
        raise
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, UnicodeError) as fault:
        # ValueError: an invalid header.
        timed_out = isinstance(fault, TimeoutError | httpx.TimeoutException)
        message = "the request timed out" if timed_out else str(fault) or type(fault).__name__
        if gate.sent:
            raise ResponseLost(message) from fault
        refused = isinstance(fault.__cause__, AddressRefused) or isinstance(fault, ValueError)
        raise RequestNotSent(message, refused=refused, late=clock.boot_seconds() >= deadline) from fault


async def _exchange(
    method: str,
    url: str,
    way: OutboundRoute,
    gate: _Gate,
    headers: Mapping[str, str],
    content: bytes,
    seconds: float,
) -> HttpResponse:
    transport = httpx.AsyncHTTPTransport(verify=trusted_certificates(way.ca_file), retries=0, trust_env=False)
    plain = url[:5].lower() == "http:"
    # httpx has no argument for the network backend.
    transport._pool._network_backend = _GatedBackend(way.reach, gate, plain=plain)
    async with (
        httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS_MAX)),
            follow_redirects=False,
            trust_env=False,
        ) as client,
        client.stream(
            method,
            url,
            headers={"Accept-Encoding": "identity", "Connection": "close", **headers},
            content=content or None,
        ) as response,
    ):
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                break
        return HttpResponse(
            status=response.status_code,
            headers={name.lower(): value for name, value in response.headers.items()},
            body=bytes(body[:ANSWER_BYTES_MAX]),
            cut=len(body) > ANSWER_BYTES_MAX,
        )
