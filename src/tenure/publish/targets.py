"""Where webhooks may go: to the world, and not to what only this machine or its network can reach.

Laws:
1. A target is https. http is for this machine only, and both need the settings' consent.
2. An address is looked at when it is connected to, whatever its name said before: a name that leads elsewhere tomorrow
   leads nowhere.
3. Redirects are not followed: they would be a way around both.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import httpcore
import httpx
import msgspec

from tenure.errors import Detail, TenureError

URL_CHARS_MAX = 2_000
LOCAL_NAMES = frozenset({"localhost"})


class Reach(msgspec.Struct, frozen=True):
    """How far webhooks may go."""

    loopback: bool = False
    """To this machine, also without TLS: for development."""
    private: bool = False
    """To private networks."""


class Refused(httpcore.ConnectError):
    """The address is one where webhooks do not go."""


def is_allowed(address: str, reach: Reach) -> bool:
    """Whether webhooks may go to an address."""
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return reach.loopback
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved:
        return False
    if isinstance(ip, IPv6Address):
        if ip.sixtofour is not None or ip.teredo is not None:  # they lead to an IPv4 address inside them
            return False
        if ip.is_site_local:
            return reach.private
    return ip.is_global or (ip.is_private and reach.private)


def check_url(url: str, reach: Reach) -> None:
    """Refuse a target as far as its text tells."""
    problem = _problem(url, reach)
    if problem is not None:
        raise TenureError("INVALID_INPUT", f"url: {problem}", (Detail("url", problem),))


def _problem(url: str, reach: Reach) -> str | None:
    if len(url) > URL_CHARS_MAX or not url.isprintable() or " " in url:
        return f"has at most {URL_CHARS_MAX} printable characters"
    try:
        parsed = httpx.URL(url)
        host, port = parsed.host, parsed.port
    except (httpx.InvalidURL, ValueError, UnicodeError):
        return "is no URL"
    if parsed.scheme not in ("http", "https") or not host:
        return "is an https URL with a host"
    if port is not None and not 0 < port < 1 << 16:
        return "is no URL"
    if parsed.userinfo or parsed.fragment:
        return "has neither a user nor a fragment: what proves that we are we is the signature"
    address = _literal(host)
    local = host.lower().rstrip(".") in LOCAL_NAMES or (
        address is not None and ip_address(address).is_loopback
    )
    if parsed.scheme == "http" and not (local and reach.loopback):
        return "is an https URL"
    if (local and not reach.loopback) or (address is not None and not is_allowed(address, reach)):
        return "leads to an address where webhooks do not go"
    return None


def _literal(host: str) -> str | None:
    """The host, where it is an address."""
    try:
        return str(ip_address(host.strip("[]")))
    except ValueError:
        return None


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that are allowed, and to no others (law 2)."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._inner: Any = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first address of the host that is allowed and answers."""
        fault: Exception = Refused("its name has no address")
        for address in await _addresses(host, port):
            if not is_allowed(address, self._reach):
                fault = Refused("it leads to an address where webhooks do not go")
                continue
            try:
                stream: httpcore.AsyncNetworkStream = await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except httpcore.ConnectError as failed:
                fault = failed
            else:
                return stream
        raise fault

    async def connect_unix_socket(self, *_args: Any, **_how: Any) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise Refused("a webhook does not go to a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        """What httpcore waits by."""
        await asyncio.sleep(seconds)


async def _addresses(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as fault:
        raise httpcore.ConnectError("its name is not known") from fault
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def make_client(reach: Reach, seconds: float, connections: int) -> httpx.AsyncClient:
    """A client that goes no further than it may."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    transport = httpx.AsyncHTTPTransport(retries=0, limits=limits, trust_env=False)
    transport._pool._network_backend = _Backend(reach)  # httpx has no argument for it
    return httpx.AsyncClient(
        transport=transport, timeout=seconds, follow_redirects=False, trust_env=False, cookies=_NoCookies()
    )


class _NoCookies(httpx.Cookies):
    """What a receiver sets is not kept."""

    def extract_cookies(self, response: httpx.Response) -> None:
        """None."""
