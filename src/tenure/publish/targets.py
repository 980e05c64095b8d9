"""Where webhooks may go: to the world, and not to what only this machine or its network can reach.

Laws:
1. A target is https. http is for this machine only, and both need the settings' consent.
2. An address is looked at when it is connected to, whatever its name said before (`govern.addresses`).
3. Redirects are not followed: they would be a way around both.
"""

from __future__ import annotations

import ssl
from functools import cache
from ipaddress import ip_address

import httpx

from tenure.errors import Detail, TenureError
from tenure.govern.addresses import GuardedBackend, Reach, is_allowed, literal

__all__ = ["LOCAL_NAMES", "URL_CHARS_MAX", "Reach", "check_url", "is_allowed", "make_client"]

URL_CHARS_MAX = 2_000
LOCAL_NAMES = frozenset({"localhost"})


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
    address = literal(host)
    local = host.lower().rstrip(".") in LOCAL_NAMES or (
        address is not None and ip_address(address).is_loopback
    )
    if parsed.scheme == "http" and not (local and reach.loopback):
        return "is an https URL"
    if (local and not reach.loopback) or (address is not None and not is_allowed(address, reach)):
        return "leads to an address where webhooks do not go"
    return None


def make_client(reach: Reach, seconds: float, connections: int) -> httpx.AsyncClient:
    """A client that goes no further than it may."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    transport = httpx.AsyncHTTPTransport(retries=0, limits=limits, trust_env=False, verify=_trusted())
    transport._pool._network_backend = GuardedBackend(reach, "webhooks")  # httpx has no argument for it
    return httpx.AsyncClient(
        transport=transport, timeout=seconds, follow_redirects=False, trust_env=False, cookies=_NoCookies()
    )


@cache
def _trusted() -> ssl.SSLContext:
    """The authorities that are trusted; reading them takes longer than all else that a client needs."""
    return httpx.create_ssl_context(trust_env=False)


class _NoCookies(httpx.Cookies):
    """What a receiver sets is not kept."""

    def extract_cookies(self, response: httpx.Response) -> None:
        """None."""
