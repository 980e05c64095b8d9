"""Which URLs webhooks may go to: public services, but not this machine or its network.

Laws:
1. A target is an https URL. http is for this machine only. Both this machine and private networks must be allowed in the settings.
2. The address is checked again when the connection is made (`tenure.outbound.address_rules`): a name can change its address.
3. Redirects are not followed, because they would bypass both checks.
"""

from __future__ import annotations

from ipaddress import ip_address

import httpx

from tenure.errors import Detail, TenureError
from tenure.outbound.address_rules import AllowedNetworks, GuardedBackend, is_allowed, literal_address
from tenure.outbound.http import trusted_certificates
from tenure.outbound.urls import parse_url

LOCAL_NAMES = frozenset({"localhost"})


def check_url(url: str, reach: AllowedNetworks) -> None:
    """Refuse a URL that webhooks may not go to, as far as its text tells."""
    try:
        problem = _find_problem(parse_url(url), reach)
    except ValueError as refused:
        problem = str(refused)
    if problem is not None:
        raise TenureError("INVALID_INPUT", f"url {problem}", (Detail("url", problem),))


def _find_problem(url: httpx.URL, reach: AllowedNetworks) -> str | None:
    address = literal_address(url.host)
    local = url.host.lower().rstrip(".") in LOCAL_NAMES or (
        address is not None and ip_address(address).is_loopback
    )
    if url.scheme == "http" and not (local and reach.loopback):
        return "must be an https URL"
    if (local and not reach.loopback) or (address is not None and not is_allowed(address, reach)):
        return "leads to an address where webhooks do not go: allow private targets in the server's settings"
    return None


def make_client(reach: AllowedNetworks, seconds: float, connections: int) -> httpx.AsyncClient:
    """An HTTP client that connects only to allowed addresses."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    transport = httpx.AsyncHTTPTransport(
        retries=0, limits=limits, trust_env=False, verify=trusted_certificates(None)
    )
    transport._pool._network_backend = GuardedBackend(reach, "webhooks")  # httpx has no argument for it
    return httpx.AsyncClient(
        transport=transport, timeout=seconds, follow_redirects=False, trust_env=False, cookies=_NoCookies()
    )


class _NoCookies(httpx.Cookies):
    def extract_cookies(self, response: httpx.Response) -> None:
        pass
