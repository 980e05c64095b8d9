"""Requests to other services: one way out, with a guard at it.

Laws:
1. Only hosts that are listed, only addresses that are allowed (`govern.addresses`), no proxy from the environment, no redirect: it is an
   answer like others, and is not followed.
2. Nothing is sent after the deadline. It is looked at on the clock since boot after connecting and after TLS, before each write of the
   request: a process that was stopped in between finds out there.
3. A fault says whether a byte of the request has left: `NotSent` or `AnswerLost`. Every request has a connection of its own, because a
   kept one that the other side has closed would leave that open.
4. An answer is read up to a limit, and never unpacked.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import httpcore
import httpx
import msgspec

from tenure import clock
from tenure.govern.addresses import GuardedBackend, Reach, Refused
from tenure.govern.answers import Answer, AnswerLost, NotSent

ANSWER_BYTES_MAX = 1024 * 1024
REQUEST_BYTES_MAX = 1024 * 1024
CONNECT_SECONDS_MAX = 10.0
EARLIER_SECONDS = 0.1
URL_CHARS_MAX = 2_000
UNQUOTED_MAX = 4
_DEFAULT_PORTS = {"https": 443, "http": 80}
_LISTED = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?")


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests of one connector may go."""

    hosts: tuple[str, ...] = ()
    """`api.example.com` (its usual port), `api.example.com:8443`, `*.example.com`."""
    reach: Reach = Reach()
    ca_file: str | None = None
    """Certificates that are trusted instead of the usual ones."""


def refusal(url: str, way: Way) -> str | None:
    """Why a request does not go to a URL, as far as its text tells."""
    if len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        return f"a URL has at most {URL_CHARS_MAX} printable characters of ASCII"
    try:
        parsed = httpx.URL(url)
        host, port = parsed.host.lower().rstrip("."), parsed.port
    except (httpx.InvalidURL, ValueError, UnicodeError):
        return "it is no URL"
    if parsed.scheme not in _DEFAULT_PORTS or not host:
        return "it is no https URL with a host"
    if parsed.userinfo or parsed.fragment or "\\" in url:
        return "a URL here has neither a user nor a fragment nor a backslash"
    if _leads_up(re.split(r"[?#]", url)[0].split("/", 3)[3:]):
        return "a path here goes down only: `.` and `..` in it would lead elsewhere than it reads"
    if parsed.scheme == "http" and not (way.reach.networks or way.reach.loopback):
        return "it is no https URL"
    number = port or _DEFAULT_PORTS[parsed.scheme]
    if any(_is_listed(host, number, parsed.scheme, listed.lower()) for listed in way.hosts):
        return None
    return f"the host {parsed.netloc.decode()} is not listed"


def _leads_up(path: list[str]) -> bool:
    """Whether a path has `.` or `..` among its parts for somebody who reads it as some servers do: unquoted, more than once, with
    backslashes as slashes, and without what follows a semicolon."""
    for text in path:
        for _ in range(UNQUOTED_MAX):
            if any(part.partition(";")[0] in (".", "..") for part in re.split(r"[/\\]", text)):
                return True
            text = unquote(text)
    return False


def _is_listed(host: str, port: int, scheme: str, listed: str) -> bool:
    found = _LISTED.fullmatch(listed)
    if found is None or port != int(found["port"] or _DEFAULT_PORTS[scheme]):
        return False
    name = found["name"].strip("[]")
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


class _Gate:
    """The deadline of one request, and whether any of it has left."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.sent = False

    def pass_(self) -> None:
        if clock.boot_seconds() >= self.deadline:
            raise NotSent("its deadline passed before it was sent", late=True)
        self.sent = True


class _Stream(httpcore.AsyncNetworkStream):
    """A connection whose writes are the request's: the handshake of TLS goes beneath it."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, gate: _Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer:
            self._gate.pass_()
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
    """Connects where it may, and lets a request pass in time."""

    def __init__(self, reach: Reach, gate: _Gate, *, plain: bool) -> None:
        super().__init__(reach, "requests", plain=plain)
        self._gate = gate

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection that looks at the deadline before it writes."""
        return _Stream(
            await super().connect_tcp(host, port, timeout, local_address, socket_options), self._gate
        )


@lru_cache(maxsize=16)
def _trusted(ca_file: str | None) -> ssl.SSLContext:
    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    return httpx.create_ssl_context(trust_env=False)


async def send(
    method: str,
    url: str,
    way: Way,
    *,
    deadline: float,
    headers: Mapping[str, str] | None = None,
    content: bytes = b"",
) -> Answer:
    """Send one request and read its answer, whatever it says; `deadline` is by `clock.boot_seconds()`."""
    refused = refusal(url, way)
    if refused is not None:
        raise NotSent(refused, refused=True)
    if len(content) > REQUEST_BYTES_MAX:
        raise NotSent(f"the request has over {REQUEST_BYTES_MAX} bytes", refused=True)
    left = deadline - clock.boot_seconds()
    if left <= 0:
        raise NotSent("its deadline passed before it was sent", late=True)
    gate = _Gate(deadline)
    # Ends a little before whoever waits for the whole call does, who could not say whether anything was sent.
    left -= min(EARLIER_SECONDS, left / 10)
    try:
        async with asyncio.timeout(left):
            return await _exchange(method, url, way, gate, headers or {}, content, left)
    except NotSent:
        if gate.sent:
            raise AnswerLost("its deadline passed while it was sent") from None
        raise
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, UnicodeError) as fault:
        # ValueError: a header that cannot be one.
        what = _said(fault)
        if gate.sent:
            raise AnswerLost(what) from fault
        refused_here = isinstance(fault.__cause__, Refused) or isinstance(fault, ValueError)
        raise NotSent(what, refused=refused_here, late=clock.boot_seconds() >= deadline) from fault


async def _exchange(
    method: str, url: str, way: Way, gate: _Gate, headers: Mapping[str, str], content: bytes, seconds: float
) -> Answer:
    transport = httpx.AsyncHTTPTransport(verify=_trusted(way.ca_file), retries=0, trust_env=False)
    plain = url[:5].lower() == "http:"
    transport._pool._network_backend = _GatedBackend(
        way.reach, gate, plain=plain
    )  # httpx has no argument for it
    timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS_MAX))
    async with httpx.AsyncClient(
        transport=transport, timeout=timeout, follow_redirects=False, trust_env=False
    ) as client:
        sent = {"Accept-Encoding": "identity", "Connection": "close", **headers}
        async with client.stream(method, url, headers=sent, content=content or None) as response:
            body, cut = bytearray(), False
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    del body[ANSWER_BYTES_MAX:]
                    cut = True
                    break
            return Answer(
                status=response.status_code,
                headers={name.lower(): value for name, value in response.headers.items()},
                body=bytes(body),
                cut=cut,
            )


def _said(fault: BaseException) -> str:
    if isinstance(fault, TimeoutError | httpx.TimeoutException):
        return "it took too long"
    return str(fault) or type(fault).__name__
